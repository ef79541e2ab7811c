package sprite

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A Lease keeps a sprite awake.
type Lease struct {
	host    *Host
	machine *machine
	why     string
	sandbox Sandbox
	once    sync.Once
}

// Sandbox is the sandbox that was live when the lease was taken. It may have
// ended since.
func (l *Lease) Sandbox() Sandbox { return l.sandbox }

// Removed reports whether the sprite is deleted, or being so.
func (l *Lease) Removed() bool {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	return l.machine.dead
}

// Restored reports whether the sandbox ends, or has ended, because the sprite is brought
// back to a checkpoint.
func (l *Lease) Restored() bool {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	return l.machine.undone == l.sandbox
}

// Lost is why what ran in the sprite is gone, though nobody had asked for that; empty: it
// is not, or Told was called since.
func (l *Lease) Lost() string {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	return l.machine.lost
}

// Told says that a person has learned what Lost says.
func (l *Lease) Told() {
	l.host.lose(l.machine, "")
	l.host.note(l.machine.id, func(s *store.Sprite) { s.Lost = "" })
}

// lose notes why what ran in a machine is gone, for the next command.
func (h *Host) lose(m *machine, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.lost = why
}

// Release lets the sprite sleep, as far as this lease is concerned. It may be
// called more than once.
func (l *Lease) Release() {
	l.once.Do(func() {
		l.host.mu.Lock()
		defer l.host.mu.Unlock()
		delete(l.machine.leases, l)
		l.host.arm(l.machine)
	})
}

// Use wakes a sprite if it sleeps, and keeps it awake until the lease is
// released. why is what Info names as the reason. Callers at the same time share
// one start, which goes on when one of them gives up.
func (h *Host) Use(ctx context.Context, name, why string) (*Lease, error) {
	row, err := h.row(ctx, name)
	if err != nil {
		return nil, err
	}
	if row.Deleting {
		return nil, fail.Newf(CodeDeleting, "delete it again if that takes too long", "sprite %s is being deleted", name)
	}
	h.mu.Lock()
	m := h.machine(row)
	l := &Lease{host: h, machine: m, why: why}
	m.leases[l] = true
	m.disarm()
	h.mu.Unlock()

	for {
		busy, err := h.ready(l, row)
		if err == nil && busy == nil {
			return l, nil
		}
		if err == nil {
			err = busy.wait(ctx)
		}
		if err != nil {
			l.Release()
			return nil, err
		}
	}
}

// wait waits for the transition's end, and returns its error.
func (t *transition) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ready gives the lease its sandbox, or returns what to wait for before asking
// again.
func (h *Host) ready(l *Lease, row store.Sprite) (*transition, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := l.machine
	switch {
	case h.closed:
		return nil, fail.Newf(CodeUnavailable, "try again in a moment", "the server is shutting down")
	case m.dead:
		return nil, fail.Newf(CodeDeleting, "", "sprite %s is being deleted", m.name)
	case m.busy != nil:
		return m.busy, nil
	case m.disk.held != nil:
		return nil, m.heldError()
	}
	there := m.sandbox != nil && !ended(m.sandbox)
	if there && !m.paused {
		l.sandbox = m.sandbox
		return nil, nil
	}
	if !there {
		m.sandbox, m.paused = nil, false // its watcher is about to notice
	}
	if n := h.awake(); h.MaxRunning > 0 && n >= h.MaxRunning {
		err := fail.Newf(CodeRunningLimit, "wait until one falls asleep, or remove one",
			"as many sprites are running as the server allows: %d", n)
		err.Limit, err.Count, err.RetryAfter = h.MaxRunning, n, 5*time.Second
		return nil, err
	}
	if there {
		h.beginResume(m)
		return m.busy, nil
	}
	m.busy = newTransition()
	h.wg.Go(func() { h.boot(m, row) })
	return m.busy, nil
}

