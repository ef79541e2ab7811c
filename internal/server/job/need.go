package job

import (
	"context"
	"fmt"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

// need is why the server itself still needs what an ended job has in its sprite. The zero value:
// it does not.
type need struct {
	why  string
	hint string // how that ends
}

// needOf is the need for a job's commits, if they are still to be published, or for its
// repository. A retry that waits, for its turn or for its agent, has taken nothing yet. The
// caller holds the job's lock, if that must stay so: no retry begins meanwhile.
func (js *jobSprites) needOf(ctx context.Context, job cove.Job) (need, error) {
	if publishing(job) {
		return need{unpublished, "see how far that is: cove job show " + job.ID}, nil
	}
	if job.URL != "" {
		return need{}, nil // it is cloned again
	}
	retries, err := js.jobs.List(ctx, store.JobFilter{Of: job.ID, States: []cove.JobState{cove.JobInstalling}})
	for _, retry := range retries {
		if retry.RetryOf == job.ID {
			return need{fmt.Sprintf("job %s does it again, and has not taken its repository yet", retry.ID), "let that one begin, or stop it: cove job stop " + retry.ID}, err
		}
	}
	return need{}, err
}

const unpublished = "its commits are not published yet"

// refuse is the error for a removal. Lose is what to type for it all the same.
func (n need) refuse(job cove.Job, lose string) error {
	return fail.Newf("job_running", n.hint+"; or delete it all the same: "+lose, "job %s is still needed: %s", job.ID, n.why)
}

// letGo deletes a job's sprite if that was to go after a pull, the job has been pulled, and
// nothing needs the sprite any more. The caller holds the job's lock.
func (js *jobSprites) letGo(ctx context.Context, id string) error {
	job, err := js.jobs.Get(ctx, id)
	if err != nil || publishing(job) || !job.Remove || job.PulledAt == nil || job.Uncollected != "" {
		return err
	}
	if n, err := js.needOf(ctx, job); err != nil || n.why != "" {
		return err
	}
	return js.discard(ctx, job, cove.DestroyPulled)
}
