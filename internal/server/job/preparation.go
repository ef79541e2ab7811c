package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A job whose agent has to be installed first has its row before that: installing. A
// preparation then installs the agent, makes the sprite, and queues the job.

// preparations looks after the jobs that are being prepared: at most one preparation a job.
// Those that an earlier server left are taken up.
type preparations struct {
	store      *store.Store
	client     *sprites.Client
	installs   *installs
	jobSprites *jobSprites
	finisher   *finisher
	starter    *starter
	locks      *keyedMutex // of jobs
	logger     *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // of preparations

	mu       sync.Mutex
	underWay map[string]*preparation // by job ID; guarded by mu
}

// preparation is what makes one installing job queued. It holds the job's lock.
type preparation struct {
	id     string // of the job
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // why the job is not queued; set before done is closed
}

// Start lets preparations begin. They end with Close, or with ctx.
func (ps *preparations) Start(ctx context.Context) {
	ps.ctx, ps.cancel = context.WithCancel(ctx)
	ps.underWay = map[string]*preparation{}
}

// Close ends the preparations that are under way, and waits. No more begin. The next
// server takes up what they leave.
func (ps *preparations) Close() {
	ps.mu.Lock()
	ps.cancel()
	ps.mu.Unlock()
	ps.wg.Wait()
}

// errHalted says that somebody who ends the job has ended its preparation.
var errHalted = errors.New("the job was ended while its agent was being installed")