func ended(sb Sandbox) bool {
	select {
	case <-sb.Done():
		return true
	default:
		return false
	}
}

// endsSoon is ended for a sandbox that could not be reached: its end may be on its
// way.
func endsSoon(ctx context.Context, sb Sandbox) bool {
	select {
	case <-sb.Done():
	case <-ctx.Done():
	case <-time.After(endingPatience):
	}
	return ended(sb)
}

const endingPatience = 3 * time.Second

// awake counts the machines that have a sandbox which is not paused, or are getting
// one. h.mu is held.
func (h *Host) awake() int {
	n := 0
	for _, m := range h.machines {
		if m.sandbox != nil && !m.paused || m.busy != nil {
			n++
		}
	}
	return n
}

// boot starts the machine's sandbox and ends its transition.
func (h *Host) boot(m *machine, row store.Sprite) {
	h.mu.Lock()
	changes := h.changes
	spare, given := m.spare, m.busy.given
	m.spare = nil
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	defer context.AfterFunc(given, cancel)()
	if spare == nil { // the pool's take nothing yet
		err := h.admit(m)
		if err == nil {
			err = elsewhere(h.Runtime, row)
		}
		if err == nil {
			row, err = h.settled(ctx, row, nil)
		}
		if err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			busy := m.busy
			m.busy, busy.err = nil, err
			close(busy.done)
			return
		}
	}
	if err := h.sealOutdated(m, row); err != nil {
		h.Logger.Error("making a checkpoint before a memory of another version is dropped", "sprite", m.name, "err", err)
	}
	warm := h.warm(m.id)
	sb, err := h.bootSandbox(ctx, row, spare)
	if err != nil {
		h.Logger.Error("starting a sandbox", "sprite", m.name, "err", err)
		status, lost := sprites.StatusCold, ""
		if h.warm(m.id) {
			status = sprites.StatusWarm
		} else if warm {
			lost = "it did not start, and the memory that it slept with was used up: " + err.Error()
		}
		h.note(m.id, func(s *store.Sprite) { s.Status, s.LastError, s.Lost = status, err.Error(), cmp.Or(s.Lost, lost) })
	} else {
		h.mu.Lock()
		m.sandbox, m.paused = sb, false // who hears of the note finds it, and who changes connectors
		changed := changes != h.changes
		h.mu.Unlock()
		if changed {
			h.reviveConnectors(row.Name, sb)
		}
		why := sb.Status().Unused
		if why != "" {
			h.Logger.Warn("a sprite booted, because the memory that it slept with could not be used", "sprite", m.name, "why", why)
		}
		h.note(m.id, func(s *store.Sprite) {
			s.Status, s.LastError, s.LastRunning = sprites.StatusRunning, "", time.Now()
			if why != "" {
				s.Lost = "the memory that it slept with could not be used: " + why
			}
			if s.Lost != "" {
				s.LastError = "it began anew: " + s.Lost
				h.lose(m, s.Lost)
			}
		})
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	busy := m.busy
	m.busy = nil
	switch {
	case errors.Is(err, store.ErrNotFound):
		delete(h.machines, m.id)
		busy.err = fail.Newf(CodeNotFound, "", "sprite %s has been deleted", m.name)
	case err != nil && m.dead:
		busy.err = fail.Newf(CodeDeleting, "", "sprite %s is being deleted", m.name)
	case err != nil:
		failed := fail.Newf(CodeBootFailed, "the server's log, and cove doctor, may say more", "sprite %s did not start", m.name)
		if h.warm(m.id) {
			failed.Message += ", and its memory is kept"
			failed.Hint = "use it again once that is mended; to give up what ran in it: cove restart " + m.name
		}
		failed.Err = err
		if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeDamaged {
			failed = e // which says all
		} else if e := occupied(m.name, err); e != nil {
			failed = e
		} else if disk := DiskError(err); disk != nil { // err was logged
			failed = fail.Newf(disk.Code, disk.Hint, "sprite %s did not start: %s", m.name, disk.Message)
		}
		busy.err = failed
	default:
		h.wg.Go(func() { h.watch(m, sb) })
		h.arm(m)
		h.diskChanged()
	}
	close(busy.done)
}

