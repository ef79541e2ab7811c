package job

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
)

// preparations knows which jobs are being prepared. A job has one preparation at most, and
// whoever ends the job ends that first.
type preparations struct {
	locks *keylock.Mutex // of jobs

	ctx    context.Context // for calls that halt does not cut off
	cancel context.CancelFunc
	wg     sync.WaitGroup // of preparations

	mu       sync.Mutex
	underWay map[string]*preparation // by job ID; guarded by mu
}

// preparation is the work of a preparer on one job, under the job's lock.
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

// reserve notes that a job is being prepared. The caller must call run or over then.
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

// run does a preparation's work in the background, and then says that it is over.
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
	return ps.locks.Lock(ctx, id)
}

// stillInstalling refuses what can't be done before a job is prepared.
func stillInstalling(id string) error {
	return fail.Newf("job_installing", "see its progress: cove job show "+id, "the agent of job %s is still being installed", id)
}
