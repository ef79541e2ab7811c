package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// TestJobUnknown: what is not known of a job, and what is still to be done for it, is said
// with what to do.
func TestJobUnknown(t *testing.T) {
	job := cove.Job{ID: "a1b2c3", State: cove.JobRunning}
	job.Unknown = &cove.JobUnknown{Message: "the backend far does not answer", Hint: "see what the matter is: cove ping --backend far"}
	job.SpriteRemoval = &cove.SpriteRemoval{Error: "out of order\x1b[2J"}
	var b strings.Builder
	printJob(&b, job, time.Now())
	for _, want := range []string{"running (unknown) (sprite not deleted yet)", "does not answer; see what the matter is: cove ping --backend far; since", "out of order"} {
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
