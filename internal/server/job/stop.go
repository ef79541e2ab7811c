package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// stopWait is how long Stop waits for the end that it asked for.
const stopWait = 30 * time.Second

// Stop asks a job to end: its agent is stopped, and its work is collected. Stop waits for that
// for a while, and returns the job as it then is. It leaves a job alone that has ended. If the
// job's sprite is held, the job is Stopping afterwards, and nothing of it runs; it ends when
// its sprite may run.
func (m *Manager) Stop(ctx context.Context, id string) (cove.Job, error) {
	return stopJob(ctx, m, id, func(*cove.Job) error { return nil })
}

// stopJob is Stop. If a job that runs must not be stopped after all, the function note returns an
// error. It may note in the job why that is stopped.
func stopJob(ctx context.Context, m *Manager, id string, note func(*cove.Job) error) (cove.Job, error) {
	if err := m.preparations.halt(ctx, id); err != nil {
		return cove.Job{}, err
	}
	m.starter.halt(id)
	unlock, err := m.locks.Lock(ctx, id)
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	changed, stop := m.Store.Jobs.Watch(id)
	defer stop()
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil || job.State.Terminal() {
		return job, err
	}
	if job.State == cove.JobInstalling || job.State == cove.JobQueued {
		if err := m.finisher.abandon(ctx, job, "stopped on request"); err != nil {
			return job, err
		}
		return m.Store.Jobs.Get(ctx, id)
	}
	// From here on the job will end, by force if need be, and whatever becomes of this server.
	err = m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error {
		j.Stopping = true
		return note(j)
	})
	if err != nil {
		return job, err
	}
	err = m.supervisors.tell(context.WithoutCancel(ctx), job) // nobody else would, for a while
	if held := heldError(err); held != nil {
		var still bool
		if still, err = m.stopHeld(ctx, job, held); err == nil && still {
			return m.Store.Jobs.Get(ctx, id)
		}
	}
	if err != nil {
		return job, fmt.Errorf("stop job %s: %w", id, err)
	}
	limit := time.NewTimer(stopWait)
	defer limit.Stop()
	for {
		job, err := m.Store.Jobs.Get(ctx, id)
		if err != nil || job.State.Terminal() {
			return job, err
		}
		select {
		case <-changed:
		case <-limit.C:
			return job, nil
		case <-ctx.Done():
			return job, context.Cause(ctx)
		}
	}
}

// stopHeld ends a job whose sprite is held, so that nobody can be told inside, and reports
// whether the sprite still is. If the sprite was made for the job, and no other job works
// there, its sandbox ends, and nothing in it runs on. The follower collects the job when
// another sandbox may start. Else the follower tells the supervisor when the sprite goes on.
func (m *Manager) stopHeld(ctx context.Context, job cove.Job, held *sprites.Held) (still bool, err error) {
	err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		if j.Stopping = true; j.Held == nil {
			j.Held = held
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	own, err := m.jobSprites.owned(ctx, job)
	if err != nil || !own {
		return true, err
	}
	others, err := m.Store.Jobs.List(ctx, store.JobFilter{Backend: job.Backend, Sprite: job.Sprite})
	if err != nil || slices.ContainsFunc(others, func(j cove.Job) bool { return j.ID != job.ID && !j.State.Terminal() }) {
		return true, err
	}
	at := m.Client.At(job.Backend)
	if _, err := at.Restart(ctx, job.Sprite); err != nil {
		return false, err
	}
	info, err := at.Get(ctx, job.Sprite)
	return err == nil && info.Cove != nil && info.Cove.Held != nil, err
}

// Delete forgets a job, and deletes the sprite that was made for it, unless another
// job needs that. Without force it refuses while the job runs, or if its commits are nowhere
// else.
func (m *Manager) Delete(ctx context.Context, id string, force bool) error {
	return m.collector.remove(ctx, id, force, true)
}

// Pulled notes that a job's commits have arrived where they belong, and deletes
// its sprite if that was asked for with the job. A job that left nothing does not become pulled.
func (m *Manager) Pulled(ctx context.Context, id, head string) (cove.Job, error) {
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
	case !job.State.Terminal():
		return job, fail.Newf("job_running", "wait for it with: cove job wait "+id, "job %s has not ended (%s)", id, job.State)
	case head != cmp.Or(job.Head, job.Base):
		return job, fail.Newf("bad_request", "", "job %s ended at commit %s, not %.80q", id, cmp.Or(job.Head, job.Base), head)
	}
	err = m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error {
		if j.PulledAt == nil && j.Bundle.Size > 0 {
			now := time.Now().UTC()
			j.PulledAt = &now
		}
		job = *j
		return nil
	})
	if err != nil {
		return job, err
	}
	if publishing(job) { // which needs the sprite, and lets go of it then
		return job, nil
	}
	if job.Remove && job.Uncollected == "" {
		if n, err := m.jobSprites.needOf(ctx, job); err != nil || n.why != "" { // as a retry does
			return job, err
		}
		if err := m.jobSprites.discard(ctx, job, cove.DestroyPulled); err != nil {
			return job, fmt.Errorf("delete the sprite of job %s, which has been pulled: %w", id, err)
		}
	}
	return m.Store.Jobs.Get(ctx, id)
}

// Collect removes the jobs that have ended and that nobody needs any more, with the sprites
// that were made for them. It also removes such sprites if their job is gone and their lease
// is over. It touches no sprite of others: mine says whether a sprite is the caller's. The
// empty backend is this server.
func (m *Manager) Collect(ctx context.Context, req cove.JobGC, mine func(backend, sprite string) bool) (cove.JobGCResult, error) {
	return m.collector.collect(ctx, req, mine)
}
