package sprite

import (
	"strings"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Elsewhere is what Runtime.Lost says if this data folder is a copy, and the original started
// the sandbox. It is the sprite's last error until the sprite boots here.
const Elsewhere = "this data folder is a copy, made while the sprite ran: its sandbox is the original's, and what was only in its memory is not here"

// takeUp makes the store and the memory agree on a sprite at the start. The sandbox sb
// is the sprite's live one, or nil. The store knows the layers known.
func (t *takeover) takeUp(row store.Sprite, sb Sandbox, known map[string]bool) {
	if row.Held != nil {
		t.machines.of(row) // for the watch to let it go on, also after a change of its limit
	}
	switch {
	case row.Deleting || row.Owner == store.PoolOwner || row.Owner == store.BuildOwner:
		m := t.machines.of(row)
		m.condemn(sb)
		ended := make(chan struct{})
		if row.Owner == store.BuildOwner {
			t.builds = append(t.builds, ended)
		}
		t.tasks.more(func() {
			defer close(ended)
			if err := t.lives.destroy(m); err != nil {
				t.logger.Error("finishing a delete", "sprite", row.Name, "err", err)
			}
		})
	case sb != nil && !isFor(sb, row):
		m := t.foundStrange(row, sb)
		t.tasks.more(func() { _ = t.lives.endSandbox(m, false) }) // logged; the next start tries again
	case sb != nil && !isOver(sb, row, known):
		t.reached(row, sb)
		m := t.foundStrange(row, sb)
		t.tasks.more(func() { t.endForeign(m, sb) })
	case sb != nil && sb.Status().Stopping: // the last server was killed in a restore, for example
		t.reached(row, sb)
		m := t.foundStrange(row, sb)
		t.tasks.more(func() { _ = t.lives.endSandbox(m, false) }) // logged; uses wait for it
	case sb != nil:
		t.reached(row, sb)
		m, paused := t.machines.of(row), sb.Status().Paused
		m.found(sb, paused)
		t.tasks.more(func() { t.lives.watch(m, sb) })
		t.tasks.more(func() { t.network.revive(row, sb) })
		t.tasks.more(func() { t.network.reviveConnectors(row.Name, sb) })
		if paused != (row.Status == sprites.StatusWarm) || row.Status == sprites.StatusCold {
			t.lives.noteStage(m)
		}
		if strings.HasPrefix(row.Lost, notKept) { // it did not end
			m.lose("")
			t.rows.note(row.ID, func(s *store.Sprite) { s.Lost = "" })
		}
	case t.runtime.Lost(row.ID) != "":
		t.rows.note(row.ID, func(s *store.Sprite) {
			if s.Status = sprites.StatusCold; t.memories.warm(row.ID) {
				s.Status = sprites.StatusWarm
			}
			s.LastError = t.runtime.Lost(row.ID)
			if s.Status == sprites.StatusCold && row.Status != sprites.StatusCold && elsewhere(t.runtime, row) != nil {
				s.Lost = s.LastError // by the time that another can start
			}
		})
	case t.memories.warm(row.ID):
		if row.Status != sprites.StatusWarm { // a thousand writes take seconds
			t.rows.note(row.ID, func(s *store.Sprite) { s.Status = sprites.StatusWarm })
		}
	case row.Status != sprites.StatusCold:
		t.rows.note(row.ID, func(s *store.Sprite) {
			s.Status = sprites.StatusCold
			s.LastError = "its sandbox ended while no server was running"
			if strings.HasPrefix(s.Lost, notKept) {
				s.LastError = s.Lost
			}
			s.Lost = s.LastError
		})
	}
}

// foundStrange is the machine of a sprite with a sandbox that must end: it is busy with that.
func (t *takeover) foundStrange(row store.Sprite, sb Sandbox) *machine {
	m := t.machines.of(row)
	m.found(sb, false)
	_, _, _ = m.stopping(false, true) // nobody else has it yet
	return m
}

// isFor reports whether a sandbox is a sprite's. One of the pool's may not have become
// so when the server died.
func isFor(sb Sandbox, row store.Sprite) bool {
	name := sb.Status().Hostname
	return name == "" || name == row.Name
}
