package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// aloneTooLong has a session that came by a link too long ago.
var aloneTooLong = Session{ID: "1", Key: []byte("key"), Verbs: []string{"read", "write", "exec", "admin"}, ConfirmedAt: time.Now().Add(-ConfirmedFor)}

// demand makes a request of a session, and gives its error's code. The API refuses everything by no-api.
func demand(t *testing.T, s Session, pattern, path, form string) (code string) {
	t.Helper()
	method, _, _ := strings.Cut(pattern, " ")
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if strings.HasSuffix(pattern, "/upload") {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	r.Header.Set("X-Cove-Mark", s.mark())
	r.Header.Set("HX-Request", "true")
	r.Header.Set("X-Cove-Sprite", "1")
	w := httptest.NewRecorder()
	site := &Site{
		API: &http.Client{Transport: noAPI{}}, Sessions: oneSession{&s}, Logger: slog.New(slog.DiscardHandler), SameOrigin: func(*http.Request) error { return nil },
	}
	site.Handler().ServeHTTP(w, r)
	if strings.Contains(w.Body.String(), "show again that it is you") {
		return "confirm"
	}
	if w.Code == http.StatusForbidden || w.Code == http.StatusUnauthorized {
		t.Errorf("%s %s: %d %s", pattern, path, w.Code, w.Body)
	}
	return ""
}

// noAPI is an API that refuses everything, but to say which sprite has a name.
type noAPI struct{}

func (noAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if name, ok := strings.CutPrefix(r.URL.Path, "/v1/sprites/"); ok && r.Method == http.MethodGet && !strings.Contains(name, "/") {
		_, _ = w.WriteString(`{"id":"1"}`)
		return w.Result(), context.Cause(r.Context())
	}
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.WriteString(`{"error":"no-api","message":"no-api"}`)
	return w.Result(), context.Cause(r.Context())
}

var wildcard = regexp.MustCompile(`\{[a-z]+\}`)

// TestDecisions: each route that changes something decides whether a browser that was left
// alone may use it, and keeps to that. If a route asks, it does so before the API hears of the
// request. It never asks a person who came by a link just now.
func TestDecisions(t *testing.T) {
	fresh := aloneTooLong
	fresh.ConfirmedAt = time.Now()
	known := map[string]bool{}
	for _, rt := range routes() {
		known[rt.pattern] = true
		method, path, _ := strings.Cut(rt.pattern, " ")
		d, decided := decisions[rt.pattern]
		if method == http.MethodGet {
			if decided {
				t.Errorf("%s changes nothing, and has a decision", rt.pattern)
			}
			continue
		}
		if !decided {
			t.Errorf("%s has no decision: see decisions", rt.pattern)
			continue
		}
		path = wildcard.ReplaceAllString(path, "none")
		got := demand(t, aloneTooLong, rt.pattern, path, "")
		if d != partly && (got == "confirm") != (d == asks) {
			t.Errorf("%s of a browser that was left alone: %q, decided is %d", rt.pattern, got, d)
		}
		if got := demand(t, fresh, rt.pattern, path, ""); got != "" {
			t.Errorf("%s of who came by a link just now: %q", rt.pattern, got)
		}
	}
	for pattern := range decisions {
		if !known[pattern] {
			t.Errorf("there is a decision of %s, which is no route", pattern)
		}
	}
}

// TestAsksInPart: the routes that ask in part do so for the right requests.
func TestAsksInPart(t *testing.T) {
	const sprite = "/web/sprites/paint"
	tested := map[string]bool{}
	for _, c := range []struct {
		pattern, path string
		form          url.Values
		asks          bool
	}{
		{"POST /web/sprites/{name}/do/{deed}", sprite + "/do/delete", url.Values{"typed": {"paint"}}, true},
		{"POST /web/sprites/{name}/do/{deed}", sprite + "/do/restart", nil, true},
		{"POST /web/sprites/{name}/do/{deed}", sprite + "/do/suspend", nil, false},
		{"POST /web/sprites/{name}/do/{deed}", sprite + "/do/fork", url.Values{"to": {"copy"}}, false},
		{"POST /web/sprites/{name}/files/upload", sprite + "/files/upload?path=/a&over=yes", nil, true},
		{"POST /web/sprites/{name}/files/upload", sprite + "/files/upload?path=/a", nil, false},
		{"POST /web/sprites/{name}/files/do/{deed}", sprite + "/files/do/delete", url.Values{"path": {"/a"}}, true},
		{"POST /web/sprites/{name}/files/do/{deed}", sprite + "/files/do/rename", url.Values{"path": {"/a"}, "to": {"b"}}, false},
		{"POST /web/sprites/{name}/checkpoints/prune", sprite + "/checkpoints/prune", url.Values{"last": {"1"}, "daily": {"0"}, "sure": {"yes"}}, true},
		{"POST /web/sprites/{name}/checkpoints/prune", sprite + "/checkpoints/prune", url.Values{"last": {"1"}, "daily": {"0"}}, false},
		{"POST /web/sprites/{name}/network/remove", sprite + "/network/remove", url.Values{"rule": {"deny evil.example"}}, true},
		{"POST /web/sprites/{name}/network/remove", sprite + "/network/remove", url.Values{"rule": {"allow example.org:443"}}, false},
	} {
		tested[c.pattern] = tested[c.pattern] || c.asks
		if got := demand(t, aloneTooLong, c.pattern, c.path, c.form.Encode()); (got == "confirm") != c.asks {
			t.Errorf("%s with %v: %q", c.path, c.form, got)
		}
	}
	for pattern, d := range decisions {
		if d == partly && !tested[pattern] {
			t.Errorf("no part of %s asks", pattern)
		}
	}
}
