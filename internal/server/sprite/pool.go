package sprite

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/sprites"
)

// The pool is of sandboxes that run before anybody has asked for one, each of a sprite
// that nobody sees. A create takes one over its own base: the store makes that sprite the one
// that was asked for, which is then the sandbox's start. Each is used once. The
// rest of a pool is removed when the server ends, by it or by the next one.

const (
	poolPause = 50 * time.Millisecond // between looks whether somebody else starts a sandbox
	poolRetry = 30 * time.Second      // after one that did not start
)

// PoolPart is how many sandboxes the pool keeps over one base.
type PoolPart struct {
	Image string // a reference for Images; sprites.HostBase: this machine's own tools
	Size  int
}

// poolPart is a PoolPart, and how it is.
type poolPart struct {
	PoolPart
	base  string      // of its sandboxes; empty: the image is not here
	wrong *fail.Error // why it is not full; nil: nothing is wrong
	retry time.Time   // no sandbox of it is started before
}

// spare is a sandbox of the pool, and the row of its sprite.
type spare struct {
	row     store.Sprite
	sandbox Sandbox
}

// A pool keeps so many sandboxes ready. It begins with start, and ends with close.
type pool struct {
	images   Images
	watch    func() (changed <-chan struct{}, cancel func()) // of images
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
	parts  []*poolPart // each of another image; two may have one base
	spares []spare
}

// start fills the pool in the background.
func (p *pool) start(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	if len(p.parts) > 0 {
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

// state describes the pool; nil: there is none.
func (p *pool) state() *sprites.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.parts) == 0 {
		return nil
	}
	all := &sprites.Pool{Ready: len(p.spares)}
	have := p.have()
	for _, part := range p.parts {
		one := sprites.PoolPart{Image: part.Image, Size: part.Size, Ready: min(part.Size, have[part.base])}
		have[part.base] -= one.Ready
		if base.IsImage(part.base) {
			one.Digest = part.base
		}
		if part.wrong != nil {
			one.Error, one.Hint = part.wrong.Message, part.wrong.Hint
		}
		all.Size += part.Size
		all.Parts = append(all.Parts, one)
	}
	return all
}

// have counts the sandboxes over each base. mu is held.
func (p *pool) have() map[string]int {
	have := map[string]int{}
	for _, s := range p.spares {
		have[s.row.Base]++
	}
	return have
}

// fill keeps the pool full until ctx ends, one sandbox after the other, and never
// while somebody waits for one.
func (p *pool) fill(ctx context.Context) {
	changed, stop := p.watch()
	defer stop()
	look := true
	for ctx.Err() == nil {
		if look {
			p.look(ctx)
		}
		part := p.next()
		pause := poolPause
		switch {
		case part == nil:
			pause = poolRetry // some may have died
		case p.machines.quiet():
			pause = 0
			if err := p.add(ctx, part.base); ctx.Err() == nil {
				p.noteAdded(part, err)
			}
		}
		look = pause == poolRetry
		select {
		case <-time.After(pause):
		case <-p.taken:
		case <-changed:
			look = true
		case <-ctx.Done():
		}
	}
}

// look finds which image each part means now.
func (p *pool) look(ctx context.Context) {
	for _, part := range p.parts {
		found, err := defaultBase, error(nil)
		if part.Image != sprites.HostBase {
			found, err = resolve(ctx, p.images, part.Image)
		}
		if ctx.Err() != nil {
			return
		}
		wrong := notFound(err)
		was := p.found(part, found, wrong)
		if wrong != nil && (was == nil || was.Message != wrong.Message) {
			p.logger.Warn("the pool waits for an image: "+wrong.Message, "image", part.Image, "fix", wrong.Hint)
		}
	}
}

// notFound says for people why there is no image; nil: err is none.
func notFound(err error) *fail.Error {
	e, ok := errors.AsType[*fail.Error](err)
	if ok || err == nil {
		return e
	}
	return fail.New(CodeUnavailable, "looking for the image failed: "+err.Error(), "see: cove server logs")
}

// found notes the base of a part, or why there is none. It returns what was wrong before.
func (p *pool) found(part *poolPart, found string, wrong *fail.Error) (was *fail.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was = part.wrong
	if wrong != nil {
		found = ""
	}
	if part.base != found || wrong != nil {
		part.base, part.wrong, part.retry = found, wrong, time.Time{}
	}
	return was
}

// next is a part of the pool that lacks sandboxes; nil: there is none that can be filled now.
// It discards sandboxes that have ended, and those that no part needs.
func (p *pool) next() *poolPart {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := map[string]int{}
	for _, part := range p.parts {
		want[part.base] += part.Size
	}
	delete(want, "")
	left := maps.Clone(want)
	p.spares = slices.DeleteFunc(p.spares, func(s spare) bool {
		if left[s.row.Base] > 0 && !ended(s.sandbox) {
			left[s.row.Base]--
			return false
		}
		p.wg.Go(func() { p.discard(s) })
		return true
	})
	for _, part := range p.parts {
		if left[part.base] > 0 && !time.Now().Before(part.retry) {
			return part
		}
	}
	return nil
}

// noteAdded notes how the start of a sandbox ended.
func (p *pool) noteAdded(part *poolPart, err error) {
	if err != nil {
		p.logger.Error("starting a sandbox for the pool", "image", part.Image, "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if part.wrong = nil; err != nil {
		part.wrong, part.retry = notStarted(part, err), time.Now().Add(poolRetry)
	}
}

// notStarted says for people why no sandbox of a part has started.
func notStarted(part *poolPart, err error) *fail.Error {
	row := store.Sprite{Base: part.base, Config: sprites.Config{Image: part.Image}}
	if e := imageError(row, "no sandbox starts", err); e != nil {
		return e
	}
	if errors.Is(err, store.ErrNoImage) {
		return goneImage(row)
	}
	return fail.New(CodeBootFailed, "no sandbox starts", "look for the reason: cove server logs; cove doctor")
}

// add starts a sandbox over a base for the pool.
func (p *pool) add(ctx context.Context, on string) error {
	s := spare{row: store.Sprite{
		ID: randomHex(8), MachineID: randomHex(16), Base: on, Owner: store.PoolOwner,
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
	if len(row.Include) > 0 || row.Config.RAMMB > 0 || row.Config.CPUs > 0 || row.Layer != "" {
		return nil
	}
	if p.tasks.isClosed() || p.places.full() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n := slices.IndexFunc(p.spares, func(s spare) bool { return s.row.Base == row.Base })
		if n < 0 {
			return nil
		}
		s := p.spares[n]
		p.spares = slices.Delete(p.spares, n, n+1)
		select {
		case p.taken <- struct{}{}:
		default:
		}
		if !ended(s.sandbox) {
			return &s
		}
		p.tasks.begin(func() { p.discard(s) }) // else the next start does
	}
}

// InPool reports whether the pool has sandboxes over an image, or is to have some.
func InPool(h *Host, digest string) bool {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.parts, func(part *poolPart) bool { return part.base == digest }) || p.have()[digest] > 0
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
