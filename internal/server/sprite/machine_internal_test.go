package sprite

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
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

// bare is a Runtime in which nothing runs.
type bare struct{ Runtime }

func (bare) Prepare() error                            { return nil }
func (bare) MemoryMB(limit int) int                    { return limit }
func (bare) Unlimited() []string                       { return nil }
func (bare) Live(context.Context) ([]Sandbox, error)   { return nil, nil }
func (bare) Mounted(context.Context) ([]string, error) { return nil, nil }
func (bare) Stock(context.Context) ([]Item, error)     { return nil, nil }
func (bare) RemoveLayer(context.Context, string) error { return nil }
func (bare) Layers() LayerStore                        { return nil }
func (bare) Memories() MemoryStore                     { return nil }
func (bare) Occupied(string) error                     { return nil }

// startBare returns a Host of a Runtime, to be ended by the cleanup.
func startBare(t *testing.T, rt Runtime) *Host {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Store: st, Runtime: rt, Logger: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestTakenRow: a sprite may be deleted before its machine is taken, and its name be another's.
// Then nothing is done to that one, and the machine is forgotten.
func TestTakenRow(t *testing.T) {
	h := startBare(t, bare{})
	if err := h.Store.Sprites.Create(t.Context(), &store.Sprite{ID: "2", Name: "paint", Base: defaultBase}); err != nil {
		t.Fatal(err)
	}
	for id, there := range map[string]bool{"1": false, "2": true} {
		m := h.machines.of(store.Sprite{ID: id, Name: "paint"})
		if _, _, err := m.take(false); err != nil {
			t.Fatal(err)
		}
		row, err := h.lives.takenRow(t.Context(), m)
		m.finish(nil)
		e, ok := errors.AsType[*fail.Error](err)
		if there && (err != nil || row.ID != id) || !there && (!ok || e.Code != CodeNotFound) || (h.machines.known(id) != nil) != there {
			t.Errorf("of sprite %s: got %s, %v; its machine: %v", id, row.ID, err, h.machines.known(id))
		}
	}
}

// booting is a Runtime whose sandboxes do nothing.
type booting struct{ bare }

func (booting) Boot(context.Context, Machine) (Sandbox, error) { return idler{}, nil }

type idler struct{ Sandbox }

func (idler) Done() <-chan struct{} { return nil }
func (idler) Status() SandboxStatus { return SandboxStatus{} }

// TestHeed: the machine of a sprite goes by what was stored last, although its first use had read
// the sprite before.
func TestHeed(t *testing.T) {
	h := startBare(t, booting{})
	if _, err := h.Create(t.Context(), sprites.CreateRequest{Name: "paint", IdleSeconds: new(int64(100)), Config: &sprites.Config{StorageMB: 100}}); err != nil {
		t.Fatal(err)
	}
	before, err := h.Store.Sprites.Get(t.Context(), "paint")
	if err != nil {
		t.Fatal(err)
	}
	update := func(seconds int64, mib int) {
		t.Helper()
		if _, err := h.Update(t.Context(), "paint", sprites.UpdateRequest{IdleSeconds: &seconds, StorageMB: &mib}); err != nil {
			t.Fatal(err)
		}
	}
	var m *machine
	wants := func(seconds int64, mib int64) {
		t.Helper()
		m.mu.Lock()
		defer m.mu.Unlock()
		if limit, _, _ := m.disk.read(); m.sleep.idle != time.Duration(seconds)*time.Second || limit != mib<<20 {
			t.Errorf("it sleeps after %v, and may take %d bytes", m.sleep.idle, limit)
		}
	}
	update(200, 200)
	m = h.machines.of(before)
	l, err := h.Use(t.Context(), "paint", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	wants(200, 200)
	update(300, 300)
	wants(300, 300)
	h.machines.heed(before) // a machine of an older row, which is held for that
	h.disk.noteHeld(m)
	wants(300, 300)
}
