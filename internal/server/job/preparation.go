package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A job whose agent has to be installed first has its row before that: installing. A
// preparation then installs the agent, makes the sprite, and queues the job.

// preparation is what makes one installing job queued. It holds the job's lock.
type preparation struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // why the job is not queued; set before done is closed
}

// errHalted says that somebody who ends the job has ended its preparation.
var errHalted = errors.New("the job was ended while its agent was being installed")

// newPreparation notes that a job is being prepared. The caller ends that with prepared.
func (m *Manager) newPreparation(id string) (*preparation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errors.New("the server ends")
	}
	if m.preparing[id] != nil {
		return nil, fmt.Errorf("job %s is being prepared: %w", id, store.ErrExists)
	}
	p := &preparation{done: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancelCause(m.ctx)
	m.preparing[id] = p
	m.wg.Add(1)
	return p, nil
}

// prepared says that a preparation is over.
func (m *Manager) prepared(id string, p *preparation, err error) {
	m.mu.Lock()
	delete(m.preparing, id)
	m.mu.Unlock()
	p.err = err
	p.cancel(nil)
	close(p.done)
	m.wg.Done()
}

// underPreparation is a job's preparation; nil: none is under way.
func (m *Manager) underPreparation(id string) *preparation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.preparing[id]
}

// halt ends a job's preparation, if one is under way, and waits until nothing more is
// done for it. The caller ends the job.
func (m *Manager) halt(ctx context.Context, id string) error {
	p := m.underPreparation(id)
	if p == nil {
		return nil
	}
	p.cancel(errHalted)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lockJob locks a job. It refuses one that is being prepared, which may take long.
func (m *Manager) lockJob(ctx context.Context, id string) (unlock func(), err error) {
	if m.underPreparation(id) != nil {
		return nil, stillInstalling(id)
	}
	return m.locks.lock(ctx, id)
}

func stillInstalling(id string) error {
	return fail.Newf("job_installing", "see how far that is: cove job show "+id, "the agent of job %s is still being installed", id)
}

// createInstalling makes the row of a job whose agent has to be installed first, and has
// the job prepared. If the caller did not ask for an early answer, it waits for that, and
// a job that can't be prepared, or that nobody waits for any more, is forgotten.
func (m *Manager) createInstalling(ctx context.Context, req cove.JobRequest, settings []byte, of made, w *wanted) (cove.Job, error) {
	job := m.row(req, of)
	job.State, job.Upload = cove.JobInstalling, ""
	job.Installing = &cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}
	switch _, err := m.Store.Sprites.Get(ctx, job.Sprite); {
	case err == nil:
		return job, fmt.Errorf("sprite %s: %w", job.Sprite, store.ErrExists)
	case !errors.Is(err, store.ErrNotFound):
		return job, err
	}
	p, err := m.newPreparation(job.ID)
	if err != nil {
		return job, err
	}
	if err := m.Store.Jobs.Create(ctx, job, settings); err != nil {
		m.prepared(job.ID, p, err)
		return job, err
	}
	go func() { m.prepared(job.ID, p, m.prepare(p.ctx, job, req, w)) }()
	if req.Early {
		return m.Store.Jobs.Get(ctx, job.ID)
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
		return m.Store.Jobs.Get(undo, job.ID)
	case errors.Is(err, errHalted):
		return job, fail.Newf("job_ended", "push again", "job %s: %v", job.ID, errHalted)
	case errors.Is(err, errLeft):
		return job, err // the janitor ends it
	default:
		return job, errors.Join(err, m.Store.Jobs.Delete(undo, job.ID))
	}
}

