package sprite

import (
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A Lease keeps a sprite awake.
type Lease struct {
	machine *machine
	rows    *rows
	why     string
	sandbox Sandbox
	once    sync.Once
}

// newLease keeps a machine awake. The lease has no sandbox yet.
func newLease(m *machine, rows *rows, why string) *Lease {
	l := &Lease{machine: m, rows: rows, why: why}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases[l] = true
	m.sleep.stop()
	return l
}

// Sandbox is the sandbox that was live when the lease was taken. It may have
// ended since.
func (l *Lease) Sandbox() Sandbox { return l.sandbox }

// Removed reports whether the sprite is deleted, or being so.
func (l *Lease) Removed() bool { return l.machine.now().dead }

// Restored reports whether the sandbox ends, or has ended, because the sprite is brought
// back to a checkpoint.
func (l *Lease) Restored() bool { return l.machine.now().undone == l.sandbox }

// Lost is why what ran in the sprite is gone, though nobody had asked for that; empty: it
// is not, or Told was called since.
func (l *Lease) Lost() string { return l.machine.now().lost }

// Told says that a person has learned what Lost says.
func (l *Lease) Told() {
	l.machine.lose("")
	l.rows.note(l.machine.id, func(s *store.Sprite) { s.Lost = "" })
}

// Held says why the lease's sprite is held, or nil. The channel is closed when that
// changes.
func (l *Lease) Held() (held *sprites.Held, changed <-chan struct{}) {
	m := l.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hold.news == nil {
		m.hold.news = make(chan struct{})
	}
	if m.hold.why != nil {
		held = describeHeld(m.name, *m.hold.why)
	}
	return held, m.hold.news
}

// Release lets the sprite sleep, as far as this lease is concerned. It may be
// called more than once.
func (l *Lease) Release() {
	l.once.Do(func() {
		m := l.machine
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.leases, l)
		m.arm(m.sleep.wait(m.paused))
	})
}

// usesOf names what keeps a machine awake, each once, and what it was woken by last.
func usesOf(m *machine) (awakeBy []string, wokenBy string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return names(m.leases), m.wokenBy
}

// acquire gives the lease its sandbox. If a transition is under way, acquire returns it; the
// caller waits for it and calls again. The step next is the transition that acquire itself
// has begun: boots, resumes or nothing.
func (l *Lease) acquire() (busy *transition, next step, err error) {
	m := l.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.tasks.isClosed():
		return nil, nothing, errClosing()
	case m.dead:
		return nil, nothing, errDeleting(m.name)
	case m.busy != nil:
		return m.busy, nothing, nil
	case m.hold.why != nil:
		return nil, nothing, heldError(m.name, m.hold.why)
	}
	there := m.sandbox != nil && !ended(m.sandbox)
	if there && !m.paused {
		l.sandbox = m.sandbox
		return nil, nothing, nil
	}
	if !there {
		m.sandbox, m.paused = nil, false // its watcher is about to notice
		m.changed()
	}
	if !m.left {
		n, ok := m.places.take()
		if !ok {
			err := fail.Newf(CodeRunningLimit, "wait until one falls asleep, or remove one",
				"as many sprites are running as the server allows: %d", n)
			err.Limit, err.Count, err.RetryAfter = m.places.limit, n, 5*time.Second
			return nil, nothing, err
		}
		m.counted = true
	}
	m.wokenBy = l.why
	if there {
		return m.begin(), resumes, nil
	}
	return m.begin(), boots, nil
}
