package sprite

import (
	"errors"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

// TestPlaces: a starting sprite has a place until the start fails or the sprite is gone. If
// many start at once, no more get a place than there are places.
func TestPlaces(t *testing.T) {
	ms := newMachines()
	ms.places.limit = 1
	lease := func(name string) *Lease { return newLease(ms.of(store.Sprite{ID: name, Name: name}), nil, "test") }
	a, b := lease("a"), lease("b")
	starts := func(l *Lease) {
		t.Helper()
		if busy, next, err := l.acquire(); busy == nil || next != boots || err != nil {
			t.Fatalf("got %v, %v, %v", busy, next, err)
		}
	}
	refused := func(l *Lease) {
		t.Helper()
		_, _, err := l.acquire()
		if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != CodeRunningLimit || e.Count != 1 {
			t.Fatalf("got %v", err)
		}
	}
	starts(a)
	if busy, next, err := a.acquire(); busy == nil || next != nothing || err != nil {
		t.Errorf("of one that starts: got %v, %v, %v", busy, next, err)
	}
	refused(b)
	a.machine.finish(errors.New("it did not start"))
	starts(b)
	refused(a)
	ms.drop(b.machine)
	starts(a)
	b.machine.finish(nil) // which gives back nothing a second time
	refused(lease("c"))
	ms.tasks.close()
	if _, next, err := lease("d").acquire(); next != nothing || err == nil {
		t.Errorf("once the Host is closed: got %v, %v", next, err)
	}
}

// TestOneTransition: while a machine is busy, no other transition begins, and whoever waits
// learns how it ended.
func TestOneTransition(t *testing.T) {
	m := newMachines().of(store.Sprite{ID: "a", Name: "a"})
	if busy, next, err := m.take(false); busy != nil || next != nothing || err != nil {
		t.Fatalf("got %v, %v, %v", busy, next, err)
	}
	mine := m.now().busy
	for what, begin := range map[string]func() (*transition, step, error){
		"take":     func() (*transition, step, error) { return m.take(false) },
		"stopping": func() (*transition, step, error) { return m.stopping(false, true) },
		"acquire":  newLease(m, nil, "test").acquire,
	} {
		if busy, next, err := begin(); busy != mine || next != nothing || err != nil {
			t.Errorf("%s: got %v, %v, %v", what, busy, next, err)
		}
	}
	why := errors.New("why")
	m.finish(why)
	if err := mine.wait(t.Context()); !errors.Is(err, why) || m.now().busy != nil {
		t.Errorf("got %v", err)
	}
	if !m.kill() || m.kill() {
		t.Error("it was deleted twice, or not once")
	}
	if _, _, err := m.take(false); err == nil {
		t.Error("one that is being deleted was taken")
	}
}

// TestLateWatcher: the end of a sandbox that is noticed after the next one has started takes
// nothing from that one. It still falls asleep.
func TestLateWatcher(t *testing.T) {
	first, second := struct{ Sandbox }{}, &struct{ Sandbox }{} // nobody asks them anything
	m := newMachines().of(store.Sprite{ID: "a", Name: "a"})
	m.sleep.times = times{idle: time.Hour}
	m.found(second, false)
	if m.hasEnded(first) || m.now().sandbox != Sandbox(second) || m.sleep.timer == nil {
		t.Errorf("the second sandbox: %v, its timer %v", m.now().sandbox, m.sleep.timer)
	}
	if m.hasEnded(second); m.now().sandbox != nil || m.sleep.timer != nil {
		t.Errorf("after its end: %v, its timer %v", m.now().sandbox, m.sleep.timer)
	}
}
