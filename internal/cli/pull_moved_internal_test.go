package cli

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
)

// TestPulledMoved: the output says that the branch was moved, even if an earlier pull brought
// the commits, and there is more to say.
func TestPulledMoved(t *testing.T) {
	p := push.Pulled{Job: "a3f7b2", State: cove.JobSucceeded, Result: push.FastForward, Branch: "main", Already: true, Messages: []string{"more"}}
	for _, p.Moved = range []bool{true, false} {
		var out strings.Builder
		printPulled(&out, p)
		if strings.Contains(out.String(), "Fast-forwarded main") != p.Moved {
			t.Errorf("moved: %v: got %q", p.Moved, out.String())
		}
	}
}

// TestPulledText: a job whose work is only in its sprite does not count as pulled.
func TestPulledText(t *testing.T) {
	now := cove.Job{}.CreatedAt
	for want, job := range map[string]cove.Job{
		"yes":    {JobResult: cove.JobResult{PulledAt: &now, Bundle: cove.Artifact{Size: 1}}},
		"partly": {JobResult: cove.JobResult{PulledAt: &now, Bundle: cove.Artifact{Size: 1}, Uncollected: "x"}},
		"no":     {JobResult: cove.JobResult{PulledAt: &now, Uncollected: "x"}},
	} {
		if got := pulledText(job); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
