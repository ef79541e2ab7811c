package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// TestBackends: a backend is reached with the token that the server has for it. No answer of
// the backend speaks for the server.
func TestBackends(t *testing.T) {
	const secret = "the-backends-own-token"
	var log syncBuffer
	s := covetest.Start(t, covetest.Options{Log: &log})
	status := http.StatusOK
	var asked *http.Request
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Clone(t.Context())
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Content-Security-Policy", "none")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, `{"name":"paint"}`)
	}))
	defer far.Close()
	c := s.Server.Client()
	must(t, c.PutBackend(t.Context(), "far", cove.BackendRequest{URL: far.URL + "/under/", Token: secret}))
	list, err := c.Backends(t.Context())
	failIf(t, err != nil || len(list) != 1 || list[0].URL != far.URL+"/under", "got %+v, %v", list, err)

	info, err := c.At("far").Get(t.Context(), "a/../b")
	failIf(t, err != nil || info.Name != "paint", "got %+v, %v", info, err)
	failIf(t, asked.URL.EscapedPath() != "/under/v1/sprites/a%2F..%2Fb" || asked.Header.Get("Authorization") != "Bearer "+secret, "it was asked %s with %v", asked.URL, asked.Header)
	a := ask(t, s, "GET /v1/backends/far/v1/sprites/paint?x=1%262", "", func(r *http.Request) { r.Header.Set("Cookie", "c=d") })
	failIf(t, a.StatusCode != 200 || asked.URL.RawQuery != "x=1%262" || asked.Header.Get("Cookie") != "", "got %d, and it was asked %s with %v", a.StatusCode, asked.URL, asked.Header)
	failIf(t, len(a.Header["Set-Cookie"]) > 0 || len(a.Header["Content-Security-Policy"]) != 1 || !strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "default-src"), "its headers are %v", a.Header)

	// A 404 would mean that the sprite is gone, and a 401 that the caller's own token is
	// wrong.
	_, err = c.At("nowhere").Get(t.Context(), "paint")
	wantError(t, err, 409, "no_backend")
	status = http.StatusUnauthorized
	_, err = c.At("far").Get(t.Context(), "paint")
	wantError(t, err, 502, "backend_refused")
	far.Close()
	_, err = c.At("far").Get(t.Context(), "paint")
	wantError(t, err, 502, "backend_unreachable")

	for name, body := range map[string]string{
		"A": `{"url":"http://x"}`, "b": `{"url":"ftp://x"}`, "c": `{"url":"http://u@x"}`, "d": `{"url":"http://x","token":"a b"}`, "e": `{"url":"` + secret, "f": `{}`,
	} {
		a := ask(t, s, "PUT /v1/backends/"+name, body)
		failIf(t, a.StatusCode != 400 || strings.Contains(string(a.body), secret), "%s: %d %s", body, a.StatusCode, a.body)
	}
	tok := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	for _, what := range []string{"GET /v1/backends", "PUT /v1/backends/far", "DELETE /v1/backends/far", "GET /v1/backends/far/v1/sprites"} {
		ask(t, s, what, "{}", tok).refused(t, 403, "forbidden")
	}
	ask(t, s, "POST /v1/jobs", `{"backend":"far"}`, tok).refused(t, 501, "not_available")

	// A backend with jobs can't be deleted, or moved to another address.
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: "abcdef", State: cove.JobRunning, JobSettings: cove.JobSettings{Backend: "far", Sprite: "ci-1"}}, nil))
	wantError(t, c.DeleteBackend(t.Context(), "far"), 409, "backend_in_use")
	wantError(t, c.PutBackend(t.Context(), "far", cove.BackendRequest{URL: "http://127.0.0.1:1", Token: secret}), 409, "backend_in_use")
	must(t, c.PutBackend(t.Context(), "far", cove.BackendRequest{URL: far.URL + "/under", Token: secret + "2"}))
	// They are not those of sprites here.
	ask(t, s, "GET /v1/jobs/abcdef", "", bearer(token(t, s, cove.TokenScope{Prefix: "ci-"}, "read"))).refused(t, 404, "not_found")
	s.Create("ci-1")
	must(t, c.Delete(t.Context(), "ci-1", sprites.DeleteOptions{}))
	must(t, s.Store.Jobs.Delete(t.Context(), "abcdef"))
	must(t, c.DeleteBackend(t.Context(), "far"))
	failIf(t, strings.Contains(log.String(), secret), "the log has the token")
}
