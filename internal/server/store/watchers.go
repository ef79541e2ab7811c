package store

import "sync"

// watchers are told of changes of a table. The zero value has none.
type watchers struct {
	also func() // called at each change; nil: nothing is

	mu  sync.Mutex
	all map[chan struct{}]struct{}
}

// Watch returns a channel that gets a value after a row was created, changed or deleted.
// Changes that nobody has received yet are one value. cancel ends it.
func (w *watchers) Watch() (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[chan struct{}]struct{}{}
	}
	w.all[c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, c)
	}
}

func (w *watchers) notify() {
	if w.also != nil {
		w.also()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
