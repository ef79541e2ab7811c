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
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Manager looks after all jobs of a server. Set the exported fields before
// Resume. Its methods may be called from any goroutine.
type Manager struct {
	Store          *store.Store    // required
	Client         *sprites.Client // of the server's own; required
	Logger         *slog.Logger    // nil: discard
	DefaultTimeout time.Duration   // running time of an agent; 0: an hour
	Keep           time.Duration   // how long jobs that nobody needs any more are kept; 0: for ever
	Lease          time.Duration   // how long a job may wait for its repository; 0: an hour
	Grace          time.Duration   // from a stop, or a job's limit, until it is ended by force; 0: a minute
	CollectLimit   time.Duration   // of collecting a job's work; 0: ten minutes

	// NamesOnly says a policy in rules that every server of the protocol knows, and
	// is an error where that would let through what it does not. Nil: jobs at
	// backends have no policies.
	NamesOnly func(context.Context, sprites.NetworkPolicy) (sprites.NetworkPolicy, error)

	// Installer keeps what installing agents has left. Nil: each sprite has an
	// installation of its own.
	Installer Installer

	connectors  *connectors
	intake      *intake
	installs    *installs
	jobSprites  *jobSprites
	supervisors *supervisors
	finisher    *finisher
	followers   *followers
	starter     *starter

	preparations *preparations

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	since  time.Time  // of Resume
	locks  keyedMutex // a job is started, stopped, deleted one at a time
	clones keyedMutex // an agent's work goes on in a clone one at a time

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
	m.connectors = &connectors{store: m.Store.Connectors, client: m.Client, logger: m.Logger}
	m.intake = &intake{connectors: m.connectors, client: m.Client, namesOnly: m.NamesOnly}
	m.installs = &installs{store: m.Store, client: m.Client, installer: m.Installer, logger: m.Logger}
	m.jobSprites = &jobSprites{jobs: m.Store.Jobs, rows: m.Store.Sprites, client: m.Client, lease: m.Lease}
	m.supervisors = &supervisors{jobs: m.Store.Jobs, client: m.Client, logger: m.Logger}
	m.finisher = &finisher{jobs: m.Store.Jobs, connectors: m.connectors, jobSprites: m.jobSprites}
	m.followers = &followers{
		jobs: m.Store.Jobs, client: m.Client, supervisors: m.supervisors, finisher: m.finisher, locks: &m.locks, logger: m.Logger,
		limits: endLimits{cmp.Or(m.Grace, stopGrace), cmp.Or(m.CollectLimit, collectLimit)},
	}
	m.starter = &starter{
		jobs: m.Store.Jobs, client: m.Client, connectors: m.connectors, supervisors: m.supervisors, finisher: m.finisher, followers: m.followers,
	}
	m.preparations = &preparations{
		store: m.Store, client: m.Client, installs: m.installs, jobSprites: m.jobSprites, finisher: m.finisher, starter: m.starter, locks: &m.locks, logger: m.Logger,
	}
	m.preparations.Start(m.ctx)
	m.followers.Start(m.ctx)
	m.installs.Start(m.ctx)

	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []sprites.JobState{
		sprites.JobPreparing, sprites.JobRunning, sprites.JobWaiting,
	}})
	if err != nil {
		return fmt.Errorf("take up the jobs: %w", err)
	}
	for _, job := range jobs {
		m.followers.follow(job.ID)
	}
	m.wg.Go(m.janitor)
	return nil
}

// Close stops looking after the jobs, and waits. They go on.
func (m *Manager) Close() error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	m.wg.Wait()
	m.preparations.Close()
	m.installs.Close()
	m.followers.Close()
	return nil
}

// janitor takes up the jobs that were being prepared, ends jobs whose repository never
// came, with their sprites, and removes what nobody needs any more.
func (m *Manager) janitor() {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	var swept time.Time
	for {
		if err := m.preparations.takeUp(m.ctx); err != nil && m.ctx.Err() == nil {
			m.Logger.Error("preparing the jobs that were being prepared", "err", err)
		}
		if now := time.Now(); now.Sub(swept) >= sweepInterval {
			swept = now
			if err := m.sweep(m.ctx); err != nil && m.ctx.Err() == nil {
				m.Logger.Error("removing old jobs", "err", err)
			}
		}
		if err := m.installs.clear(m.ctx); err != nil && m.ctx.Err() == nil {
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
	queued, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []sprites.JobState{sprites.JobQueued}})
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
		case err != nil || job.State != sprites.JobQueued:
		case cut:
			err = m.finisher.giveUp(ctx, job, errPushCut)
		default:
			err = m.finisher.abandon(ctx, job, fmt.Sprintf("its repository did not arrive within %v", m.Lease))
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
func pushCut(ctx context.Context, m *Manager, job sprites.Job, since, now time.Time) (bool, error) {
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