// reserve notes that a job is being prepared. The caller has it prepared by run, or ends
// that with over.
func (ps *preparations) reserve(id string) (*preparation, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.ctx.Err() != nil {
		return nil, errors.New("the server ends")
	}
	if ps.underWay[id] != nil {
		return nil, fmt.Errorf("job %s is being prepared: %w", id, store.ErrExists)
	}
	p := &preparation{id: id, done: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancelCause(ps.ctx)
	ps.underWay[id] = p
	ps.wg.Add(1)
	return p, nil
}

// run does a preparation's work, in the background.
func (ps *preparations) run(p *preparation, work func(context.Context) error) {
	go func() { ps.over(p, work(p.ctx)) }()
}

// over says that a preparation is over.
func (ps *preparations) over(p *preparation, err error) {
	ps.mu.Lock()
	delete(ps.underWay, p.id)
	ps.mu.Unlock()
	p.err = err
	p.cancel(nil)
	close(p.done)
	ps.wg.Done()
}

// of is a job's preparation; nil: none is under way.
func (ps *preparations) of(id string) *preparation {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.underWay[id]
}

// halt ends a job's preparation, if one is under way, and waits until nothing more is
// done for it. The caller ends the job.
func (ps *preparations) halt(ctx context.Context, id string) error {
	p := ps.of(id)
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
func (ps *preparations) lockJob(ctx context.Context, id string) (unlock func(), err error) {
	if ps.of(id) != nil {
		return nil, stillInstalling(id)
	}
	return ps.locks.lock(ctx, id)
}

func stillInstalling(id string) error {
	return fail.Newf("job_installing", "see how far that is: cove job show "+id, "the agent of job %s is still being installed", id)
}

// create makes the row of a job whose agent has to be installed first, and has
// the job prepared. If the caller did not ask for an early answer, it waits for that, and
// a job that can't be prepared, or that nobody waits for any more, is forgotten.
func (ps *preparations) create(ctx context.Context, job sprites.Job, req sprites.JobRequest, settings []byte, w *wanted) (sprites.Job, error) {
	job.State, job.Upload = sprites.JobInstalling, ""
	job.Installing = &sprites.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}
	switch _, err := ps.store.Sprites.Get(ctx, job.Sprite); {
	case err == nil:
		return job, fmt.Errorf("sprite %s: %w", job.Sprite, store.ErrExists)
	case !errors.Is(err, store.ErrNotFound):
		return job, err
	}
	p, err := ps.reserve(job.ID)
	if err != nil {
		return job, err
	}
	if err := ps.store.Jobs.Create(ctx, job, settings); err != nil {
		ps.over(p, err)
		return job, err
	}
	ps.run(p, func(ctx context.Context) error { return ps.prepare(ctx, job, req, w) })
	if req.Early {
		return ps.store.Jobs.Get(ctx, job.ID)
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
		return ps.store.Jobs.Get(undo, job.ID)
	case errors.Is(err, errHalted):
		return job, fail.Newf("job_ended", "push again", "job %s: %v", job.ID, errHalted)
	case errors.Is(err, errLeft):
		return job, err // the janitor ends it
	default:
		return job, errors.Join(err, ps.store.Jobs.Delete(undo, job.ID))
	}
}

// prepare makes an installing job queued; or, if the job does another one again and
// nobody waits for it, starts it. A job that was asked for early and can't be prepared
// fails. One whose preparation was cancelled is left as it is.
func (ps *preparations) prepare(ctx context.Context, job sprites.Job, req sprites.JobRequest, w *wanted) error {
	unlock, err := ps.locks.lock(ctx, job.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if job, err = ps.store.Jobs.Get(ctx, job.ID); err != nil || job.State != sprites.JobInstalling {
		return err
	}
	err = ps.prepareLocked(ctx, job, req, w)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err != nil && req.Early {
		ps.logger.Warn("preparing a job", "job", job.ID, "err", err)
		return errors.Join(err, ps.finisher.giveUp(ps.ctx, job, err))
	}
	return err
}

func (ps *preparations) prepareLocked(ctx context.Context, job sprites.Job, req sprites.JobRequest, w *wanted) error {
	there, err := ps.jobSprites.owned(ctx, job) // another server had made its sprite
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !there {
		if job.Install, err = ps.installs.install(ctx, w, ps.show(ctx, job.ID)); err != nil {
			return err
		}
		err = ps.store.Jobs.Update(ctx, job.ID, func(j *sprites.Job) error {
			if j.Install = job.Install; j.Installing != nil {
				j.Installing.Command, j.Installing.Said = 0, ""
			}
			return nil
		})
		if err == nil {
			err = ps.jobSprites.furnish(ctx, job, req)
		}
		if err != nil {
			return err
		}
		fault.Reach(fault.InstallUsed)
	}
	again := req.Early && job.RetryOf != ""
	err = ps.store.Jobs.Update(ctx, job.ID, func(j *sprites.Job) error {
		now := time.Now().UTC()
		j.Upload, j.ReadyAt = bundleIn(j.ID), &now
		if !again {
			j.State, j.Installing = sprites.JobQueued, nil
		}
		job = *j
		return nil
	})
	if err != nil || !again {
		return err
	}
	unlock, err := ps.lockJob(ctx, job.RetryOf)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := finished(ctx, ps.store.Jobs, job.RetryOf)
	if err != nil {
		return err
	}
	start, err := carryAll(ctx, ps.client, old, job)
	if err == nil {
		_, err = ps.starter.begin(ctx, job, start)
	}
	return err
}

// show writes into a job's row how far its installation is, if that has changed.
func (ps *preparations) show(ctx context.Context, id string) func(sprites.InstallProgress) {
	var last sprites.InstallProgress
	return func(p sprites.InstallProgress) {
		if p == last {
			return
		}
		last = p
		err := ps.store.Jobs.Update(ctx, id, func(j *sprites.Job) error {
			if j.State == sprites.JobInstalling {
				j.Installing = &p
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			ps.logger.Error("noting how far an installation is", "job", id, "err", err)
		}
	}
}

// takeUp sees that each installing job is prepared: those that an earlier server left, and
// those whose preparation could not note its end. A job whose caller waited for the
// answer fails, since the caller is gone.
func (ps *preparations) takeUp(ctx context.Context) error {
	jobs, err := ps.store.Jobs.List(ctx, store.JobFilter{States: []sprites.JobState{sprites.JobInstalling}})
	errs := []error{err}
	for _, job := range jobs {
		if ps.of(job.ID) == nil {
			errs = append(errs, ps.takeUpJob(ctx, job))
		}
	}
	return errors.Join(errs...)
}

func (ps *preparations) takeUpJob(ctx context.Context, job sprites.Job) error {
	settings, err := ps.store.Jobs.Settings(ctx, job.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	var req sprites.JobRequest
	if err == nil {
		err = json.Unmarshal(settings, &req)
	}
	if err != nil {
		return fmt.Errorf("read the settings of job %s: %w", job.ID, err)
	}
	p, err := ps.reserve(job.ID)
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	ps.run(p, func(ctx context.Context) error { return ps.prepareAgain(ctx, job, req) })
	return nil
}

func (ps *preparations) prepareAgain(ctx context.Context, job sprites.Job, req sprites.JobRequest) error {
	agent, err := agentOf(req.Agent, req.Definition)
	var w *wanted
	if err == nil {
		w, err = ps.installs.wants(req, agent)
	}
	if err == nil && req.Early {
		if w != nil { // what the row says is of an installation that is no more
			ps.show(ctx, job.ID)(sprites.InstallProgress{Agent: w.what(), Since: time.Now().UTC()})
		}
		return ps.prepare(ctx, job, req, w)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = errors.New("the server ended while the agent was being installed")
	}
	unlock, lockErr := ps.locks.lock(ctx, job.ID)
	if lockErr != nil {
		return lockErr
	}
	defer unlock()
	now, getErr := ps.store.Jobs.Get(ctx, job.ID)
	if getErr != nil || now.State != sprites.JobInstalling {
		return getErr
	}
	return errors.Join(err, ps.finisher.giveUp(ctx, now, err))
}
