package sprite

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// listedAtOnce is of how many sprites layers are listed at once. Each takes a thread,
// a few descriptors and some MiB.
const listedAtOnce = 16

// reads are the layers that are being read, or will be. Long reads hold no lock, and
// end when the layer is deleted. Unless a caller waits for them, they take turns.
type reads struct {
	places chan struct{} // of sprites whose layers are being listed
	turns  chan struct{} // of listings that are at work

	listed keyedMutex // layers

	mu     sync.Mutex
	queues map[string]*listQueue                        // by sprite
	ends   map[string]map[*context.CancelCauseFunc]bool // by what is read
}

// listQueue has the layers of one sprite that wait to be listed.
type listQueue struct {
	layers []string      // guarded by reads.mu
	done   chan struct{} // closed when there are no more
}

func (r *reads) init() {
	r.places = make(chan struct{}, listedAtOnce)
	r.turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)) // the rest is for callers that wait
	r.queues = map[string]*listQueue{}
	r.ends = map[string]map[*context.CancelCauseFunc]bool{}
}

// queue adds layers of a sprite that must be listed; true: the caller must see to it.
func (r *reads) queue(of string, layers []string) (*listQueue, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q, there := r.queues[of]
	if !there {
		q = &listQueue{done: make(chan struct{})}
		r.queues[of] = q
	}
	for _, layer := range layers { // another caller may have seen fewer, and come later
		if !slices.Contains(q.layers, layer) {
			q.layers = append(q.layers, layer)
		}
	}
	return q, !there
}

// next takes a layer of a queue; empty: that was the last one.
func (r *reads) next(of string, q *listQueue) (layer string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(q.layers) == 0 {
		delete(r.queues, of)
		close(q.done)
		return ""
	}
	layer, q.layers = q.layers[0], q.layers[1:]
	return layer
}

// errAbandoned ends the reading of a layer or sprite that is being deleted.
var errAbandoned = fail.Newf(CodeDeleting, "", "the sprite or layer that was being read is being deleted")

// reading returns a context for reading a layer or all of a sprite. It ends with ctx,
// when the keeper is closed, and when the layer or the sprite is abandoned. The caller
// calls end.
func (k *layerKeeper) reading(ctx context.Context, what string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.ctx, func() { cancel(context.Cause(k.ctx)) })
	r := &k.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[what] == nil {
		r.ends[what] = map[*context.CancelCauseFunc]bool{}
	}
	r.ends[what][&cancel] = true
	return ctx, func() {
		stop()
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		if delete(r.ends[what], &cancel); len(r.ends[what]) == 0 {
			delete(r.ends, what)
		}
	}
}

// abandon ends what reads something.
func (r *reads) abandon(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cancel := range r.ends[what] {
		(*cancel)(errAbandoned)
	}
}

// allOf is, for reading, all of a sprite.
func allOf(id string) string { return "sprite " + id }

// slice is how long a listing is at work before others are, if any wait.
const slice = 100 * time.Millisecond

// turn is one of those who take turns.
type turn struct {
	ctx   context.Context
	turns chan struct{}
	held  bool
	since time.Time
}

func (t *turn) begin() error {
	select {
	case t.turns <- struct{}{}: // in the order in which they came
		t.held, t.since = true, time.Now()
		return nil
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

func (t *turn) end() {
	if t.held {
		<-t.turns
	}
	t.held = false
}

// next ends a turn that was long enough, and waits for another.
func (t *turn) next() error {
	if time.Since(t.since) < slice {
		return nil
	}
	t.end()
	return t.begin()
}
