package server

import (
	"context"
	"runtime"
	"sync"
)

// turns bound the work for streams that takes the processor, such as to read and to render a part of a log. Each token
// has one turn at a time, and all tokens together have half of the processors. The others wait, first come, first
// served. The server's owner does not wait. A turn is short: its holder waits for nobody, and takes no other turn.
type turns struct {
	all chan struct{} // has a place for each turn at once

	mu sync.Mutex
	by map[string]*turn // by token; guarded by mu
}

// turn is the turn of one token.
type turn struct {
	taken chan struct{} // holds one element while the turn is taken
	users int           // that have it or wait for it; guarded by turns.mu
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), by: map[string]*turn{}}
}

// take waits for a turn, which lasts until done is called. It is an error if ctx ends before.
func (t *turns) take(ctx context.Context, p principal) (done func(), err error) {
	if p.owner {
		return func() {}, nil
	}
	t.mu.Lock()
	own := t.by[p.name]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		t.by[p.name] = own
	}
	own.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.by, p.name)
		}
	}
	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		<-own.taken
		leave()
		return nil, ctx.Err()
	}
	return func() {
		<-t.all
		<-own.taken
		leave()
	}, nil
}
