package server_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestExecutorRequests: a test that makes no sense is refused, before anything is told; a token
// that it brings is in no log.
func TestExecutorRequests(t *testing.T) {
	var log bytes.Buffer
	s := covetest.Start(t, covetest.Options{Log: &log})
	for body, code := range map[string]string{
		`{"profile":"a","backend":"b"}`:                    sprite.CodeBadRequest,
		`{"token":"sesame-opens"}`:                         sprite.CodeBadRequest,
		`{"url":"ftp://host","token":"sesame-opens"}`:      sprite.CodeBadRequest,
		`{"url":"http://host","token":"sesame-opens two"}`: sprite.CodeBadRequest,
		`{"backend":"none"}`:                               "no_backend",
		`{"agent":"none"}`:                                 "no_agent",
		`{"tokens":"sesame-opens"}`:                        sprite.CodeBadRequest,
	} {
		a := ask(t, s, "POST /v1/executors/test", body)
		failIf(t, a.StatusCode < 400 || !strings.Contains(string(a.body), code) || strings.Contains(string(a.body), "sesame"), "%s: %d %s", body, a.StatusCode, a.body)
	}
	ask(t, s, "POST /v1/executors/test", `{"profile":"none"}`).refused(t, http.StatusNotFound, "no_profile")

	var states []cove.StepState
	over := 0
	err := cove.Executors{Client: s.Client()}.Test(t.Context(), cove.ExecutorTest{URL: s.URL, Token: "sesame-opens", Quick: true}, func(news cove.ExecutorNews) error {
		if news.Step != nil && news.Step.State.Ended() {
			states = append(states, news.Step.State)
		}
		if news.Over {
			over++
			failIf(t, news.OK || news.Sprite != "", "got %+v", news)
		}
		return nil
	})
	failIf(t, err != nil || over != 1 || len(states) != 3 || states[1] != cove.StepFailed || states[2] != cove.StepSkipped, "got %v, %d ends, %v", states, over, err)
	s.Stop()
	failIf(t, bytes.Contains(log.Bytes(), []byte("sesame")), "the log has the token: %s", log.Bytes())
}

// TestExecutorStatus: each executor is asked by itself, and one that can't be used says why.
// The names of other clients lead to the same calls.
func TestExecutorStatus(t *testing.T) {
	far := covetest.Start(t, covetest.Options{})
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	s := covetest.Start(t, covetest.Options{})
	for name, req := range map[string]cove.BackendRequest{"far": {URL: far.URL, Token: far.Token}, "gone": {URL: gone.URL, Token: "x"}, "locked": {URL: far.URL, Token: "x"}} {
		must(t, s.Client().PutBackend(t.Context(), name, req))
	}
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: "abcdef", State: cove.JobRunning, JobSettings: cove.JobSettings{Backend: "far", Sprite: "paint"}}, nil))
	list, err := cove.Executors{Client: s.Client()}.List(t.Context())
	must(t, err)
	failIf(t, len(list) != 4, "got %+v", list)
	for i, want := range []struct {
		name, url, code string
		jobs            int
	}{{}, {"far", far.URL, "", 1}, {"gone", gone.URL, "backend_unreachable", 0}, {"locked", far.URL, "backend_refused", 0}} {
		e, code := list[i], ""
		if e.Error != nil {
			code = e.Error.Code
			failIf(t, e.Error.Message == "" || e.Error.Hint == "", "got %+v", e.Error)
		}
		failIf(t, e.Backend != want.name || e.URL != want.url || e.Connected != (want.code == "") || code != want.code || e.Jobs != want.jobs || e.MS <= 0, "got %+v, want %+v", e, want)
	}
	same := ask(t, s, "GET /api/v1/sprites/status", "")
	failIf(t, same.StatusCode != 200 || !strings.Contains(string(same.body), `"backend":"locked"`), "got %d %s", same.StatusCode, same.body)
	ask(t, s, "POST /api/v1/sprites/test", `{"backend":"none"}`).refused(t, http.StatusConflict, "no_backend")
	quick := ask(t, s, "POST /api/v1/sprites/test", `{"quick":true}`)
	failIf(t, quick.StatusCode != 200 || !strings.Contains(string(quick.body), `"over":true,"ok":true`), "got %d %s", quick.StatusCode, quick.body)
	list1, list2 := ask(t, s, "GET /api/v1/sprites/instances", ""), ask(t, s, "GET /v1/environments", "")
	failIf(t, list1.StatusCode != 200 || !bytes.Equal(list1.body, list2.body), "got %d %s, want %s", list1.StatusCode, list1.body, list2.body)
	ask(t, s, "DELETE /api/v1/sprites/instances/none", "").refused(t, http.StatusNotFound, "not_found")
	ask(t, s, "POST /api/v1/sprites/instances/destroy", `{"ids":["none"]}`).refused(t, http.StatusNotFound, "not_found")
}
