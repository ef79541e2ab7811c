// Package job is the server's half of jobs: it makes the sprite for one, starts
// the supervisor in it, copies the supervisor's log into the store, and judges
// how it ended. The work itself goes on in the sprite whether or not a server
// runs; a server that starts takes up where the store ends.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Manager looks after all jobs of a server. Set the exported fields before
// Resume. Its methods may be called from any goroutine.
type Manager struct {
	Store          *store.Store  // required
	Client         *cove.Client  // of the server's own; required
	Logger         *slog.Logger  // nil: discard
	DefaultTimeout time.Duration // running time of an agent; 0: an hour
	Keep           time.Duration // how long jobs that nobody needs any more are kept; 0: for ever
	Lease          time.Duration // how long a job may wait for its repository; 0: an hour
	Grace          time.Duration // from a stop, or a job's limit, until it is ended by force; 0: a minute
	CollectLimit   time.Duration // of collecting a job's work; 0: ten minutes

	// NamesOnly says a policy in rules that every server of the protocol knows, and
	// is an error where that would let through what it does not. Nil: jobs at
	// backends have no policies.
	NamesOnly func(context.Context, sprites.NetworkPolicy) (sprites.NetworkPolicy, error)

	// Installer keeps what installing agents has left. Nil: each sprite has an
	// installation of its own.
	Installer Installer

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	since  time.Time   // of Resume
	based  atomic.Bool // the base of disks was there when it was asked for
	locks  keyedMutex  // a job is started, stopped, deleted one at a time

	mu        sync.Mutex
	closed    bool
	following map[string]bool    // by job ID
	building  map[string]bool    // the sprites in which agents are being installed
	failed    map[string]failure // of installations, by key

	preparing  map[string]*preparation  // by job ID
	installing map[string]*installation // by key
}

// janitorInterval is how often jobs are looked for whose repository never came.
const janitorInterval = time.Minute

// Resume takes up the jobs that an earlier server left, and begins to look after
// them. The server of Client need not serve yet.
func (m *Manager) Resume(ctx context.Context) error {
	if m.Logger == nil {
		m.Logger = slog.New(slog.DiscardHandler)
	}
	m.DefaultTimeout = cmp.Or(m.DefaultTimeout, time.Hour)
	m.Lease = cmp.Or(m.Lease, time.Hour)
	m.since = time.Now()
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.following, m.building = map[string]bool{}, map[string]bool{}
	m.failed = map[string]failure{}
	m.preparing, m.installing = map[string]*preparation{}, map[string]*installation{}
	m.locks.init()

	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []cove.JobState{
		cove.JobPreparing, cove.JobRunning, cove.JobWaiting,
	}})
	if err != nil {
		return fmt.Errorf("take up the jobs: %w", err)
	}
	for _, job := range jobs {
		m.follow(job.ID)
	}
	m.wg.Go(m.janitor)
	return nil
}

// Close stops looking after the jobs, and waits. They go on.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	if m.cancel != nil {
		m.cancel()
	}
	m.wg.Wait()
	return nil
}

// janitor takes up the jobs that were being prepared, ends jobs whose repository never
// came, with their sprites, and removes what nobody needs any more.
func (m *Manager) janitor() {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	var swept time.Time
	for {
		if err := m.takeUp(m.ctx); err != nil && m.ctx.Err() == nil {
			m.Logger.Error("preparing the jobs that were being prepared", "err", err)
		}
		if now := time.Now(); now.Sub(swept) >= sweepInterval {
			swept = now
			if err := m.sweep(m.ctx); err != nil && m.ctx.Err() == nil {
				m.Logger.Error("removing old jobs", "err", err)
			}
		}
		if err := m.clearInstalls(m.ctx); err != nil && m.ctx.Err() == nil {
			m.Logger.Error("removing what installations of agents have left", "err", err)
		}
		if err := m.expire(m.ctx, time.Now()); err != nil && m.ctx.Err() == nil {
			m.Logger.Error("ending jobs whose repository never came", "err", err)
		}
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
	}
}

func (m *Manager) expire(ctx context.Context, now time.Time) error {
	queued, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []cove.JobState{cove.JobQueued}})
	if err != nil {
		return err
	}
	var errs []error
	for _, job := range queued {
		since := job.CreatedAt
		if job.ReadyAt != nil {
			since = *job.ReadyAt
		}
		cut, err := pushCut(ctx, m, job, since, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
			continue
		}
		if !cut && now.Sub(since) < m.Lease {
			continue
		}
		unlock, err := m.locks.lock(ctx, job.ID)
		if err != nil {
			return err
		}
		job, err = m.Store.Jobs.Get(ctx, job.ID)
		switch {
		case err != nil || job.State != cove.JobQueued:
		case cut:
			err = m.giveUp(ctx, job, errPushCut)
		default:
			err = m.abandon(ctx, job, fmt.Sprintf("its repository did not arrive within %v", m.Lease))
		}
		unlock()
		if err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
		}
	}
	return errors.Join(errs...)
}

// pushPatience is how long a push has after a start of the server to go on with what it
// began at the one before.
const pushPatience = 2 * time.Minute

var errPushCut = errors.New("the server ended while its repository was on its way")

// pushCut reports whether nobody is at work on a queued job any more: it was queued by an
// earlier server, and nobody uses its sprite. What a backend's sprite is used for can't be told.
func pushCut(ctx context.Context, m *Manager, job cove.Job, since, now time.Time) (bool, error) {
	switch {
	case job.Backend != "" || !since.Before(m.since):
		return false, nil
	case job.RetryOf != "" || job.ResumeOf != "": // the server itself was to bring it
		return true, nil
	case now.Sub(m.since) < pushPatience:
		return false, nil
	}
	info, err := m.Client.Get(ctx, job.Sprite)
	if errors.Is(err, sprites.ErrNotFound) {
		return true, nil
	}
	return err == nil && (info.Cove == nil || len(info.Cove.AwakeBy) == 0), err
}

// keyedMutex is a mutex for each key.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is free again
}

func (k *keyedMutex) init() { k.held = map[string]chan struct{}{} }

func (k *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		busy := k.held[key]
		if busy == nil {
			free := make(chan struct{})
			k.held[key] = free
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(free)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
