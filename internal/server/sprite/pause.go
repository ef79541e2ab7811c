package sprite

import (
	"context"
	"errors"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A sprite that nobody uses sleeps in two stages. First it is paused: nothing in it
// runs, its memory stays, and its next use resumes it in a moment. Data on connections
// that it opened itself waits in its network, and wakes nobody. Otherwise a peer that
// sends something now and then would keep it awake for ever. Later it is hibernated:
// its memory goes to disk, and its sandbox ends.

// pauseLimit is for a sandbox to be paused, or to go on.
const pauseLimit = time.Minute

// errFrozen is a paused sandbox that does not go on.
var errFrozen = errors.New("the sandbox is paused, and does not resume")

// pause pauses the sandbox of a machine that is busy with it, and ends its
// transition. A sandbox that can't be paused stays awake.
func (l *lifecycle) pause(m *machine, sb Pauser) {
	ctx, cancel := context.WithTimeout(l.tasks.lasting(), pauseLimit)
	defer cancel()
	err := sb.Pause(ctx)
	if err != nil {
		l.logger.Error("pausing a sandbox that nobody uses; it stays awake", "sprite", m.name, "err", err)
	}
	// If the answer was lost it may be paused all the same: then the next use resumes it.
	m.endStage(err == nil || sb.Status().Paused, nil)
	if err == nil {
		l.noteStage(m)
		fault.Reach(fault.PauseStored)
	}
}

// resume has the sandbox of a paused machine go on, and ends its transition.
func (l *lifecycle) resume(m *machine) {
	if err := l.disk.admit(l.tasks.ctx, m); err != nil {
		m.finish(err)
		return
	}
	now := m.now()
	sb := now.sandbox
	var err error
	if pauser, ok := sb.(Pauser); ok {
		ctx, cancel := context.WithTimeout(l.tasks.lasting(), pauseLimit)
		err = pauser.Resume(ctx)
		if err != nil && endsSoon(ctx, sb) {
			err = nil // whoever waits finds that it has ended
		}
		cancel()
	}
	if err == nil && sb != nil && now.told != l.network.changes.Load() && !ended(sb) {
		if row, err := l.store.Sprites.ByID(l.tasks.ctx, m.id); err == nil {
			l.network.revive(row, sb)
			l.network.reviveConnectors(row.Name, sb)
		}
	}
	if err != nil {
		l.logger.Error("resuming a paused sandbox", "sprite", m.name, "err", err)
		e := fail.Newf(CodeUnavailable, "try again; the log of the server says more", "sprite %s is paused, and does not resume", m.name)
		e.Err = errors.Join(errFrozen, err)
		m.endStage(true, e)
	} else {
		m.endStage(false, nil)
		l.disk.changed()
	}
	l.noteStage(m)
}

// errPaused is a guest that can't be asked anything.
var errPaused = errors.New("the sandbox is paused")

// noteUndelivered notes that a guest was not told of a change. One that is paused is
// told when it wakes.
func (n *network) noteUndelivered(what, name string, sb Sandbox, err error) {
	switch {
	case err == nil || ended(sb):
	case sb.Status().Paused:
		n.changes.Add(1)
	default:
		n.logger.Warn(what, "sprite", name, "err", err)
	}
}

// noteStage writes to the store whether a machine's sandbox is paused. It reads that at
// the moment of the write, because notes may come late.
func (l *lifecycle) noteStage(m *machine) {
	l.rows.note(m.id, func(s *store.Sprite) {
		switch now := m.now(); {
		case now.sandbox == nil || now.busy != nil:
			// what comes of it is noted then
		case now.paused:
			s.Status = sprites.StatusWarm
		default:
			s.Status = sprites.StatusRunning
		}
	})
}
