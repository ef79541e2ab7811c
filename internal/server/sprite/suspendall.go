package sprite

import (
	"context"
	"sync"
	"time"
)

// suspendsAtOnce is how many memories are written at once. One that takes longer than
// suspendPatience goes on, and the next begins: a hostile sprite may hang, and others are not
// to lose what they had for that.
const (
	suspendsAtOnce  = 4
	suspendPatience = 2 * time.Second
)

// SuspendAll has all sprites sleep with their memory, whoever uses them, for an end of the
// server with which their sandboxes would end. It returns how many did, and the names of
// those that did not until ctx ended. Nothing may begin to use a sprite meanwhile.
func (h *Host) SuspendAll(ctx context.Context) (asleep int, awake []string) {
	var mu sync.Mutex
	atOnce(ctx, h.liveMachines(), suspendsAtOnce, suspendPatience, func(m *machine) {
		ok := h.suspendNow(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if ok {
			asleep++
		} else {
			awake = append(awake, m.name)
		}
	})
	return asleep, awake
}

// atOnce calls do for each of some things, for so many at once, not counting those that take
// longer than patience; if ctx has ended, for all at once. It returns when all have returned.
func atOnce[T any](ctx context.Context, all []T, places int, patience time.Duration, do func(T)) {
	free := make(chan struct{}, places)
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(func() {
			select {
			case free <- struct{}{}:
				leave := sync.OnceFunc(func() { <-free })
				defer leave()
				defer time.AfterFunc(patience, leave).Stop()
			case <-ctx.Done():
			}
			do(one)
		})
	}
	wg.Wait()
}

// liveMachines are the machines with a sandbox, or with one that is starting or ending.
func (h *Host) liveMachines() []*machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*machine
	for _, m := range h.machines {
		if (m.sandbox != nil || m.busy != nil) && !m.dead {
			all = append(all, m)
		}
	}
	return all
}

// suspendNow has a machine sleep, and reports whether it has no sandbox any more.
func (h *Host) suspendNow(ctx context.Context, m *machine) bool {
	for ctx.Err() == nil {
		h.mu.Lock()
		busy := m.busy
		if busy == nil {
			if m.sandbox == nil || m.dead || h.closed {
				h.mu.Unlock()
				return true
			}
			m.disarm()
			m.beginEnd()
			h.mu.Unlock()
			done := make(chan error, 1)
			h.wg.Go(func() { done <- h.endSandbox(m, true) })
			select {
			case err := <-done: // which was logged
				return err == nil
			case <-ctx.Done():
				return false
			}
		}
		h.mu.Unlock()
		_ = busy.wait(ctx) // it is asked again
	}
	return false
}