// prepare makes an installing job queued; or, if the job does another one again and
// nobody waits for it, starts it. A job that was asked for early and can't be prepared
// fails. One whose preparation was cancelled is left as it is.
func (m *Manager) prepare(ctx context.Context, job cove.Job, req cove.JobRequest, w *wanted) error {
	unlock, err := m.locks.lock(ctx, job.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if job, err = m.Store.Jobs.Get(ctx, job.ID); err != nil || job.State != cove.JobInstalling {
		return err
	}
	err = m.prepareLocked(ctx, job, req, w)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err != nil && req.Early {
		m.Logger.Warn("preparing a job", "job", job.ID, "err", err)
		return errors.Join(err, m.giveUp(m.ctx, job, err))
	}
	return err
}

func (m *Manager) prepareLocked(ctx context.Context, job cove.Job, req cove.JobRequest, w *wanted) error {
	there, err := m.owned(ctx, job) // another server had made its sprite
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !there {
		if job.Install, err = m.install(ctx, w, m.shower(ctx, job.ID)); err != nil {
			return err
		}
		err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			if j.Install = job.Install; j.Installing != nil {
				j.Installing.Command, j.Installing.Said = 0, ""
			}
			return nil
		})
		if err == nil {
			err = m.furnish(ctx, job, req)
		}
		if err != nil {
			return err
		}
		fault.Reach(fault.InstallUsed)
	}
	again := req.Early && job.RetryOf != ""
	err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		now := time.Now().UTC()
		j.Upload, j.ReadyAt = bundleIn(j.ID), &now
		if !again {
			j.State, j.Installing = cove.JobQueued, nil
		}
		job = *j
		return nil
	})
	if err != nil || !again {
		return err
	}
	old, free, err := m.finished(ctx, job.RetryOf)
	if err != nil {
		return err
	}
	defer free()
	start, err := m.carryAll(ctx, old, job)
	if err == nil {
		_, err = m.begin(ctx, job, start)
	}
	return err
}

// shower writes into a job's row how far its installation is, if that has changed.
func (m *Manager) shower(ctx context.Context, id string) func(cove.InstallProgress) {
	var last cove.InstallProgress
	return func(p cove.InstallProgress) {
		if p == last {
			return
		}
		last = p
		err := m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error {
			if j.State == cove.JobInstalling {
				j.Installing = &p
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			m.Logger.Error("noting how far an installation is", "job", id, "err", err)
		}
	}
}

// giveUp fails an installing job, whose lock is held, with what to type next.
func (m *Manager) giveUp(ctx context.Context, job cove.Job, why error) error {
	body := sprites.ErrorBody{Code: "prepare_failed", Message: why.Error()}
	if e, ok := errors.AsType[*sprites.Error](why); ok {
		body = e.ErrorBody
	} else if e, ok := errors.AsType[*fail.Error](why); ok {
		body.Code, body.Hint = e.Code, e.Hint
	}
	if body.Code == "name_taken" {
		body.Hint = "" // that sprite is somebody's
	}
	if body.Hint == "" {
		body.Hint = "push again"
		if job.RetryOf != "" {
			body.Hint = "cove job retry " + job.RetryOf
		}
	}
	outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: body.Message, ExitCode: 1}
	won, err := m.finish(ctx, job.ID, cove.JobFailed, outcome, func(j *cove.Job) {
		j.Error, j.Failure, j.Upload = body.Message, &body, ""
	})
	if err != nil || !won {
		return err
	}
	_, err = m.removeSprite(ctx, job)
	return err
}

// takeUp sees that each installing job is prepared: those that an earlier server left, and
// those whose preparation could not note its end. A job whose caller waited for the
// answer fails, since the caller is gone.
func (m *Manager) takeUp(ctx context.Context) error {
	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []cove.JobState{cove.JobInstalling}})
	errs := []error{err}
	for _, job := range jobs {
		if m.underPreparation(job.ID) == nil {
			errs = append(errs, m.takeUpJob(ctx, job))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) takeUpJob(ctx context.Context, job cove.Job) error {
	settings, err := m.Store.Jobs.Settings(ctx, job.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	var req cove.JobRequest
	if err == nil {
		err = json.Unmarshal(settings, &req)
	}
	if err != nil {
		return fmt.Errorf("read the settings of job %s: %w", job.ID, err)
	}
	p, err := m.newPreparation(job.ID)
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	go func() { m.prepared(job.ID, p, m.prepareAgain(p.ctx, job, req)) }()
	return nil
}

func (m *Manager) prepareAgain(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	agent, err := agentOf(req.Agent, req.Definition)
	var w *wanted
	if err == nil {
		w, err = m.shared(req, agent)
	}
	if err == nil && req.Early {
		if w != nil { // what the row says is of an installation that is no more
			m.shower(ctx, job.ID)(cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()})
		}
		return m.prepare(ctx, job, req, w)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = errors.New("the server ended while the agent was being installed")
	}
	unlock, lockErr := m.locks.lock(ctx, job.ID)
	if lockErr != nil {
		return lockErr
	}
	defer unlock()
	now, getErr := m.Store.Jobs.Get(ctx, job.ID)
	if getErr != nil || now.State != cove.JobInstalling {
		return getErr
	}
	return errors.Join(err, m.giveUp(ctx, now, err))
}