// bootSandbox starts the sandbox of a sprite, for which one of the pool's, or nil, is
// used if it can be.
func (h *Host) bootSandbox(ctx context.Context, row store.Sprite, spare Sandbox) (Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if spare != nil {
		done, err := h.assign(ctx, row, spare)
		if err != nil {
			return nil, err
		}
		if done {
			return spare, nil
		}
	}
	n, err := h.Store.Sprites.Next(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	machine, unpin, err := h.describeMachine(ctx, row, n)
	if err != nil {
		return nil, err
	}
	defer unpin()
	return h.Runtime.Boot(ctx, machine)
}

// describeMachine is what a runtime must know of a sprite. Its layers stay until unpin
// is called.
func (h *Host) describeMachine(ctx context.Context, row store.Sprite, incarnation int64) (_ Machine, unpin func(), err error) {
	// Read again, now that who replaces the policy sees the start.
	if row, err = h.Store.Sprites.Get(ctx, row.Name); err != nil {
		return Machine{}, nil, err
	}
	network, err := h.network(ctx, row)
	if err != nil {
		return Machine{}, nil, err
	}
	connectors, err := h.connectors(ctx, row.Name)
	if err != nil {
		return Machine{}, nil, err
	}
	if err := h.checkLayers(ctx, row); err != nil { // before its memory is used up
		return Machine{}, nil, err
	}
	chain, unpin, err := h.layers.pinShort(ctx, row.ID, row.Layer)
	if err != nil {
		return Machine{}, nil, err
	}
	return Machine{
		ID:          row.ID,
		Hostname:    row.Name,
		MachineID:   row.MachineID,
		Incarnation: incarnation,
		Base:        row.Base,
		Layers:      chain,
		Include:     row.Include,
		Env:         h.environment(row),
		MemoryMB:    row.Config.RAMMB,
		CPUs:        row.Config.CPUs,
		Network:     network,
		Connectors:  connectors,

		NetworkPolicy: row.Policy,
	}, unpin, nil
}

// environment is the sprite's own, with its URL, which programs inside look for.
func (h *Host) environment(row store.Sprite) map[string]string {
	const key = "SPRITE_URL"
	if _, ok := row.Env[key]; ok || h.URL == nil {
		return row.Env
	}
	env := map[string]string{key: h.URL(row.Name)}
	maps.Copy(env, row.Env)
	return env
}

// watch waits for a sandbox's end. One that was not asked for is noted as an
// error; the next use then starts another.
func (h *Host) watch(m *machine, sb Sandbox) {
	select {
	case <-sb.Done():
	case <-h.ctx.Done():
		return
	}
	h.mu.Lock()
	asked := m.ending == sb
	if m.sandbox == sb {
		m.sandbox, m.paused = nil, false
	}
	m.disarm()
	h.mu.Unlock()
	h.layers.collect() // it may have held layers that nobody else has
	if asked {
		return // whoever asked notes it
	}
	h.noteEnd(m, sb)
}

// noteEnd notes the end of a sandbox that nobody asked for.
func (h *Host) noteEnd(m *machine, sb Sandbox) {
	why := sb.Status().Ended
	h.Logger.Warn("a sandbox has ended", "sprite", m.name, "why", why)
	n := sb.Status().Incarnation
	h.note(m.id, func(s *store.Sprite) {
		switch {
		case s.Incarnation != n: // it is of a later one already
		case h.warm(m.id): // whoever had it sleep did not hear that it does
			s.Status = sprites.StatusWarm
		default:
			s.Status, s.LastError = sprites.StatusCold, "its sandbox ended: "+why
			s.Lost = s.LastError
			h.lose(m, s.Lost)
		}
	})
}
