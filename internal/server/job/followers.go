package job

import (
	"context"
	"log/slog"
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
	following map[string]bool // by job ID; guarded by mu
}

// Start lets jobs be followed until Close, or until ctx ends.
func (fs *followers) Start(ctx context.Context) {
	fs.ctx, fs.cancel = context.WithCancel(ctx)
	fs.following = map[string]bool{}
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
	if fs.ctx.Err() != nil || fs.following[id] {
		return
	}
	fs.following[id] = true
	fs.wg.Go(func() {
		f := follower{all: fs, id: id, ender: &ender{id: id, jobs: fs.jobs, limits: fs.limits, logger: fs.logger}}
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
