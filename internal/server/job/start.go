package job

import (
	"context"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

const (
	agentGrace = 10 * time.Second
	startLimit = 2 * time.Minute
	undoLimit  = time.Minute
)

// Start starts the supervisor of a job whose bundle is in place. A job that has
// been started already is left alone.
func (m *Manager) Start(ctx context.Context, id string, req cove.JobStart) (cove.Job, error) {
	empty := req.BundleSHA256 == "" && req.BundleSize == 0 && req.LargeBytes == 0 && len(req.Shallow) == 0
	if !empty && (!sha256ID().MatchString(req.BundleSHA256) || req.BundleSize <= 0 || req.LargeBytes < 0) {
		return cove.Job{}, fail.Newf("bad_request", "", "the bundle's size and sha256 must be given")
	}
	if len(req.Shallow) > maxShallow {
		return cove.Job{}, fail.Newf("bad_request", "push the whole history, or a shorter one: --depth 1", "a history is cut off at %d commits; the limit is %d", len(req.Shallow), maxShallow)
	}
	for _, commit := range req.Shallow {
		if !commitID().MatchString(commit) {
			return cove.Job{}, fail.Newf("bad_request", "", "%.80q is not a commit to cut a history off at", commit)
		}
	}
	unlock, err := m.preparations.lockJob(ctx, id)
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return job, err
	}
	switch {
	case job.State.Terminal():
		return job, fail.Newf("job_ended", "push again", "job %s has ended: %s", id, job.State)
	case job.State == cove.JobInstalling:
		return job, stillInstalling(id)
	case job.State != cove.JobQueued:
		return job, nil
	case empty && job.URL == "":
		return job, fail.Newf("bad_request", "", "the bundle's size and sha256 must be given")
	case !empty && job.URL != "":
		return job, fail.Newf("bad_request", "", "job %s clones %s, and takes no bundle", id, job.URL)
	}
	return m.starter.begin(ctx, job, req)
}
