package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestJobUnknown: job show says what is not known about a job and what must still be done for
// it, each with a hint.
func TestJobUnknown(t *testing.T) {
	job := cove.Job{ID: "a1b2c3", State: cove.JobRunning}
	job.Unknown = &cove.JobUnknown{Message: "the backend far does not answer", Hint: "check the connection: cove ping --backend far"}
	job.SpriteRemoval = &cove.SpriteRemoval{Error: "out of order\x1b[2J"}
	var b strings.Builder
	printJob(&b, job, time.Now())
	for _, want := range []string{"running (unknown) (sprite not deleted yet)", "does not answer; check the connection: cove ping --backend far; since", "out of order"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("it has a service's control characters: %q", b.String())
	}
	if text := waitingText(job, nil, time.Now()); !strings.Contains(text, "the backend far does not answer") {
		t.Errorf("waiting says %q", text)
	}
	job.State, job.SpriteRemoval = cove.JobLost, nil
	if text := jobStateText(job); text != "lost" {
		t.Errorf("an ended job is %q", text)
	}
}

// TestJobAround: job show names the jobs that retried or resumed a job, even if the server
// lists all jobs. For a job that resumed another, it shows what the agent was told.
func TestJobAround(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"jobs":[{"id":"00000d","resume_of":"00000c"},{"id":"00000c","resume_of":"00000b"},{"id":"00000b","retry_of":"00000a"}]}`)
	})
	mux.HandleFunc("GET /v1/jobs/{id}/plan", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"plan":"\nUse \u001b[2Jblue.\nAnd green."}`)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	c := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: "t"}}
	for id, want := range map[string]string{"00000a": "retried in:00000b", "00000b": "resumed in:00000c", "00000c": "resumed in:00000d"} {
		job := cove.Job{ID: id, State: cove.JobSucceeded}
		if id == "00000c" {
			job.ResumeOf = "00000b"
		}
		var b strings.Builder
		printJob(&b, job, time.Now(), around(t.Context(), c, job)...)
		text := strings.ReplaceAll(b.String(), " ", "")
		if !strings.Contains(text, strings.ReplaceAll(want, " ", "")) || strings.Contains(text, "told:Use") != (id == "00000c") || strings.ContainsAny(text, "\x1b") {
			t.Errorf("%s: %q is not in:\n%s", id, want, b.String())
		}
	}
}
