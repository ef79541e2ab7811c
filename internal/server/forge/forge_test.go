package forge_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/forge"
	"github.com/cove-dev/cove/internal/shim/connect"
)

const token = "canary-api/0123456789+abc"

var asked = forge.PullRequest{Repository: "/team/project.git", Head: "cove/abc123", Base: "release/2", Title: "Do it", Body: "By cove."}

// scripted is a forge of a kind that answers POST with a status and a body, and GET with a
// pull request that is there.
func scripted(t *testing.T, kind string, status int, body string, paths ...string) (*forge.Forge, *[]string) {
	t.Helper()
	var requests []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests = append(requests, r.Method+" "+r.URL.EscapedPath()+" "+r.URL.RawQuery+" "+string(text))
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodGet && !strings.Contains(r.URL.Path, "/issues/") {
			doc := `{"html_url":"https://forge.example.org/old/7"}`
			if kind != forge.Gitea {
				doc = `[{"html_url":"https://forge.example.org/old/7"}]`
			}
			_, _ = io.WriteString(w, doc)
			return
		}
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	u, err := connect.Resolve(cove.Connector{Upstream: s.URL + "/api", Secret: "api", Paths: paths, Headers: map[string]string{"Authorization": "Bearer {secret}"}}, func(string) (connect.Value, error) { return connect.Value{Text: token}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return &forge.Forge{Kind: kind, API: u}, &requests
}

// TestOpen: each kind of forge is asked as its documents say.
func TestOpen(t *testing.T) {
	for kind, want := range map[string]struct{ path, head, base, find string }{
		forge.GitHub: {"/api/repos/team/project/pulls", "head", "base", "GET /api/repos/team/project/pulls base=release%2F2&head=team%3Acove%2Fabc123&state=open "},
		forge.Gitea:  {"/api/repos/team/project/pulls", "head", "base", "GET /api/repos/team/project/pulls/release%2F2/cove%2Fabc123  "},
		forge.GitLab: {"/api/projects/team%2Fproject/merge_requests", "source_branch", "target_branch", "GET /api/projects/team%2Fproject/merge_requests source_branch=cove%2Fabc123&state=opened&target_branch=release%2F2 "},
	} {
		f, requests := scripted(t, kind, http.StatusCreated, `{"html_url":"https://forge.example.org/new/8","web_url":"https://forge.example.org/new/8"}`)
		page, err := f.Open(t.Context(), asked)
		if err != nil || page != "https://forge.example.org/new/8" || len(*requests) != 1 {
			t.Fatalf("%s: got %q, %v after %q", kind, page, err, *requests)
		}
		method, rest, _ := strings.Cut((*requests)[0], " ")
		path, text, _ := strings.Cut(rest, "  ")
		var doc map[string]string
		if err := json.Unmarshal([]byte(text), &doc); err != nil || method != "POST" || path != want.path || doc[want.head] != asked.Head || doc[want.base] != asked.Base || doc["title"] != asked.Title {
			t.Errorf("%s: asked %q, %v", kind, (*requests)[0], err)
		}
		for _, status := range []int{http.StatusConflict, http.StatusUnprocessableEntity} {
			f, requests := scripted(t, kind, status, `{"message":"already exists"}`)
			page, err := f.Open(t.Context(), asked)
			if err != nil || page != "https://forge.example.org/old/7" || len(*requests) != 2 || (*requests)[1] != want.find {
				t.Errorf("%s, %d: got %q, %v after %q, want %q", kind, status, page, err, *requests, want.find)
			}
		}
	}
}

// TestIssue: each kind of forge is asked for an issue as its documents say, and the answer is bounded.
func TestIssue(t *testing.T) {
	for kind, want := range map[string]string{
		forge.GitHub: "GET /api/repos/team/project/issues/12  ", forge.Gitea: "GET /api/repos/team/project/issues/12  ", forge.GitLab: "GET /api/projects/team%2Fproject/issues/12  ",
	} {
		text := "body"
		if kind == forge.GitLab {
			text = "description"
		}
		f, requests := scripted(t, kind, http.StatusOK, `{"title":"It is slow\nand more","`+text+`":"Make it `+token+` fast"}`)
		got, err := f.Issue(t.Context(), "/team/project.git", 12)
		if err != nil || got != (forge.Issue{Title: "It is slow", Text: "Make it *** fast"}) || len(*requests) != 1 || (*requests)[0] != want {
			t.Errorf("%s: got %+v, %v after %q", kind, got, err, *requests)
		}
	}
	for status, body := range map[int]string{http.StatusNotFound: `{"message":"no ` + token + `"}`, http.StatusTemporaryRedirect: "", http.StatusOK: "<html>"} {
		f, _ := scripted(t, forge.GitHub, status, body)
		if got, err := f.Issue(t.Context(), "team/project", 12); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%d: got %+v, %v", status, got, err)
		}
	}
	f, _ := scripted(t, forge.GitHub, http.StatusOK, `{"title":"`+strings.Repeat("t", 5000)+`","body":"`+strings.Repeat("x", 1<<20)+`"}`)
	if got, err := f.Issue(t.Context(), "team/project", 12); err != nil || len(got.Title) > 300 || len(got.Text) > 65<<10 || !strings.HasSuffix(got.Text, "(cut off)") {
		t.Errorf("a long one: %d and %d bytes, %v", len(got.Title), len(got.Text), err)
	}
}

// TestHostileForge: no answer of a forge makes cove follow it elsewhere, fills memory, or
// reveals a secret.
func TestHostileForge(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   string
		err    string // empty: it goes well, without a page
	}{
		"an echo":     {http.StatusForbidden, `{"message":"no ` + token + `"}`, "***"},
		"a redirect":  {http.StatusTemporaryRedirect, ``, "307"},
		"no JSON":     {http.StatusBadRequest, "<html>", "does not say why"},
		"a long word": {http.StatusBadRequest, `{"message":"` + strings.Repeat("x", 1<<20) + `"}`, "xxx…"},
		"a flood":     {http.StatusBadRequest, strings.Repeat("x", 5<<20), "too long"},
		"a script":    {http.StatusCreated, `{"html_url":"javascript:alert(1)"}`, ""},
		"a password":  {http.StatusCreated, `{"html_url":"https://a:b@forge.example.org/"}`, ""},
		"a secret":    {http.StatusCreated, `{"html_url":"https://forge.example.org/?` + token + `"}`, ""},
		"a list":      {http.StatusCreated, `[]`, ""},
	} {
		f, _ := scripted(t, forge.GitHub, test.status, test.body)
		page, err := f.Open(t.Context(), asked)
		if page != "" || (err == nil) != (test.err == "") || err != nil && (!strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), token) || len(err.Error()) > 1000) {
			t.Errorf("%s: got %q, %.2000v", name, page, err)
		}
	}
	f, requests := scripted(t, forge.GitHub, http.StatusCreated, "{}", "/repos/other/*")
	if _, err := f.Open(t.Context(), asked); err == nil || len(*requests) != 0 {
		t.Errorf("a path that the connector leaves out: got %v after %q", err, *requests)
	}
	f.Kind = "other"
	if _, err := f.Open(t.Context(), asked); err == nil {
		t.Error("a kind that nobody knows is taken")
	}
}
