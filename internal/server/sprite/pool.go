package sprite

import (
	"context"
	"log/slog"
	"slices"
	"sync"
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

// A pool keeps so many sandboxes ready. It begins with start, and ends with close.
type pool struct {
	size     int
	machines *machines
	places   *places
	tasks    *tasks
	rows     *rows
	logger   *slog.Logger

	booter *booter
	lives  *lifecycle

	taken  chan struct{} // has a value when there are less than there were
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	spares []spare
}

// start fills the pool in the background.
func (p *pool) start(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	if p.size > 0 {
		p.wg.Go(func() { p.fill(ctx) })
	}
}

// close removes all of the pool, if it was started.
func (p *pool) close() {
	if p.cancel == nil {
		return
	}
	p.cancel()
	p.wg.Wait()
	p.mu.Lock()
	spares := p.spares
	p.spares = nil
	p.mu.Unlock()
	for _, s := range spares {
		p.discard(s)
	}
}

// ready is how many sandboxes it has.
func (p *pool) ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.spares)
}

// fill keeps the pool full until ctx ends, one sandbox after the other, and never
// while somebody waits for one.
func (p *pool) fill(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		p.spares = slices.DeleteFunc(p.spares, func(s spare) bool {
			if ended(s.sandbox) {
				p.wg.Go(func() { p.discard(s) })
				return true
			}
			return false
		})
		full := len(p.spares) >= p.size
		p.mu.Unlock()
		pause := poolPause
		switch {
		case full:
			pause = poolRetry // some may have died
		case p.machines.quiet():
			pause = 0
			if err := p.add(ctx); err != nil {
				p.logger.Error("starting a sandbox for the pool", "err", err)
				pause = poolRetry
			}
		}
		select {
		case <-time.After(pause):
		case <-p.taken:
		case <-ctx.Done():
		}
	}
}

// add starts a sandbox for the pool.
func (p *pool) add(ctx context.Context) error {
	s := spare{row: store.Sprite{
		ID: randomHex(8), MachineID: randomHex(16), Base: defaultBase, Owner: store.PoolOwner,
		URL: sprites.URLSettings{Auth: "sprite"}, Status: sprites.StatusCold,
	}}
	s.row.Name = "pool." + s.row.ID // no name that anybody could ask for
	if err := p.rows.sprites.Create(ctx, &s.row); err != nil {
		return err
	}
	fault.Reach(fault.PoolBegun)
	sb, err := p.booter.boot(ctx, s.row, nil)
	s.sandbox = sb
	if err != nil {
		p.discard(s)
		return err
	}
	p.put(s)
	fault.Reach(fault.PoolStarted)
	return nil
}

func (p *pool) put(s spare) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spares = append(p.spares, s)
}

// discard removes a sandbox of the pool, and all that there is of it.
func (p *pool) discard(s spare) {
	m := p.machines.of(s.row)
	m.condemn(s.sandbox)
	if err := p.lives.destroy(m); err != nil {
		p.logger.Error("removing a sandbox of the pool; the next start tries again", "id", s.row.ID, "err", err)
	}
}

// take takes a sandbox out of the pool that can be that of a new sprite; nil:
// there is none.
func (p *pool) take(row store.Sprite) *spare {
	if row.Base != defaultBase || len(row.Include) > 0 || row.Config.RAMMB > 0 || row.Config.CPUs > 0 || row.Layer != "" {
		return nil
	}
	if p.tasks.isClosed() || p.places.full() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.spares) > 0 {
		s := p.spares[0]
		p.spares = p.spares[1:]
		select {
		case p.taken <- struct{}{}:
		default:
		}
		if !ended(s.sandbox) {
			return &s
		}
		p.tasks.begin(func() { p.discard(s) }) // else the next start does
	}
	return nil
}

// create makes a sprite of one of the pool's, whose sandbox starts at once. After
// an error that is in the pool again.
func (p *pool) create(ctx context.Context, s *spare, row *store.Sprite) error {
	row.ID = s.row.ID
	m := p.machines.of(*row) // nobody finds the sprite without
	m.assign(s.sandbox)
	err := p.rows.sprites.Take(ctx, row)
	fault.Reach(fault.TakeStored)
	if err == nil && p.tasks.begin(func() { p.lives.boot(m, *row) }) {
		return nil
	}
	p.machines.drop(m)
	m.finish(nil)
	if err != nil {
		p.put(*s)
	}
	return err // once closed, it is as after a death of the server
}
