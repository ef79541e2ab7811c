package cli

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
)

// TestPulledOfLost: of a job that was lost, nobody says that it made nothing.
func TestPulledOfLost(t *testing.T) {
	for state, want := range map[cove.JobState]string{
		cove.JobLost:   "Nothing to pull: job a3f7b2 was lost before",
		cove.JobFailed: "No changes: job a3f7b2 (failed) made no commits.",
	} {
		var out strings.Builder
		printPulled(&out, push.Pulled{Job: "a3f7b2", State: state, Result: push.NoChanges})
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: got %q", state, out.String())
		}
	}
}
