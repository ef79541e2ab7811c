package server_test

import (
	"bytes"
	"net/http"
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
