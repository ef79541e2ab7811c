package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
)

// A job whose agent must be installed first has its row before that, with the state
// installing. A preparation then installs the agent, makes the sprite, and queues the job.

// preparer prepares such jobs. It takes up those that an earlier server left.
type preparer struct {
	store        *store.Store
	client       *cove.Client
	installs     *installs
	steps        *steps
	turns        *turns
	jobSprites   *jobSprites
	finisher     *finisher
	starter      *starter
	preparations *preparations
	locks        *keylock.Mutex // of jobs
	logger       *slog.Logger
}

// create makes the row of a job whose agent must be installed first, and has the job prepared.
// If the caller did not ask for an early answer, create waits until the job is prepared. Then
// a job that can't be prepared, or that nobody waits for any more, is forgotten.
func (pr *preparer) create(ctx context.Context, job cove.Job, req cove.JobRequest, settings []byte, w *wanted) (cove.Job, error) {
	job.State, job.Upload = cove.JobInstalling, ""
	job.Installing = &cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}
	switch _, err := pr.store.Sprites.Get(ctx, job.Sprite); {
	case err == nil:
		return job, fmt.Errorf("sprite %s: %w", job.Sprite, store.ErrExists)
	case !errors.Is(err, store.ErrNotFound):
		return job, err
	}
	p, err := pr.preparations.reserve(job.ID)
	if err != nil {
		return job, err
	}
	if err := keep(ctx, pr.store.Jobs, job, req, settings); err != nil {
		pr.preparations.over(p, err)
		return job, err
	}
	pr.preparations.run(p, func(ctx context.Context) error { return pr.prepare(ctx, job, req, w) })
	if req.Early {
		return pr.store.Jobs.Get(ctx, job.ID)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.cancel(context.Cause(ctx))
		<-p.done
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	switch err := p.err; {
	case err == nil: // if the caller is gone, it is the caller's to undo
		return pr.store.Jobs.Get(undo, job.ID)
	case errors.Is(err, errHalted):
		return job, fail.Newf("job_ended", "push again", "job %s: %v", job.ID, errHalted)
	case errors.Is(err, errLeft):
		return job, err // the janitor ends it
	default:
		defer pr.turns.over()
		return job, errors.Join(err, pr.store.Jobs.Delete(undo, job.ID))
	}
}

// prepare makes an installing job queued; or starts it, if it does another one again and nobody
// waits for it, or its request says so. A job that was asked for early and can't be prepared
// fails. A job whose preparation was cancelled is left as it is.
func (pr *preparer) prepare(ctx context.Context, job cove.Job, req cove.JobRequest, w *wanted) error {
	unlock, err := pr.locks.Lock(ctx, job.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if job, err = pr.store.Jobs.Get(ctx, job.ID); err != nil || job.State != cove.JobInstalling {
		return err
	}
	err = pr.prepareLocked(ctx, job, req, w)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err != nil && req.Early {
		pr.logger.Warn("preparing a job", append(about(job), "err", err)...)
		return errors.Join(err, pr.finisher.giveUp(pr.preparations.ctx, job, err))
	}
	return err
}

func (pr *preparer) prepareLocked(ctx context.Context, job cove.Job, req cove.JobRequest, w *wanted) error {
	var there bool // another server had made its sprite, with its policy; at a backend that is another call
	var err error
	if there, err = pr.jobSprites.there(ctx, job); err != nil {
		return err
	}
	if !there {
		if err := pr.turns.wait(ctx, job, pr.showPlace(ctx, job.ID)); err != nil {
			return err
		}
		if w != nil {
			pr.steps.begin(ctx, job.ID, cove.StepInstallAgent)
		}
		if job.Install, err = pr.installs.install(ctx, w, pr.show(ctx, job.ID)); err != nil {
			pr.steps.fail(ctx, job.ID, cove.StepInstallAgent, err)
			return err
		}
		pr.steps.installed(ctx, job)
		err = pr.store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			if j.Install = job.Install; j.Installing != nil {
				j.Installing.Command, j.Installing.Said = 0, ""
			}
			return nil
		})
		if err == nil {
			err = pr.jobSprites.furnish(ctx, job, req)
		}
		if err != nil {
			return err
		}
		fault.Reach(fault.InstallUsed)
	}
	again := req.Early && job.RetryOf != ""
	begins := again || req.Begin
	err = pr.store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		now := time.Now().UTC()
		j.Upload, j.ReadyAt = bundleIn(j.ID), &now
		if !begins {
			j.State, j.Installing = cove.JobQueued, nil
		}
		job = *j
		return nil
	})
	if err != nil {
		return err
	}
	pr.steps.begin(ctx, job.ID, cove.StepUploadRepository)
	switch {
	case !begins:
		return nil
	case !again || job.URL != "": // of a job with a URL, it needs nothing: it clones anew
		_, err = pr.starter.begin(ctx, job, cove.JobStart{})
		return err
	}
	unlock, err := pr.preparations.lockJob(ctx, job.RetryOf)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := finished(ctx, pr.store.Jobs, job.RetryOf)
	if err != nil {
		return err
	}
	start, err := carryAll(ctx, pr.client, old, job)
	if err == nil {
		_, err = pr.starter.begin(ctx, job, start)
	}
	if err != nil {
		return err
	}
	// The old job was pulled meanwhile, perhaps. A cleanup script must not hold up the new job.
	pr.preparations.wg.Go(func() { pr.letGo(pr.preparations.ctx, old) })
	return nil
}

