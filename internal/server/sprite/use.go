package sprite

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Use wakes a sprite if it sleeps, and keeps it awake until the lease is
// released. why is what Info names as the reason. Callers at the same time share
// one start, which goes on when one of them gives up.
func (h *Host) Use(ctx context.Context, name, why string) (*Lease, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	if row.Deleting {
		return nil, fail.Newf(CodeDeleting, "delete it again if that takes too long", "sprite %s is being deleted", name)
	}
	m := h.machines.of(row)
	l := newLease(m, h.rows, why)
	for {
		busy, next, err := l.acquire()
		switch next {
		case boots:
			h.run(m, func() { h.boot(m, row) })
		case resumes:
			h.run(m, func() { h.resume(m) })
		}
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

// run does in the background what a transition of a machine has begun for, and ends it. A Host
// that is closed does not: the transition ends, and run reports false.
func (h *Host) run(m *machine, f func()) bool {
	done := h.tasks.begin(f)
	if !done {
		m.finish(errClosing())
	}
	return done
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

// boot starts the machine's sandbox and ends its transition.
func (h *Host) boot(m *machine, row store.Sprite) {
	changes := h.changes.Load()
	spare, given := m.begun()
	ctx, cancel := context.WithCancel(h.tasks.ctx)
	defer cancel()
	defer context.AfterFunc(given, cancel)()
	if spare == nil { // the pool's take nothing yet
		err := h.disk.admit(h.tasks.ctx, m)
		if err == nil {
			err = elsewhere(h.Runtime, row)
		}
		if err == nil {
			row, err = h.settled(ctx, row, nil)
		}
		if err != nil {
			m.finish(err)
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
		h.noteNoStart(m, warm, err)
		m.finish(h.bootError(m, err))
		return
	}
	m.set(sb) // who hears of the note finds it, and who changes connectors
	if changes != h.changes.Load() {
		h.reviveConnectors(row.Name, sb)
	}
	h.noteStart(m, sb)
	h.tasks.more(func() { h.watch(m, sb) })
	m.finish(nil)
	h.disk.changed()
}

// noteStart notes that a machine has a sandbox.
func (h *Host) noteStart(m *machine, sb Sandbox) {
	why := sb.Status().Unused
	if why != "" {
		h.Logger.Warn("a sprite booted, because the memory that it slept with could not be used", "sprite", m.name, "why", why)
	}
	h.rows.note(m.id, func(s *store.Sprite) {
		s.Status, s.LastError, s.LastRunning = sprites.StatusRunning, "", time.Now()
		if why != "" {
			s.Lost = "the memory that it slept with could not be used: " + why
		}
		if s.Lost != "" {
			s.LastError = "it began anew: " + s.Lost
			m.lose(s.Lost)
		}
	})
}

// noteNoStart notes that a sandbox did not start. warm: its memory was kept.
func (h *Host) noteNoStart(m *machine, warm bool, err error) {
	status, lost := sprites.StatusCold, ""
	if h.warm(m.id) {
		status = sprites.StatusWarm
	} else if warm {
		lost = "it did not start, and the memory that it slept with was used up: " + err.Error()
	}
	h.rows.note(m.id, func(s *store.Sprite) { s.Status, s.LastError, s.Lost = status, err.Error(), cmp.Or(s.Lost, lost) })
}

// bootError is what those get who wait for a sandbox that did not start. It forgets the
// machine of a sprite that is no more.
func (h *Host) bootError(m *machine, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		h.machines.drop(m)
		return fail.Newf(CodeNotFound, "", "sprite %s has been deleted", m.name)
	}
	if m.now().dead {
		return errDeleting(m.name)
	}
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeDamaged {
		return e // which says all
	}
	if e := occupied(m.name, err); e != nil {
		return e
	}
	if disk := DiskError(err); disk != nil { // err was logged
		return fail.Newf(disk.Code, disk.Hint, "sprite %s did not start: %s", m.name, disk.Message)
	}
	failed := fail.Newf(CodeBootFailed, "the server's log, and cove doctor, may say more", "sprite %s did not start", m.name)
	if h.warm(m.id) {
		failed.Message += ", and its memory is kept"
		failed.Hint = "use it again once that is mended; to give up what ran in it: cove restart " + m.name
	}
	failed.Err = err
	return failed
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
	case <-h.tasks.ctx.Done():
		return
	}
	asked := m.hasEnded(sb)
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
	h.rows.note(m.id, func(s *store.Sprite) {
		switch {
		case s.Incarnation != n: // it is of a later one already
		case h.warm(m.id): // whoever had it sleep did not hear that it does
			s.Status = sprites.StatusWarm
		default:
			s.Status, s.LastError = sprites.StatusCold, "its sandbox ended: "+why
			s.Lost = s.LastError
			m.lose(s.Lost)
		}
	})
}
