package sprite

import (
	"context"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// tasks is the work of a Host that goes on in the background, whoever waits for it.
type tasks struct {
	ctx    context.Context // ends when the Host is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // no other lock is taken while it is held
	closed bool
}

func newTasks(ctx context.Context) *tasks {
	t := &tasks{}
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// begin does f in the background, and reports whether it does: a Host that is closed begins
// nothing.
func (t *tasks) begin(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.wg.Go(f)
	}
	return !t.closed
}

// more does f in the background. Only a task may call it, or Start: close waits for f, too.
func (t *tasks) more(f func()) { t.wg.Go(f) }

// isClosed reports whether begin does nothing any more.
func (t *tasks) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// close has no task begin any more.
func (t *tasks) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// end ends the context of the tasks, and waits for them.
func (t *tasks) end() {
	t.cancel()
	t.wg.Wait()
}

// lasting is a context for what the end of the Host must not cut short.
func (t *tasks) lasting() context.Context { return context.WithoutCancel(t.ctx) }

func errClosing() error {
	return fail.Newf(CodeUnavailable, "try again in a moment", "the server is shutting down")
}