// letGo deletes the sprite of a job that was done again, if nothing needs it any more.
func (pr *preparer) letGo(ctx context.Context, old cove.Job) {
	unlock, err := pr.locks.Lock(ctx, old.ID)
	if err == nil {
		defer unlock()
		err = pr.jobSprites.letGo(ctx, old.ID)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotFound) {
		pr.logger.Warn("deleting the sprite of a job that was done again", append(about(old), "err", err)...)
	}
}

// show writes into a job's row how far its installation is, if that has changed.
func (pr *preparer) show(ctx context.Context, id string) showInstall {
	var last cove.InstallProgress
	var printed int64
	return func(p cove.InstallProgress, out cove.StepOutput) {
		if n := out.Size(); n != printed {
			printed = n
			pr.steps.output(ctx, id, cove.StepInstallAgent, out)
		}
		if p == last {
			return
		}
		last = p
		err := pr.store.Jobs.Update(ctx, id, func(j *cove.Job) error {
			if j.State == cove.JobInstalling {
				j.Installing = &p
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			pr.logger.Error("noting how far an installation is", "job", id, "err", err)
		}
	}
}

// showPlace writes a job's place among the waiting jobs into its row.
func (pr *preparer) showPlace(ctx context.Context, id string) func(int) error {
	return func(place int) error {
		return pr.store.Jobs.Update(ctx, id, func(j *cove.Job) error { j.Place = place; return nil })
	}
}

// takeUp sees that each installing job is prepared: those that an earlier server left, and
// those whose preparation could not note its end. A job whose caller waited for the
// answer fails, since the caller is gone.
func (pr *preparer) takeUp(ctx context.Context) error {
	jobs, err := pr.store.Jobs.List(ctx, store.JobFilter{States: []cove.JobState{cove.JobInstalling}})
	errs := []error{err}
	for _, job := range jobs {
		if pr.preparations.of(job.ID) == nil {
			errs = append(errs, pr.takeUpJob(ctx, job))
		}
	}
	return errors.Join(errs...)
}

func (pr *preparer) takeUpJob(ctx context.Context, job cove.Job) error {
	req, err := settingsOf(ctx, pr.store.Jobs, job.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.Is(err, store.ErrForgotten), errors.Is(err, store.ErrDamaged): // it would hold up those that came after it
		return pr.finisher.giveUp(ctx, job, err)
	case err != nil:
		return err
	}
	p, err := pr.preparations.reserve(job.ID)
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	pr.preparations.run(p, func(ctx context.Context) error { return pr.prepareAgain(ctx, job, req) })
	return nil
}

func (pr *preparer) prepareAgain(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	agent, err := agentOf(req.Agent, req.Definition)
	var w *wanted
	if err == nil {
		w, err = pr.installs.wants(req, agent)
	}
	if err == nil && req.Early && job.Backend != "" {
		if env, getErr := pr.jobSprites.of(ctx, job.ID); getErr == nil && env.State == cove.EnvironmentDestroying {
			return nil // an earlier server began that: the job is taken up again when it is gone
		}
		if _, askErr := pr.jobSprites.owned(ctx, job); askErr != nil && unheard(askErr) {
			noteUnknown(ctx, pr.store.Jobs, job.ID, askErr)
			return askErr // it is taken up again
		}
		noteUnknown(ctx, pr.store.Jobs, job.ID, nil)
	}
	if err == nil && req.Early {
		if w != nil { // the row tells of an installation that is gone
			pr.show(ctx, job.ID)(cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}, cove.StepOutput{})
		}
		return pr.prepare(ctx, job, req, w)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = errors.New("the server ended while the agent was being installed")
	}
	unlock, lockErr := pr.locks.Lock(ctx, job.ID)
	if lockErr != nil {
		return lockErr
	}
	defer unlock()
	now, getErr := pr.store.Jobs.Get(ctx, job.ID)
	if getErr != nil || now.State != cove.JobInstalling {
		return getErr
	}
	return errors.Join(err, pr.finisher.giveUp(ctx, now, err))
}
