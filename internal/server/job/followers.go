package job

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
)

// followers follows each job that runs. It copies the job's log into the store, and sees
// that the job ends in its time.
type followers struct {
	jobs        *store.Jobs
	client      *cove.Client
	supervisors *supervisors
	finisher    *finisher
	locks       *keylock.Mutex // of jobs
	limits      endLimits
	logger      *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	following map[string]*contact // by job ID; guarded by mu
}

// contact is the server's connection to the supervisor of a job that it follows.
type contact struct {
	place  string                // backend/sprite; empty: not read yet
	signal cove.SupervisorSignal // of the connection
}

// note notes how the connection to the supervisor of a job is.
func (fs *followers) note(job cove.Job, signal cove.SupervisorSignal) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if c := fs.following[job.ID]; c != nil {
		c.place, c.signal = job.Backend+"/"+job.Sprite, signal
	}
}

// notePlace notes the place of a job's sprite.
func (fs *followers) notePlace(job cove.Job) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if c := fs.following[job.ID]; c != nil {
		c.place = job.Backend + "/" + job.Sprite
	}
}

// signal says whether the supervisors of the jobs in an environment's sprite answer, by their
// connections. It returns the worst signal; empty: no job works there.
func (fs *followers) signal(env cove.Environment) (worst cove.SupervisorSignal) {
	rank := []cove.SupervisorSignal{"", cove.SupervisorAnswers, cove.SupervisorHeld, cove.SupervisorStarting, cove.SupervisorSilent}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, c := range fs.following {
		if c.place == env.Backend+"/"+env.Name && slices.Index(rank, c.signal) > slices.Index(rank, worst) {
			worst = c.signal
		}
	}
	return worst
}

// Start lets jobs be followed until Close, or until ctx ends.
func (fs *followers) Start(ctx context.Context) {
	fs.ctx, fs.cancel = context.WithCancel(ctx)
	fs.following = map[string]*contact{}
}

// Close stops following the jobs, and waits. They go on.
func (fs *followers) Close() {
	fs.mu.Lock()
	fs.cancel()
	fs.mu.Unlock()
	fs.wg.Wait()
}

// follow copies a job's log into the store, in the background, until its end.
func (fs *followers) follow(id string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.ctx.Err() != nil || fs.following[id] != nil {
		return
	}
	fs.following[id] = &contact{signal: cove.SupervisorStarting}
	fs.wg.Go(func() {
		f := follower{all: fs, id: id, ender: &ender{id: id, jobs: fs.jobs, limits: fs.limits, client: fs.client, logger: fs.logger}}
		ctx, cancel := context.WithCancel(fs.ctx)
		var wg sync.WaitGroup
		wg.Go(func() { f.ender.watch(ctx) })
		f.run(ctx)
		cancel()
		wg.Wait()
		fs.mu.Lock()
		delete(fs.following, id)
		fs.mu.Unlock()
	})
}
