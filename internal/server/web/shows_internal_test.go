package web

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// changed says of each request that changes something how the page that has made it shows that:
//
//	page    a page is loaded, which shows it as it is now
//	list:T  the answer has the list of the settings' tab T as it is now, beside what it says
//	stream  the page's stream tells of it (now, a job), or the answer is one, which replaces what has changed
//	part    the answer replaces the one part of the page that shows it
//	none    nothing that a page shows has changed
var changed = map[string]string{
	"POST /web/logout":          "page",
	"POST /web/now/{id}/answer": "stream", "POST /web/now/{id}/send": "stream", "POST /web/now/{id}/seen": "stream", "POST /web/now/{id}/unseen": "stream",
	"POST /web/jobs/{id}/answer": "stream", "POST /web/jobs/{id}/send": "stream", "POST /web/jobs/{id}/stop": "stream",
	"POST /web/jobs/{id}/resume": "page", "POST /web/jobs/{id}/retry": "page", "POST /web/jobs/{id}/plan": "none", "POST /web/jobs/{id}/delete": "page",
	"POST /web/jobs/{id}/comments": "part", "POST /web/jobs/{id}/comments/send": "page", "POST /web/jobs/{id}/comments/{comment}/delete": "part",
	"POST /web/new": "page", "POST /web/new/preview": "none", "POST /web/first": "page",

	"POST /web/sprites/{name}/do/{deed}":                          "page",
	"POST /web/sprites/{name}/terminal/end":                       "none", // the terminal's own socket ends
	"POST /web/sprites/{name}/files/save":                         "page",
	"POST /web/sprites/{name}/files/upload":                       "none", // sprite.js loads the page again
	"POST /web/sprites/{name}/files/do/{deed}":                    "page",
	"POST /web/sprites/{name}/services/{service}/do/{deed}":       "page",
	"POST /web/sprites/{name}/checkpoints":                        "page",
	"POST /web/sprites/{name}/checkpoints/prune":                  "page",
	"POST /web/sprites/{name}/checkpoints/{checkpoint}/do/{deed}": "page",
	"POST /web/sprites/{name}/network/allow":                      "page",
	"POST /web/sprites/{name}/network/remove":                     "page",
	"POST /web/sprites/{name}/network/learn":                      "page",

	"POST /web/settings/test":              "stream",
	"POST /web/settings/profiles":          "list:profiles",
	"POST /web/settings/profiles/apply":    "none", // of the profile; its jobs have the policy
	"POST /web/settings/profiles/default":  "list:profiles",
	"POST /web/settings/profiles/delete":   "list:profiles",
	"POST /web/settings/secrets":           "list:secrets",
	"POST /web/settings/secrets/delete":    "list:secrets",
	"POST /web/settings/connectors":        "list:connectors",
	"POST /web/settings/connectors/delete": "list:connectors",
	"POST /web/settings/connectors/grant":  "list:connectors",
	"POST /web/settings/connectors/revoke": "list:connectors",
	"POST /web/settings/tokens":            "list:tokens",
	"POST /web/settings/tokens/delete":     "list:tokens",
	"POST /web/settings/sessions/end":      "page",
	"POST /web/settings/sessions/end-all":  "page",
	"POST /web/settings/images/pull":       "stream",
	"POST /web/settings/images/remove":     "list:images",
	"POST /web/settings/images/prune":      "list:images",
	"POST /web/settings/backends":          "list:backends",
	"POST /web/settings/backends/delete":   "list:backends",
	"POST /web/settings/webhooks":          "list:webhooks",
	"POST /web/settings/webhooks/test":     "list:webhooks",
	"POST /web/settings/webhooks/delete":   "list:webhooks",
	"POST /web/settings/running/destroy":   "list:running",
	"POST /web/settings/running/orphans":   "list:running",
}

// yes is the answer of yesAPI.
const yes = `{"id":"x","name":"x","status":"running"}`

