package sprite

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// lifecycle does the transitions of machines: it starts sandboxes and ends them, pauses them
// and has them go on (boot.go, pause.go, idle.go, stop.go, delete.go, alone.go).
type lifecycle struct {
	runtime  Runtime
	store    *store.Store
	rows     *rows
	machines *machines
	tasks    *tasks
	logger   *slog.Logger
	layers   *layerKeeper
	memories *memories
	settler  *settler
	sealer   *sealer
	network  *network
	booter   *booter
	disk     *diskWatch
	limits   *limiter
}

// run does in the background what a transition of a machine has begun for, and ends it. A Host
// that is closed does not: the transition ends, and run reports false.
func (l *lifecycle) run(m *machine, f func()) bool {
	done := l.tasks.begin(f)
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
func (l *lifecycle) boot(m *machine, row store.Sprite) {
	changes := l.network.changes.Load()
	spare, given := m.begun()
	ctx, cancel := context.WithCancel(l.tasks.ctx)
	defer cancel()
	defer context.AfterFunc(given, cancel)()
	if spare == nil { // the pool's take nothing yet
		err := l.disk.admit(l.tasks.ctx, m)
		if err == nil {
			err = elsewhere(l.runtime, row)
		}
		if err == nil { // the use may have waited for what has changed the disk
			row, err = l.store.Sprites.ByID(ctx, row.ID)
		}
		if err == nil {
			row, err = l.settler.settled(ctx, row, nil)
		}
		if errors.Is(err, store.ErrNotFound) || err != nil && m.now().dead {
			err = l.bootError(m, row, err)
		}
		if err != nil {
			m.finish(err)
			return
		}
	}
	if err := l.sealer.outdated(m, row); err != nil {
		l.logger.Error("making a checkpoint before a memory of another version is dropped", "sprite", m.name, "err", err)
	}
	warm := l.memories.warm(m.id)
	sb, err := l.booter.boot(ctx, row, spare)
	if err != nil {
		l.logger.Error("starting a sandbox", "sprite", m.name, "err", err)
		l.noteNoStart(m, warm, err)
		m.finish(l.bootError(m, row, err))
		return
	}
	m.set(sb) // those who hear of the note, or change connectors, find it
	if changes != l.network.changes.Load() {
		l.network.reviveConnectors(row.Name, sb)
	}
	l.noteStart(m, sb)
	l.tasks.more(func() { l.watch(m, sb) })
	m.finish(nil)
	l.disk.changed()
}

// noteStart notes that a machine has a sandbox.
func (l *lifecycle) noteStart(m *machine, sb Sandbox) {
	why := sb.Status().Unused
	if why != "" {
		l.logger.Warn("a sprite booted, because the memory that it slept with could not be used", "sprite", m.name, "why", why)
	}
	l.rows.note(m.id, func(s *store.Sprite) {
		s.Status, s.LastError, s.LastRunning = sprites.StatusRunning, "", time.Now()
		if why != "" {
			s.Lost = "the memory that it slept with could not be used: " + why
		}
		if s.Lost != "" {
			s.LastError = "it began anew: " + s.Lost
			m.lose(s.Lost)
		}
		l.machines.heed(*s) // the first use made the machine of what it had read before
	})
}

// noteNoStart notes that a sandbox did not start. warm: its memory was kept.
func (l *lifecycle) noteNoStart(m *machine, warm bool, err error) {
	status, lost := sprites.StatusCold, ""
	if l.memories.warm(m.id) {
		status = sprites.StatusWarm
	} else if warm {
		lost = "it did not start, and the memory that it slept with was used up: " + err.Error()
	}
	l.rows.note(m.id, func(s *store.Sprite) { s.Status, s.LastError, s.Lost = status, err.Error(), cmp.Or(s.Lost, lost) })
}

// bootError is the error for those who wait for a sandbox that did not start. It
// forgets the machine of a sprite that is no more.
func (l *lifecycle) bootError(m *machine, row store.Sprite, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		l.machines.drop(m)
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
	if e := imageError(row, "sprite "+m.name+" did not start", err); e != nil {
		return e
	}
	if disk := DiskError(err); disk != nil { // err was logged
		return fail.Newf(disk.Code, disk.Hint, "sprite %s did not start: %s", m.name, disk.Message)
	}
	failed := fail.Newf(CodeBootFailed, "look for the reason: cove server logs; cove doctor", "sprite %s did not start", m.name)
	if l.memories.warm(m.id) {
		failed.Message += ", and its memory is kept"
		failed.Hint = "use it again once the cause is fixed; or give up what ran in it: cove restart " + m.name
	}
	failed.Err = err
	return failed
}

// watch waits for a sandbox's end. One that was not asked for is noted as an
// error; the next use then starts another.
func (l *lifecycle) watch(m *machine, sb Sandbox) {
	select {
	case <-sb.Done():
	case <-l.tasks.ctx.Done():
		return
	}
	asked := m.hasEnded(sb)
	l.layers.collect() // it may have held layers that nobody else has
	if asked {
		return // whoever asked notes it
	}
	l.noteEnd(m, sb)
}

// noteEnd notes the end of a sandbox that nobody asked for.
func (l *lifecycle) noteEnd(m *machine, sb Sandbox) {
	why := sb.Status().Ended
	l.logger.Warn("a sandbox has ended", "sprite", m.name, "why", why)
	n := sb.Status().Incarnation
	l.rows.note(m.id, func(s *store.Sprite) {
		switch {
		case s.Incarnation != n: // it is of a later one already
		case l.memories.warm(m.id): // whoever had it sleep did not hear that it does
			s.Status = sprites.StatusWarm
		default:
			s.Status, s.LastError = sprites.StatusCold, "its sandbox ended: "+why
			s.Lost = s.LastError
			m.lose(s.Lost)
		}
	})
}
