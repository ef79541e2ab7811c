package web

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	"POST /web/settings/profiles/default":  "page",
	"POST /web/settings/profiles/delete":   "page",
	"POST /web/settings/secrets":           "page",
	"POST /web/settings/secrets/delete":    "page",
	"POST /web/settings/connectors":        "page",
	"POST /web/settings/connectors/delete": "page",
	"POST /web/settings/connectors/grant":  "page",
	"POST /web/settings/connectors/revoke": "page",
	"POST /web/settings/tokens":            "list:tokens",
	"POST /web/settings/tokens/delete":     "page",
	"POST /web/settings/sessions/end":      "page",
	"POST /web/settings/sessions/end-all":  "page",
	"POST /web/settings/images/pull":       "stream",
	"POST /web/settings/images/remove":     "page",
	"POST /web/settings/images/prune":      "page",
	"POST /web/settings/backends":          "page",
	"POST /web/settings/backends/delete":   "page",
	"POST /web/settings/webhooks":          "list:webhooks",
	"POST /web/settings/webhooks/test":     "list:webhooks",
	"POST /web/settings/webhooks/delete":   "page",
	"POST /web/settings/running/destroy":   "list:running",
	"POST /web/settings/running/orphans":   "list:running",
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
	_, _ = w.WriteString(`{"name":"x"}`)
	return w.Result(), context.Cause(r.Context())
}

// TestShowsWhatChanged: no page shows what was so before a request that it made itself: each of the settings' has a way to
// show what has changed, and keeps to it.
func TestShowsWhatChanged(t *testing.T) {
	s := aloneTooLong
	s.ConfirmedAt = time.Now()
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
		form := url.Values{"name": {"x"}, "text": {"agent = \"shell\"\n"}, "sprite": {"x"}, "verb": {"read"}, "url": {"https://x.example"}, "id": {"x"}}
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("HX-Request", "true")
		w := httptest.NewRecorder()
		v := &view{w: w, r: r, session: s, site: &Site{}, api: &cove.Client{Client: &sprites.Client{URL: "http://localhost", HTTPClient: &http.Client{Transport: yesAPI{}}}}}
		r.ParseForm() //nolint:errcheck // it is a form
		if err := rt.handle(v); err != nil {
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
	for _, tab := range []string{"profiles", "tokens", "webhooks", "running", "images"} {
		page, err := html("settings-"+tab, emptyTabs[tab])
		if err != nil || strings.Count(page, `<div id="list-`+tab+`">`) != 1 {
			t.Errorf("the tab %s has no list to replace: %v", tab, err)
		}
	}
}

// emptyTabs are tabs without rows.
var emptyTabs = map[string]any{"profiles": profilesPage{}, "tokens": tokensPage{}, "webhooks": webhooksPage{}, "running": runningPage{}, "images": imagesPage{}}