// yesOf are the answers of yesAPI to some requests.
var yesOf = map[string]string{
	"POST /v1/webhooks/x/test":                 `{"state":"delivered"}`,
	"POST /v1/jobs":                            `{"id":"x","sprite":"x","upload":"/x"}`,
	"GET /v1/jobs/1":                           `{"id":"1","state":"waiting","converse":true}`,
	"GET /v1/jobs/1/comments":                  `{"comments":[{"id":1,"path":"x","line":1,"text":"x"}]}`,
	"POST /v1/jobs/1/comments":                 `{"id":1}`,
	"POST /v1/sprites/x/checkpoint":            `{"type":"complete","checkpoint":{"id":"v1"}}` + "\n",
	"POST /v1/sprites/x/checkpoints/1/restore": `{"type":"complete","restored":{"checkpoint":"1","replaced":"pre-restore-1"}}` + "\n",
	"POST /v1/sprites/x/services/1/start":      `{"type":"complete"}` + "\n",
	"POST /v1/sprites/x/services/1/stop":       `{"type":"complete"}` + "\n",
	"POST /v1/sprites/x/services/1/restart":    `{"type":"complete"}` + "\n",
	"GET /v1/sprites/x/fs/list":                `{"path":"/x","entries":[{"name":"x","path":"/x","type":"file","mode":"0644","etag":"\"1\""}]}`,
	"POST /v1/images/pull":                     `{"type":"complete","image":{"digest":"x"}}` + "\n",
}

// yesAPI is an API that answers everything by an empty object, whose name is x.
type yesAPI struct{}

func (yesAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	text := yes
	for path, other := range yesOf {
		if r.Method+" "+r.URL.Path == path {
			text = other
		}
	}
	_, _ = w.WriteString(text)
	resp := w.Result()
	resp.ContentLength = int64(len(text))
	return resp, context.Cause(r.Context())
}

// TestShowsWhatChanged: no page shows an old state after a request that it made itself. Each
// request of the settings has a way to show what has changed, and keeps to it.
func TestShowsWhatChanged(t *testing.T) {
	known := map[string]bool{}
	for _, rt := range routes() {
		method, path, _ := strings.Cut(rt.pattern, " ")
		if method == http.MethodGet {
			continue
		}
		known[rt.pattern] = true
		how := changed[rt.pattern]
		if how == "" {
			t.Errorf("%s has no way to show what it changed: see changed", rt.pattern)
		}
		if !strings.HasPrefix(path, "/web/settings/") || how == "stream" || how == "none" {
			continue
		}
		w, err := does(t, rt, "")
		if err != nil {
			t.Errorf("%s: %v", rt.pattern, err)
			continue
		}
		tab, list := strings.CutPrefix(how, "list:")
		switch {
		case list && (!strings.Contains(w.Body.String(), `hx-swap-oob="innerHTML:#list-`+tab+`"`) || !strings.Contains(w.Body.String(), "<section")):
			t.Errorf("%s does not answer with the list of %s:\n%s", rt.pattern, tab, w.Body)
		case how == "page" && w.Header().Get("HX-Redirect") == "":
			t.Errorf("%s does not lead to a page: %d %s", rt.pattern, w.Code, w.Body)
		}
	}
	for pattern := range changed {
		if !known[pattern] {
			t.Errorf("%s is no route", pattern)
		}
	}
	for tab := range emptyTabs {
		page, err := html("settings-"+tab, emptyTabs[tab])
		if err != nil || strings.Count(page, `<div id="list-`+tab+`">`) != 1 {
			t.Errorf("the tab %s has no list to replace: %v", tab, err)
		}
	}
}

// emptyTabs are tabs without rows.
var emptyTabs = map[string]any{
	"profiles": profilesPage{}, "secrets": secretsPage{}, "connectors": settingsConnectors{}, "tokens": tokensPage{},
	"backends": backendsPage{}, "webhooks": webhooksPage{}, "running": runningPage{}, "images": imagesPage{},
}

