package web_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/sprites"
)

// reader makes a token with verbs, and returns a client that has it.
func reader(t *testing.T, s *covetest.Server, verbs ...string) *cove.Client {
	t.Helper()
	token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "reader", Scope: cove.TokenScope{All: true}, Verbs: verbs})
	must(t, err)
	return &cove.Client{Client: &sprites.Client{URL: s.URL, Token: token.Secret}}
}

// read is the status and the body of a page.
func read(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

var (
	posts  = regexp.MustCompile(`(?:hx-post|action)="(/web/[^"]+)"[^>]*`)
	opens  = regexp.MustCompile(`data-opens="([^"]+)"`)
	always = regexp.MustCompile(`^/web/(logout|search|jobs|sprites|compare|settings/sessions/end(-all)?)?$`) // of the session itself, or no more than a look
)

// TestButtonsThatWork: a session that may only read has no button that the API refuses, on
// pages where the owner has such buttons.
func TestButtonsThatWork(t *testing.T) {
	s := jobtest.Start(t)
	populate(t, s)
	id := realJob(t, s.Client())
	owner, other := visitor(t, s), visitorAs(t, reader(t, s, "read"))
	for _, path := range []string{
		"/web", "/web/jobs", "/web/first", "/web/jobs/000001", "/web/jobs/000002", "/web/jobs/000003", "/web/jobs/" + id, "/web/jobs/" + id + "/changes",
		"/web/settings", "/web/settings?tab=profiles&name=nightly", "/web/settings?tab=running", "/web/settings?tab=sessions", "/web/sprites/paint", "/web/sprites/asleep/files",
	} {
		acts := func(c *http.Client) (all []string) {
			status, page := read(t, c, s.URL+path)
			if status != http.StatusOK {
				t.Fatalf("%s: got %d: %s", path, status, page)
			}
			for _, m := range posts.FindAllStringSubmatch(page, -1) {
				if !always.MatchString(m[1]) {
					all = append(all, m[1])
				}
			}
			for _, m := range opens.FindAllStringSubmatch(page, -1) {
				if !strings.Contains(page, `id="`+m[1]+`"`) {
					t.Errorf("%s: a button opens %s, which is not there", path, m[1])
				}
			}
			if strings.Contains(page, `href="/web/new"`) {
				all = append(all, "/web/new")
			}
			return all
		}
		if has := acts(owner); len(has) < 2 && !strings.Contains(path, "sessions") {
			t.Errorf("%s: the owner has %v alone", path, has)
		}
		if has := acts(other); len(has) != 0 {
			t.Errorf("%s: who may read has %v", path, has)
		}
	}
	for id, want := range map[string]string{id: "Comparing in a sandbox of its own…", "000001": "Asking git in the sprite…"} { // which an ended job has no more
		if _, page := read(t, owner, s.URL+"/web/jobs/"+id+"/changes"); !strings.Contains(page, want) {
			t.Errorf("the changes of %s do not say %s", id, want)
		}
	}
	if status, page := read(t, other, s.URL+"/web/new"); status != http.StatusForbidden || !strings.Contains(page, "the verb write") {
		t.Errorf("a new job: %d: %s", status, page)
	}
}

// TestTabsOfRights: the settings list the tabs that a session may see. The address of another
// tab says which verb it needs. The address of no tab is not found, with the tabs.
func TestTabsOfRights(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for _, as := range []struct {
		verbs           []string
		first, not, has string
	}{
		{[]string{"read"}, "Profiles", "?tab=secrets", "?tab=images"},
		{[]string{"write"}, "Browsers", "?tab=profiles", "?tab=sessions"},
		{[]string{"read", "admin"}, "Profiles", "?tab=none", "?tab=secrets"},
	} {
		c := visitorAs(t, reader(t, s, as.verbs...))
		for path, want := range map[string]struct {
			status int
			text   string
		}{
			"":            {200, `aria-current="page">` + as.first},
			"?tab=nobody": {404, "the settings have no such tab"},
		} {
			status, page := read(t, c, s.URL+"/web/settings"+path)
			if status != want.status || !strings.Contains(page, want.text) || strings.Contains(page, as.not) || !strings.Contains(page, as.has) {
				t.Errorf("%v, %q: got %d: %s", as.verbs, path, status, page)
			}
		}
	}
	status, page := read(t, visitorAs(t, reader(t, s, "read")), s.URL+"/web/settings?tab=secrets")
	if status != http.StatusForbidden || !strings.Contains(page, "the tab Secrets of the settings needs the verb admin") || !strings.Contains(page, "?tab=profiles") {
		t.Errorf("the secrets: got %d: %s", status, page)
	}
}

// TestNoTerminal: a session that may not open a terminal has no tab for it. The terminal's
// address says which verb it needs, with the other tabs.
func TestNoTerminal(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := visitorAs(t, reader(t, s, "read"))
	status, page := read(t, c, s.URL+"/web/sprites/paint/terminal")
	if status != http.StatusForbidden || !strings.Contains(page, "needs the verb exec") || !strings.Contains(page, `href="/web/sprites/paint/files"`) || strings.Contains(page, `href="/web/sprites/paint/terminal"`) || strings.Contains(page, "<dd>a new job</dd>") {
		t.Errorf("got %d: %s", status, page)
	}
}

// TestNothingThatItReaches: if a token reaches no job, the page does not say that the server
// has none. It offers nothing that the token may not begin.
func TestNothingThatItReaches(t *testing.T) {
	s := site(t)
	token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "elsewhere", Scope: cove.TokenScope{Prefix: "elsewhere-"}, Verbs: []string{"read", "write"}})
	must(t, err)
	c := visitorAs(t, &cove.Client{Client: &sprites.Client{URL: s.URL, Token: token.Secret}})
	for path, want := range map[string]string{"/web": "Nothing that this token reaches has run here yet", "/web/jobs": "No job that this token reaches has begun yet."} {
		status, page := read(t, c, s.URL+path)
		if status != http.StatusOK || !strings.Contains(page, want) || strings.Contains(page, "/web/first") || !strings.Contains(page, `href="/web/new"`) {
			t.Errorf("%s: got %d: %s", path, status, page)
		}
	}
}
