package sprite

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const reserveMiB = 1 << 20

// TestRoundEnds: when the watch asks who writes, with a reserve of 512 MiB.
func TestRoundEnds(t *testing.T) {
	const mib = reserveMiB
	for _, c := range []struct {
		name    string
		fs      fileSystem
		reserve int64
		want    bool
	}{
		{"plenty of room", fileSystem{known: true, avail: 1024 * mib, begun: true, lost: 900 * mib}, 512 * mib, false},
		{"less than twice the reserve, for the first time", fileSystem{known: true, avail: 1023 * mib}, 512 * mib, true},
		{"little was lost since", fileSystem{known: true, avail: 100 * mib, begun: true, since: 70 * mib, lost: 101 * mib}, 512 * mib, false},
		{"a 16th of the reserve was", fileSystem{known: true, avail: 100 * mib, begun: true, since: 70 * mib, lost: 102 * mib}, 512 * mib, true},
		{"but somebody is asking", fileSystem{known: true, avail: 100 * mib, begun: true, lost: 102 * mib, looking: true}, 512 * mib, false},
		{"not known", fileSystem{}, 512 * mib, false},
		{"no reserve", fileSystem{known: true, begun: true, lost: 102 * mib}, 0, false},
		{"a small reserve, and little was lost", fileSystem{known: true, avail: 5 * mib, begun: true, lost: mib - 1}, 5 * mib, false},
	} {
		if got := c.fs.roundEnds(c.reserve); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}

// TestMostWritten: the sprite that writes the most is held, unless other programs took
// the room.
func TestMostWritten(t *testing.T) {
	const mib = reserveMiB
	for _, c := range []struct {
		name   string
		rounds []int64
		lost   int64
		want   int // the index; -1: nobody
	}{
		{"nobody runs", nil, 32 * mib, -1},
		{"nobody writes", []int64{0, 0}, 32 * mib, -1},
		{"one writes, another a little", []int64{4000, 33 * mib, 0}, 32 * mib, 1},
		{"the little that took a whole round", []int64{32 * mib}, 32 * mib, 0},
		{"a little, while somebody else fills the disk", []int64{mib}, 32 * mib, -1},
		{"many that write alike", []int64{2 * mib, 2 * mib, 3 * mib, 2 * mib, 2 * mib}, 32 * mib, 2},
	} {
		var all []written
		for _, n := range c.rounds {
			all = append(all, written{m: &machine{}, round: n})
		}
		var want *machine
		if c.want >= 0 {
			want = all[c.want].m
		}
		if got := mostWritten(all, c.lost); got != want {
			t.Errorf("%s: got another", c.name)
		}
	}
}

// TestReserveTick: nobody can have written what is above twice the reserve from one look
// to the next.
func TestReserveTick(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		avail int64
		want  time.Duration
	}{
		{1000 * gib, reserveTick},
		{6 * gib, 2 * time.Second},
		{2 * gib, diskTick},
		{0, diskTick},
	} {
		if got := (fileSystem{known: true, avail: c.avail}).tick(gib); got != c.want {
			t.Errorf("with %d GiB: got %v, want %v", c.avail>>30, got, c.want)
		}
	}
	ms := newMachines()
	w := &diskWatch{reserve: gib, dir: t.TempDir(), machines: ms}
	if _, wait := w.due(time.Now()); wait != 0 || w.fs.known {
		t.Errorf("where nothing runs it looks at the file system, every %v", wait)
	}
	ms.of(store.Sprite{ID: "one"}).sandbox = struct{ Sandbox }{}
	if due, wait := w.due(time.Now()); len(due) > 0 || wait < diskTick || !w.fs.known {
		t.Errorf("where a sprite without a limit runs: %v, every %v", due, wait)
	}
}

// TestHeldReason: a sprite's own limit is the stronger reason, and one that sleeps is not
// held because of the reserve.
func TestHeldReason(t *testing.T) {
	const mib = reserveMiB
	live := struct{ Sandbox }{}
	full, none := &sprites.Held{Code: CodeDiskFull}, &diskGauge{}
	for _, c := range []struct {
		name    string
		sandbox Sandbox
		held    *sprites.Held
		disk    *diskGauge
		avail   int64
		reserve int64
		want    string
	}{
		{"nothing", live, nil, none, 0, 512 * mib, ""},
		{"still full", live, full, none, 639 * mib, 512 * mib, CodeDiskFull},
		{"a quarter more than the reserve", live, full, none, 640 * mib, 512 * mib, ""},
		{"of a small one, not 64 MiB more", live, full, none, 67 * mib, 4 * mib, CodeDiskFull},
		{"no reserve", live, full, none, 0, 0, ""},
		{"it sleeps", nil, full, none, 0, 512 * mib, ""},
		{"its own limit, too", live, full, &diskGauge{known: true, limit: 1, used: 1}, 0, 512 * mib, CodeDiskLimit},
		{"its own limit was", live, &sprites.Held{Code: CodeDiskLimit}, &diskGauge{known: true, limit: 2, used: 1}, 0, 512 * mib, ""},
	} {
		m := newMachines().of(store.Sprite{Held: c.held})
		m.sandbox, m.disk = c.sandbox, c.disk
		w := &diskWatch{reserve: c.reserve, fs: fileSystem{known: true, avail: c.avail}, changes: new(atomic.Int64)}
		w.weigh(m)
		got := ""
		if held := m.now().held; held != nil {
			got = held.Code
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