// does makes a script's request of a route to an API that answers everything. deed is a path's.
func does(t *testing.T, rt route, deed string) (*httptest.ResponseRecorder, error) {
	t.Helper()
	s := aloneTooLong
	s.ConfirmedAt = time.Now()
	method, path, _ := strings.Cut(rt.pattern, " ")
	form := url.Values{
		"name": {"x"}, "text": {"agent = \"shell\"\n"}, "sprite": {"x"}, "verb": {"read"}, "url": {"https://x.example"}, "id": {"x"}, "message": {"go on"},
		"plan": {"# Do it"}, "agent": {"shell"}, "rule": {"x.example:443"}, "rules": {`[{"domain":"x.example","action":"allow"}]`}, "path": {"/x"}, "to": {"y"},
		"typed": {"x"}, "last": {"1"}, "daily": {"1"}, "sure": {"yes"}, "digest": {digest([]byte(yes))}, "reference": {"x"}, "version": {`file "1"`},
	}
	r := httptest.NewRequestWithContext(t.Context(), method, "/?path=/x&over=file+%221%22", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("HX-Request", "true")
	r.Header.Set("X-Cove-Sprite", "x")
	for _, name := range wildcard.FindAllString(path, -1) {
		r.SetPathValue(strings.Trim(name, "{}"), map[bool]string{true: deed, false: "1"}[name == "{deed}"])
	}
	if strings.HasPrefix(path, "/web/sprites/") {
		r.SetPathValue("name", "x")
	}
	w := httptest.NewRecorder()
	v := &view{w: patient{w}, r: r, session: s, site: &Site{API: &http.Client{Transport: yesAPI{}}, Sessions: oneSession{&s}, Logger: slog.New(slog.DiscardHandler)}, api: &cove.Client{Client: &sprites.Client{URL: "http://localhost", HTTPClient: &http.Client{Transport: yesAPI{}}}}}
	if rt.pattern != uploadRoute {
		must(t, r.ParseForm())
	}
	return w, rt.handle(v)
}

// patient is a connection that takes a deadline.
type patient struct{ *httptest.ResponseRecorder }

func (patient) SetWriteDeadline(time.Time) error { return nil }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// saidOtherwise are the requests that do not say in the live region what they did, and the
// reasons.
var saidOtherwise = map[string]string{
	"POST /web/logout":                      "the page to log in is shown",
	"POST /web/now/{id}/seen":               "it has a live region of its own, to undo it",
	"POST /web/now/{id}/unseen":             "so has this",
	"POST /web/new/preview":                 "nothing is done",
	"POST /web/jobs/{id}/plan":              "nothing is done: a form is shown, filled in",
	"POST /web/settings/test":               "its steps are streamed into a live region",
	"POST /web/sprites/{name}/terminal/end": "the terminal is gone from the page",
}

// deedsOf are the deeds of routes that have several.
var deedsOf = map[string][]string{
	"POST /web/sprites/{name}/do/{deed}":                          {"wake", "suspend", "restart", "fork", "delete"},
	"POST /web/sprites/{name}/files/do/{deed}":                    {"folder", "delete"},
	"POST /web/sprites/{name}/services/{service}/do/{deed}":       {"start", "stop", "restart"},
	"POST /web/sprites/{name}/checkpoints/{checkpoint}/do/{deed}": {"restore", "delete"},
}

// TestSaysWhatItDid: each request that changes something says so in one short sentence. That
// is in the live region of the page that it leaves, or of the page that it leads to.
func TestSaysWhatItDid(t *testing.T) {
	for _, rt := range routes() {
		if strings.HasPrefix(rt.pattern, http.MethodGet) || saidOtherwise[rt.pattern] != "" {
			continue
		}
		deeds := deedsOf[rt.pattern]
		if deeds == nil {
			deeds = []string{""}
		}
		for _, deed := range deeds {
			w, err := does(t, rt, deed)
			if err != nil {
				t.Errorf("%s %s: %v", rt.pattern, deed, err)
				continue
			}
			if said := saidBy(t, w); !strings.HasSuffix(said, ".") || len(strings.Fields(said)) < 3 {
				t.Errorf("%s %s says %q of what it did: see view.say, or saidOtherwise", rt.pattern, deed, said)
			}
		}
	}
}

var (
	sayingPart   = regexp.MustCompile(`hx-swap-oob="innerHTML:#said"><p class="saying">([^<]*) <button`)
	sayingStream = regexp.MustCompile(`"target":"said".*saying\\"\\u003e([^\\]*) `)
)

// saidBy is the sentence of an answer.
func saidBy(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	body := w.Body.String()
	if w.Header().Get("Content-Encoding") == "gzip" {
		zr, err := gzip.NewReader(w.Body)
		must(t, err)
		b, err := io.ReadAll(zr)
		must(t, err)
		body = string(b)
	}
	if m := sayingPart.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	if m := sayingStream.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	// The next page has it, once, and no other session's.
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/web", nil)
	for _, c := range w.Result().Cookies() {
		if c.Name == sayingCookie {
			r.AddCookie(c)
		}
	}
	other := aloneTooLong
	other.Key = []byte("another")
	if text := nextSaying(&view{w: httptest.NewRecorder(), r: r, session: other}); text != "" {
		t.Errorf("another session says %q", text)
	}
	next := httptest.NewRecorder()
	text := nextSaying(&view{w: next, r: r, session: aloneTooLong})
	if gone := next.Result().Cookies(); text != "" && (len(gone) != 1 || gone[0].MaxAge >= 0) {
		t.Errorf("it is said again: %v", gone)
	}
	return text
}
