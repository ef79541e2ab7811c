package image

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// turns lets one caller at a time work at a thing, such as a download. Those who wait for it
// see how far it is. Its zero value is ready for use.
type turns struct {
	mu sync.Mutex
	at map[string]*turn
}

type turn struct {
	free    chan struct{} // has an element while nobody works
	callers map[*func(int64)]bool
}

// enter waits until it is the caller's turn at a thing. Until leave is called, others wait.
// watch is told how far the work is, from now on.
func (t *turns) enter(ctx context.Context, thing string, watch func(int64)) (leave func(), err error) {
	t.mu.Lock()
	w := t.at[thing]
	if w == nil {
		w = &turn{free: make(chan struct{}, 1), callers: map[*func(int64)]bool{}}
		w.free <- struct{}{}
		if t.at == nil {
			t.at = map[string]*turn{}
		}
		t.at[thing] = w
	}
	w.callers[&watch] = true
	t.mu.Unlock()
	gone := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if delete(w.callers, &watch); len(w.callers) == 0 {
			delete(t.at, thing)
		}
	}
	select {
	case <-w.free:
		return func() { w.free <- struct{}{}; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
}

// tell tells all who watch a thing how far it is.
func (t *turns) tell(thing string, n int64) {
	t.mu.Lock()
	var callers []*func(int64)
	if w := t.at[thing]; w != nil {
		callers = slices.Collect(maps.Keys(w.callers))
	}
	t.mu.Unlock()
	for _, watch := range callers {
		(*watch)(n)
	}
}

// meter tells the caller of a pull or an import how far it is. Its methods may be called
// from any goroutine, and the caller is told by one at a time.
type meter struct {
	tell func(Progress) // nil: nobody wants to know

	mu           sync.Mutex
	done, layers int
}

// phase tells of a phase that has no bytes.
func (m *meter) phase(phase string) { m.at(phase, "", 0, 0) }

func (m *meter) at(phase, layer string, n, total int64) {
	if m.tell == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tell(Progress{Phase: phase, Layer: layer, Bytes: n, Total: total, LayersDone: m.done, Layers: m.layers})
}

// begin says how many layers there are; layerDone, that another one is extracted.
func (m *meter) begin(layers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layers = layers
}

func (m *meter) layerDone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done++
}

// tellEvery is after how many bytes a caller is told again.
const tellEvery = 1 << 20

// gauge returns a function that tells how many bytes of a layer are there.
func (m *meter) gauge(phase, layer string, total int64) func(int64) {
	var mu sync.Mutex
	told := int64(-1)
	return func(n int64) {
		mu.Lock()
		tell := told < 0 || n < told || n-told >= tellEvery || n >= total && told < total
		if tell {
			told = n
		}
		mu.Unlock()
		if tell {
			m.at(phase, layer, n, total)
		}
	}
}
