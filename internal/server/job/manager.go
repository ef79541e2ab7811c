// Package job is the server's half of jobs. It makes a job's sprite, starts
// the supervisor in it, copies the supervisor's log into the store, and judges
// how the job ended. The work itself goes on in the sprite whether or not a
// server runs. A server that starts takes up where the store ends.
//
// Manager has the calls of clients. Each part of the work is a type, with the state and the
// lock that it needs, in a file of its name:
//
//	intake         decides which requests become jobs (check.go, model.go, mcp.go)
//	steps          notes how far the preparation of jobs is
//	turns          lets as many jobs of a profile work at once as that says
//	installs       installs agents for jobs to share
//	patience       tries calls to backends again
//	preparations   knows which jobs are being prepared
//	preparer       prepares them: installs the agent, makes the sprite, queues the job
//	cleanups       runs the cleanup scripts of jobs before their sprites are deleted
//	jobSprites     gives jobs their environments, and hands these on (package environment)
//	connectors     grants connectors to jobs
//	starter        starts a job whose repository is there
//	differ         asks the sprites of jobs what these have changed (diff.go)
//	supervisors    asks things of the supervisors in the sprites
//	followers      copies the logs of running jobs (follow.go), and ends jobs in time (ending.go)
//	publisher      pushes what jobs have made to the servers of their repositories
//	finisher       records how jobs end (judge.go)
//	withdrawals    take the settings of jobs that have ended out of their sprites
//	collector      removes jobs, with their sprites
//	janitor        does each minute what no client asks for
//
// build (manager.go) says which of them knows which.
package job

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/environment"
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

	// NamesOnly turns a policy into rules that every server of the protocol knows. If those
	// would let through what the policy does not, it returns an error. Nil: jobs at backends
	// have no policies.
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
	preparer     *preparer
	collector    *collector
	janitor      *janitor

	cancel context.CancelFunc
	locks  keylock.Mutex // a job is started, stopped, deleted one at a time
	alone  keylock.Mutex // the request of a key is carried out, and work goes on in a clone, one at a time
}

// Resume takes up the jobs that an earlier server left, and begins to look after
// them. The server of Client need not serve yet.
func (m *Manager) Resume(ctx context.Context) error {
	if m.Logger == nil {
		m.Logger = slog.New(slog.DiscardHandler)
	}
	m.DefaultTimeout = cmp.Or(m.DefaultTimeout, time.Hour)
	m.Lease = cmp.Or(m.Lease, time.Hour)
	installation, err := m.Store.Settings.Once(ctx, installationSetting, randomID(4))
	if err != nil {
		return fmt.Errorf("take up the jobs: %w", err)
	}
	if err := os.RemoveAll(m.reviews()); err != nil {
		m.Logger.Warn("removing what reviews have left", "err", err)
	}
	m.build(installation)
	all, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel = cancel
	m.followers.Start(all)
	m.installs.Start(all)
	m.preparations.Start(all)
	m.jobSprites.environments.Start(all)

	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{States: []cove.JobState{
		cove.JobPreparing, cove.JobRunning, cove.JobWaiting,
	}})
	if err != nil {
		return fmt.Errorf("take up the jobs: %w", err)
	}
	for _, job := range jobs {
		m.followers.follow(job.ID)
	}
	m.finisher.publisher.Start(all)
	m.janitor.Start(all)
	return nil
}

// reviews is a folder on disk for objects of reviews. A server that was killed may have left files there.
func (m *Manager) reviews() string { return filepath.Join(m.Store.Folder(), "reviews") }

// build makes what the manager consists of. Each part knows those above it only.
func (m *Manager) build(installation string) {
	jobs, client, logger := m.Store.Jobs, m.Client, m.Logger
	steps, patience := &steps{jobs: jobs, logger: logger}, &patience{}
	turns := newTurns(m.Store)
	m.connectors = &connectors{store: m.Store.Connectors, client: client, logger: logger}
	m.intake = &intake{connectors: m.connectors, secrets: m.Store.Secrets, client: client, namesOnly: m.NamesOnly}
	m.installs = &installs{store: m.Store, client: client, installer: m.Installer, logger: logger}
	environments := &environment.Keeper{Store: m.Store.Environments, Client: client, Installation: installation, Retry: patience.try, Logger: logger}
	clean := &cleanups{jobs: jobs, secrets: m.Store.Secrets, logger: logger}
	clean.attach = func(ctx context.Context, env cove.Environment) (*sprites.Sprite, error) {
		return environments.At(env.Backend).Attach(ctx, env)
	}
	environments.Before = clean.before
	m.jobSprites = &jobSprites{jobs: jobs, client: client, environments: environments, steps: steps, patience: patience, differ: newDiffer(client, m.installs, m.reviews(), logger), lease: m.Lease}
	m.supervisors = &supervisors{jobs: jobs, client: client, logger: logger}
	publisher := &publisher{jobs: jobs, secrets: m.Store.Secrets, client: client, connectors: m.connectors, installs: m.installs, jobSprites: m.jobSprites, locks: &m.locks, logger: logger, wake: make(chan struct{}, 1)}
	m.finisher = &finisher{jobs: jobs, connectors: m.connectors, jobSprites: m.jobSprites, supervisors: m.supervisors, turns: turns, publisher: publisher, withdrawals: &withdrawals{jobs: jobs, client: client, supervisors: m.supervisors, logger: logger}}
	m.followers = &followers{
		jobs: jobs, client: client, supervisors: m.supervisors, finisher: m.finisher, locks: &m.locks, logger: logger,
		limits: endLimits{cmp.Or(m.Grace, stopGrace), cmp.Or(m.CollectLimit, collectLimit)},
	}
	environments.Supervisor = m.followers.signal
	m.starter = &starter{
		jobs: jobs, secrets: m.Store.Secrets, client: client, steps: steps, patience: patience, connectors: m.connectors, supervisors: m.supervisors, finisher: m.finisher, followers: m.followers,
	}
	m.preparations = &preparations{locks: &m.locks}
	m.preparer = &preparer{
		store: m.Store, client: client, installs: m.installs, steps: steps, turns: turns, jobSprites: m.jobSprites, finisher: m.finisher, starter: m.starter,
		preparations: m.preparations, locks: &m.locks, logger: logger,
	}
	m.collector = &collector{
		jobs: jobs, client: client, connectors: m.connectors, installs: m.installs, jobSprites: m.jobSprites, preparations: m.preparations,
		turns: turns, withdrawals: m.finisher.withdrawals, locks: &m.locks,
	}
	m.janitor = &janitor{
		jobs: jobs, client: client, installs: m.installs, jobSprites: m.jobSprites, finisher: m.finisher, preparer: m.preparer, collector: m.collector,
		turns: turns, stop: func(ctx context.Context, id string, note func(*cove.Job) error) (cove.Job, error) {
			return stopJob(ctx, m, id, note)
		}, locks: &m.locks, lease: m.Lease, keep: m.Keep, since: time.Now(), logger: logger,
	}
}

// Close stops looking after the jobs, and waits. They go on.
func (m *Manager) Close() error {
	if m.cancel == nil {
		return nil // it never began
	}
	m.cancel() // for all at once: some wait for others
	m.janitor.Close()
	m.finisher.publisher.Close()
	m.preparations.Close()
	m.installs.Close()
	m.followers.Close()
	m.jobSprites.environments.Close()
	return nil
}
