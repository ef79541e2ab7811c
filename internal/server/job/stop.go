package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// stopWait is how long Stop waits for the end that it asked for.
const stopWait = 30 * time.Second

// Stop asks a job to end: its agent is stopped and what it has done is collected.
// It waits for that for a while, and returns the job as it then is. One that has
// ended is left alone. One whose sprite is held is Stopping afterwards, and nothing of
// it runs; it ends when its sprite may run.
func (m *Manager) Stop(ctx context.Context, id string) (cove.Job, error) {
	if err := m.halt(ctx, id); err != nil {
		return cove.Job{}, err
	}
	unlock, err := m.locks.lock(ctx, id)
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
		if err := m.abandon(ctx, job, "stopped on request"); err != nil {
			return job, err
		}
		return m.Store.Jobs.Get(ctx, id)
	}
	// From here on the job will end, by force if need be, and whatever becomes of this server.
	if err := m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error { j.Stopping = true; return nil }); err != nil {
		return job, err
	}
	err = m.tell(ctx, job)
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

// tell tells a job's supervisor to stop. If there is none any more, or no sprite, the
// follower finds that out by itself. It is no error that nobody answers in time: the job is
// ended by force then.
func (m *Manager) tell(ctx context.Context, job cove.Job) error {
	asked := ctx
	ctx, end := context.WithTimeout(ctx, tellLimit)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var out []byte
	cmd, err := m.command(ctx, job, "stop")
	if err == nil {
		cmd.OnMessage = func(msg sprites.Message) {
			if msg.Type == sprites.MessageHeld && msg.Held != nil { // by now: no answer comes
				cancel(&sprites.Error{ErrorBody: sprites.ErrorBody{Code: msg.Held.Code, Message: msg.Held.Message, Hint: msg.Held.Hint}})
			}
		}
		if out, err = cmd.CombinedOutput(); heldError(context.Cause(ctx)) != nil {
			err = context.Cause(ctx)
		}
	}
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		if exit.Code == exitDead {
			return nil
		}
		return fmt.Errorf("exit %d: %.500s", exit.Code, out)
	}
	late := errors.Is(context.Cause(ctx), context.DeadlineExceeded) && asked.Err() == nil
	if errors.Is(err, sprites.ErrNotFound) || late {
		return nil
	}
	return err
}

// stopHeld ends a job whose sprite is held, so that nobody can be told inside, and reports
// whether the sprite still is. A sandbox in which nothing else was begun ends, without
// anything in it running on: the follower collects the job when another may start. Else
// the follower tells the supervisor when the sprite goes on.
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
	own, err := m.owned(ctx, job)
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

// abandon ends a job that never began, with the sprite that was made for it.
func (m *Manager) abandon(ctx context.Context, job cove.Job, why string) error {
	outcome := cove.Outcome{Kind: agents.Cancelled, Reason: why, ExitCode: -1}
	won, err := m.finish(ctx, job.ID, cove.JobCancelled, outcome, func(j *cove.Job) { j.Error, j.Upload = why, "" })
	if err != nil || !won {
		return err
	}
	_, err = m.removeSprite(ctx, job)
	return err
}

// Delete forgets a job, and deletes the sprite that was made for it, unless another
// job needs that. Without
// force it refuses while the job runs, and where its commits are nowhere else.
func (m *Manager) Delete(ctx context.Context, id string, force bool) error {
	return m.remove(ctx, id, force, true)
}

// remove is Delete. Where the job worked in a sprite that is not its own, its files
// there go too if everywhere is set.
func (m *Manager) remove(ctx context.Context, id string, force, everywhere bool) error {
	if force {
		if err := m.halt(ctx, id); err != nil {
			return err
		}
	} else if m.underPreparation(id) != nil {
		return fail.Newf("job_running", "stop it with: cove job stop "+id, "the agent of job %s is being installed", id)
	}
	unlock, err := m.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	running := !job.State.Terminal()
	switch {
	case force:
	case running && job.Stopping && job.Held != nil:
		return fail.Newf("job_running", job.Held.Hint+"; or lose its work with --force", "the work of job %s is not collected yet: %s", id, job.Held.Message)
	case running:
		return fail.Newf("job_running", "stop it with: cove job stop "+id, "job %s is at work (%s)", id, job.State)
	case job.Bundle.Size > 0 && job.PulledAt == nil:
		return fail.Newf("unpulled_work", fmt.Sprintf("pull it with: cove pull %s; or lose it with --force", id), "nobody has pulled the work of job %s", id)
	}
	if !force {
		alone, err := holdsAlone(ctx, m, job, everywhere)
		if err != nil {
			return err
		}
		if alone {
			return fail.Newf("uncollected_work", fmt.Sprintf("copy it out: cove sync pull -s %s %s ./job-%s; or lose it: cove job rm --force %s", job.Sprite, job.Workdir, id, id),
				"not all that job %s left could be collected, and its sprite %s alone has it: %s", id, job.Sprite, job.Uncollected)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	m.revoke(ctx, id)
	if job.OwnsSprite || everywhere {
		if err := m.clear(ctx, job, running); err != nil {
			return fmt.Errorf("delete job %s: %w", id, err)
		}
	}
	return m.Store.Jobs.Delete(ctx, id)
}

// holdsAlone reports whether the files that go with a job are the only copy of something
// that could not be collected.
func holdsAlone(ctx context.Context, m *Manager, job cove.Job, everywhere bool) (bool, error) {
	if job.Uncollected == "" || !job.OwnsSprite && !everywhere {
		return false, nil
	}
	info, err := m.Client.At(job.Backend).Get(ctx, job.Sprite)
	if errors.Is(err, sprites.ErrNotFound) {
		return false, nil
	}
	return err == nil && (job.SpriteID == "" || info.ID == job.SpriteID), err
}

// clear removes what a job has in its sprite, or the sprite.
func (m *Manager) clear(ctx context.Context, job cove.Job, running bool) error {
	if gone, err := m.removeSprite(ctx, job); gone || err != nil {
		return err
	}
	sprite := m.sprite(job)
	if running && job.Session != "" {
		_, err := sprite.Kill(ctx, job.Session, sprites.SIGKILL, time.Second)
		if err != nil && !errors.Is(err, sprites.ErrGone) && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
	}
	folders := []string{dir(job.ID)}
	if used, err := m.cloneUsed(ctx, job); err != nil {
		return err
	} else if !used {
		folders = append(folders, path.Dir(workdir(job.ID, job.Repository)))
	}
	for _, name := range folders {
		err := sprite.Remove(ctx, name, true)
		if err != nil && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
	}
	return nil
}

// Pulled notes that a job's commits have arrived where they belong, and deletes
// its sprite if that was asked for with the job.
func (m *Manager) Pulled(ctx context.Context, id, head string) (cove.Job, error) {
	unlock, err := m.lockJob(ctx, id)
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
		if j.PulledAt == nil {
			now := time.Now().UTC()
			j.PulledAt = &now
		}
		return nil
	})
	if err != nil {
		return job, err
	}
	if job.Remove && job.Uncollected == "" {
		if _, err := m.removeSprite(ctx, job); err != nil {
			return job, fmt.Errorf("delete the sprite of job %s, which has been pulled: %w", id, err)
		}
	}
	return m.Store.Jobs.Get(ctx, id)
}
