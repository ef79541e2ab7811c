package sprite

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestDiskDue is the decision when the files of a sprite that runs are looked at.
func TestDiskDue(t *testing.T) {
	const mib = 1 << 20
	now := time.Now()
	gauge := func(change func(*diskGauge)) *diskGauge {
		g := &diskGauge{limit: 100 * mib, known: true, used: 40 * mib, lost: 7 * mib, moves: 3, at: now.Add(-500 * time.Millisecond), took: time.Millisecond}
		change(g)
		return g
	}
	at := func(lost int64, moves int) fileSystem { return fileSystem{known: true, lost: lost, moves: moves} }
	for _, c := range []struct {
		name string
		g    *diskGauge
		fs   fileSystem
		load time.Duration
		want bool
	}{
		{"without a limit", gauge(func(g *diskGauge) { g.limit, g.used = 0, 1000*mib }), at(5000*mib, 9), 0, false},
		{"never looked at", gauge(func(g *diskGauge) { g.known = false }), at(7*mib, 3), 0, true},
		{"being looked at", gauge(func(g *diskGauge) { g.walking = true }), at(5000*mib, 9), 0, false},
		{"the file system has lost too little", gauge(func(*diskGauge) {}), at((7+59)*mib, 9), 0, false},
		{"it has lost enough", gauge(func(*diskGauge) {}), at((7+60)*mib, 9), 0, true},
		{"enough, but the last look took long", gauge(func(g *diskGauge) { g.took = 200 * time.Millisecond }), at((7+60)*mib, 9), 0, false},
		{"and it has rested", gauge(func(g *diskGauge) { g.took, g.at = 200*time.Millisecond, now.Add(-time.Second) }), at((7+60)*mib, 9), 0, true},
		{"beyond the limit already", gauge(func(g *diskGauge) { g.used = 101 * mib }), at(7*mib, 3), 0, true},
		{"a while ago, and others may have freed as much", gauge(func(g *diskGauge) { g.at = now.Add(-2 * time.Second) }), at(8*mib, 4), 0, true},
		{"a while ago, but nothing was written or freed", gauge(func(g *diskGauge) { g.at = now.Add(-time.Hour) }), at(7*mib, 3), 0, false},
		{"a while ago, but there are many", gauge(func(g *diskGauge) { g.at = now.Add(-2 * time.Second) }), at(8*mib, 4), 100 * time.Millisecond, false},
		{"one look in a minute there is in any case", gauge(func(g *diskGauge) { g.at = now.Add(-slowDisk) }), at(8*mib, 4), time.Hour, true},
	} {
		if got := c.g.due(c.fs, now, c.load); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}

// newMachines is the machines of a Host that looks after nothing else.
func newMachines() *machines {
	return &machines{tasks: newTasks(context.Background()), places: &places{}, all: map[string]*machine{}}
}

// TestDueDisks: only what runs is looked at, the one that has waited the longest first,
// and where nothing has a limit nothing is awaited.
func TestDueDisks(t *testing.T) {
	now := time.Now()
	ms := newMachines()
	w := &diskWatch{machines: ms}
	add := func(name string, change func(*machine)) {
		m := ms.of(store.Sprite{ID: name, Name: name})
		change(m)
	}
	limited := func(m *machine, ago time.Duration) {
		m.disk = &diskGauge{limit: 1, known: true, used: 2, at: now.Add(-ago)}
	}
	due := func() (names []string, wait time.Duration) {
		all, wait := w.due(now)
		for _, m := range all {
			names = append(names, m.name)
		}
		return names, wait
	}
	live := struct{ Sandbox }{} // nobody asks it anything
	add("unlimited", func(m *machine) { m.sandbox = live })
	add("cold", func(m *machine) { limited(m, time.Hour) })
	add("paused", func(m *machine) { m.sandbox, m.paused = live, true; limited(m, time.Hour) })
	add("deleted", func(m *machine) { m.sandbox, m.dead = live, true; limited(m, time.Hour) })
	if names, wait := due(); len(names) > 0 || wait != 0 {
		t.Errorf("where nothing runs that has a limit: %v, in %v", names, wait)
	}
	add("held", func(m *machine) {
		m.sandbox, m.paused, m.hold.why = live, true, &sprites.Held{}
		limited(m, time.Hour)
	})
	if names, wait := due(); !slices.Equal(names, []string{"held"}) || wait != heldTick {
		t.Errorf("where one is held: %v, in %v", names, wait)
	}
	add("new", func(m *machine) { m.sandbox = live; limited(m, time.Minute) })
	add("old", func(m *machine) { m.sandbox = live; limited(m, time.Hour) })
	add("starting", func(m *machine) { m.busy = &transition{}; limited(m, time.Hour) })
	add("moving", func(m *machine) { m.sandbox, m.busy = live, &transition{}; limited(m, time.Hour) })
	if names, wait := due(); !slices.Equal(names, []string{"old", "new"}) || wait != diskTick {
		t.Errorf("of all: %v, in %v", names, wait)
	}
	if names, _ := due(); len(names) > 0 {
		t.Errorf("those that are being looked at are to be looked at: %v", names)
	}
}

// TestDescribeHeld: the hint is a command that makes room.
func TestDescribeHeld(t *testing.T) {
	got := describeHeld("paint", sprites.Held{Code: CodeDiskLimit, UsedBytes: 300 << 20, LimitBytes: 100 << 20})
	if got.Message != "sprite paint has reached its disk limit: it takes 300 MiB of 100, and is paused" ||
		got.Hint != "raise the limit with: cove update paint --disk 450M; then it resumes; or remove checkpoints: cove checkpoint list --all -s paint" {
		t.Errorf("got %+v", got)
	}
}

// TestFullHints: no hint for a full disk sends into a sprite that nothing gets into.
func TestFullHints(t *testing.T) {
	const out = "end its programs, and delete some of its files: cove restart paint; cove exec -s paint -- rm FILE"
	held := describeHeld("paint", sprites.Held{Code: CodeDiskFull})
	if !strings.HasSuffix(held.Hint, out) || strings.Contains(held.Hint, "suspend") {
		t.Errorf("of one that is held: %s", held.Hint)
	}
	ms := newMachines()
	m := ms.of(store.Sprite{ID: "1", Name: "paint"})
	if got := ms.deletedOpen("1"); got != closeSome {
		t.Errorf("deleted files of one that runs: %s", got)
	}
	m.hold.why = held
	if got := ms.deletedOpen("1"); got != out {
		t.Errorf("deleted files of one that is held: %s", got)
	}
}

// TestDiskLimitOf: cove's own key takes the place of the protocol's.
func TestDiskLimitOf(t *testing.T) {
	for _, c := range []struct {
		config sprites.Config
		want   int64
	}{
		{sprites.Config{}, 0},
		{sprites.Config{StorageGB: 2}, 2 << 30},
		{sprites.Config{StorageGB: 2, StorageMB: 100}, 100 << 20},
	} {
		if got := c.config.DiskLimit(); got != c.want {
			t.Errorf("%+v: got %d", c.config, got)
		}
	}
	m := newMachine(store.Sprite{Config: sprites.Config{StorageGB: 1}, Held: &sprites.Held{UsedBytes: 7}})
	if m.disk.limit != 1<<30 || m.hold.why == nil || m.hold.why.UsedBytes != 7 {
		t.Errorf("a machine of a sprite that is held: %+v, limit %d", m.hold.why, m.disk.limit)
	}
}
