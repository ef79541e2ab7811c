package sprite

import (
	"context"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// The pool is of sandboxes that run before anybody has asked for one, each of a sprite
// that nobody sees. A create takes one: the store makes that sprite the one that was
// asked for, which is then the sandbox's start. Each is used once. What is left of a
// pool when the server ends is removed, by it or by the next one.

const (
	poolPause = 50 * time.Millisecond // between looks whether somebody else starts a sandbox
	poolRetry = 30 * time.Second      // after one that did not start
)

// spare is a sandbox of the pool, and the row of its sprite.
type spare struct {
	row     store.Sprite
	sandbox Sandbox
}

// PoolState describes the pool: how many sandboxes it is to have, and has.
func (h *Host) PoolState() (size, ready int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Pool, len(h.spares)
}

// fillPool keeps the pool full until ctx ends, one sandbox after the other, and never
// while somebody waits for one.
func (h *Host) fillPool(ctx context.Context) {
	for ctx.Err() == nil {
		h.mu.Lock()
		h.spares = slices.DeleteFunc(h.spares, func(s spare) bool {
			if ended(s.sandbox) {
				h.wg.Go(func() { h.discard(s) })
				return true
			}
			return false
		})
		full, quiet := len(h.spares) >= h.Pool, h.quiet()
		h.mu.Unlock()
		pause := poolPause
		switch {
		case full:
			pause = poolRetry // some may have died
		case quiet:
			pause = 0
			if err := h.addSpare(ctx); err != nil {
				h.Logger.Error("starting a sandbox for the pool", "err", err)
				pause = poolRetry
			}
		}
		select {
		case <-time.After(pause):
		case <-h.poolTaken:
		case <-ctx.Done():
		}
	}
}

// quietPatience is how long a sandbox that starts, ends or moves has the machine to itself.
// One that takes longer waits for something, such as a guest that does not answer.
const quietPatience = 5 * time.Second

// quiet reports whether no sandbox is starting, ending or moving. h.mu is held.
func (h *Host) quiet() bool {
	for _, m := range h.machines {
		if m.busy != nil && time.Since(m.busy.begun) < quietPatience {
			return false
		}
	}
	return true
}

// addSpare starts a sandbox for the pool.
func (h *Host) addSpare(ctx context.Context) error {
	s := spare{row: store.Sprite{
		ID: randomHex(8), MachineID: randomHex(16), Base: defaultBase, Owner: store.PoolOwner,
		URL: sprites.URLSettings{Auth: "sprite"}, Status: sprites.StatusCold,
	}}
	s.row.Name = "pool." + s.row.ID // no name that anybody could ask for
	if err := h.Store.Sprites.Create(ctx, &s.row); err != nil {
		return err
	}
	fault.Reach(fault.PoolBegun)
	sb, err := h.bootSandbox(ctx, s.row, nil)
	s.sandbox = sb
	if err != nil {
		h.discard(s)
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spares = append(h.spares, s)
	fault.Reach(fault.PoolStarted)
	return nil
}

// discard removes a sandbox of the pool, and all that there is of it.
func (h *Host) discard(s spare) {
	h.mu.Lock()
	m := h.machine(s.row)
	m.sandbox, m.ending, m.dead = s.sandbox, s.sandbox, true
	h.mu.Unlock()
	if err := h.destroy(m); err != nil {
		h.Logger.Error("removing a sandbox of the pool; the next start tries again", "id", s.row.ID, "err", err)
	}
}

// emptyPool removes all of the pool.
func (h *Host) emptyPool() {
	h.mu.Lock()
	spares := h.spares
	h.spares = nil
	h.mu.Unlock()
	for _, s := range spares {
		h.discard(s)
	}
}

// takeSpare takes a sandbox out of the pool that can be that of a new sprite; nil:
// there is none.
func (h *Host) takeSpare(row store.Sprite) *spare {
	if row.Base != defaultBase || len(row.Include) > 0 || row.Config.RAMMB > 0 || row.Config.CPUs > 0 || row.Layer != "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.MaxRunning > 0 && h.awake() >= h.MaxRunning {
		return nil
	}
	for len(h.spares) > 0 {
		s := h.spares[0]
		h.spares = h.spares[1:]
		select {
		case h.poolTaken <- struct{}{}:
		default:
		}
		if !ended(s.sandbox) {
			return &s
		}
		h.wg.Go(func() { h.discard(s) })
	}
	return nil
}

// createFrom makes a sprite of one of the pool's, whose sandbox starts at once. After
// an error that is in the pool again.
func (h *Host) createFrom(ctx context.Context, s *spare, row *store.Sprite) error {
	row.ID = s.row.ID
	h.mu.Lock()
	m := h.machine(*row) // nobody finds the sprite without
	m.busy, m.spare = newTransition(), s.sandbox
	h.mu.Unlock()
	err := h.Store.Sprites.Take(ctx, row)
	fault.Reach(fault.TakeStored)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.closed {
		close(m.busy.done)
		delete(h.machines, row.ID)
		if err != nil {
			h.spares = append(h.spares, *s)
		}
		return err // once closed, it is as after a death of the server
	}
	h.wg.Go(func() { h.boot(m, *row) })
	return nil
}

// assign makes a sandbox of the pool that of a sprite. One that can't be is ended.
func (h *Host) assign(ctx context.Context, row store.Sprite, sb Sandbox) (bool, error) {
	if a, ok := sb.(Assigner); ok && !ended(sb) {
		machine, unpin, err := h.describeMachine(ctx, row, row.Incarnation)
		if err != nil {
			return false, err
		}
		defer unpin()
		if err = a.Assign(ctx, machine); err == nil {
			return true, nil
		}
		h.Logger.Warn("a sandbox of the pool can't be used; starting another", "sprite", row.Name, "err", err)
	}
	return false, h.stop(sb, 0)
}
