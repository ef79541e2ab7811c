package job

import (
	"errors"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestPublished: only what succeeded is published. The result of a try is told within bounds; a
// failure is tried again, and a verdict is not.
func TestPublished(t *testing.T) {
	job := cove.Job{ID: "abc123", JobSettings: cove.JobSettings{Publish: cove.PublishBranch}, JobSource: cove.JobSource{Base: "a"}}
	end := cove.JobEnd{Head: "b"}
	p := begun(job, cove.JobSucceeded, end)
	if p == nil || p.State != cove.PublishPending || p.Branch != "cove/abc123" {
		t.Fatalf("got %+v", p)
	}
	if begun(job, cove.JobFailed, end) != nil || begun(job, cove.JobSucceeded, cove.JobEnd{}) != nil || begun(job, cove.JobSucceeded, cove.JobEnd{Head: "a"}) != nil {
		t.Error("a job that failed, or made nothing, is published")
	}
	if job.Publish = ""; begun(job, cove.JobSucceeded, end) != nil {
		t.Error("it is published, and nobody asked for that")
	}
	now := *p
	for range publishTries - 1 {
		if now = published(now, "b", cove.PublishVerdict{}, errors.New("away")); now.State != cove.PublishPending || now.Error != "away" {
			t.Fatalf("got %+v", now)
		}
	}
	if got := published(now, "b", cove.PublishVerdict{Pushed: true}, nil); got.State != cove.PublishDone || got.Commit != "b" || got.Error != "" || got.Ended == nil {
		t.Errorf("got %+v", got)
	}
	if got := published(now, "b", cove.PublishVerdict{}, errors.New("away")); got.State != cove.PublishFailed || got.Ended == nil {
		t.Errorf("got %+v", got)
	}
	long := strings.Repeat("x", 2*maxReason)
	lie := cove.PublishVerdict{Pushed: true, Refused: long}
	if got := published(*p, "b", lie, nil); got.State != cove.PublishFailed || got.Commit != "" || len(got.Error) > 2*maxReason-100 {
		t.Errorf("got %s, %d bytes", got.State, len(got.Error))
	}
	lie.Risky = make([]cove.RiskyFile, 10*maxRisky)
	lie.Risky[0] = cove.RiskyFile{Path: long, Why: long}
	if got := published(*p, "b", lie, nil); got.State != cove.PublishHeld || len(got.Risky) != maxRisky || len(got.Risky[0].Path) > 2*maxReason-100 {
		t.Errorf("got %s with %d files", got.State, len(got.Risky))
	}
	if got := published(*p, "b", cove.PublishVerdict{}, nil); got.State != cove.PublishFailed {
		t.Errorf("an empty verdict: got %+v", got)
	}
}

func TestTitleOf(t *testing.T) {
	for plan, want := range map[string]string{
		"\n# Update the *dependencies*\nx": "Update the *dependencies*", "```sh\ntrue\n```\n": "true", "": "Job x", "```\n": "Job x",
		strings.Repeat("é", 200): strings.Repeat("é", 100) + "…",
	} {
		if got := titleOf(plan, "Job x"); got != want {
			t.Errorf("%.20q: got %q", plan, got)
		}
	}
}
