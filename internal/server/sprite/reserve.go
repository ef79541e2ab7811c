package sprite

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The reserve is the part of the shared file system that sprites must leave free. It is for the
// database and for the server's own work: checkpoints, memories, uploads. The reserve refuses
// nothing but imports (room.go), which also end before a sprite is held. While less than twice
// the reserve is free, the watch counts in rounds. A round ends when the file system has lost a
// 16th of the reserve. Then the watch asks how much each sprite has written in the round. If
// less than the reserve is free then, the sprite that has written the most is held. A sprite
// that writes little is held only if that little has taken a whole round.

const (
	reserveTick = 10 * time.Second // the longest between two looks at the file system
	diskSpeed   = 2 << 30          // bytes in a second that all sprites together may write
	roundParts  = 16               // of the reserve
	minRound    = 1 << 20

	// No sprite is held for what other programs have written: all sprites together must
	// have written a 4th of the loss.
	explained = 4
)

// DefaultDiskReserve is the reserve of a data folder if nobody says another: 1 GiB, or
// 5 % of its file system if that is less.
func DefaultDiskReserve(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("find the size of the disk of %s: %w", dir, err)
	}
	return int64(min(1<<30, st.Blocks*uint64(st.Bsize)/20)), nil
}

// tick is how long it takes at least until less than twice the reserve is free.
func (fs fileSystem) tick(reserve int64) time.Duration {
	room := max(fs.avail-2*reserve, 0)
	return max(time.Duration(min(float64(room)/diskSpeed*float64(time.Second), float64(reserveTick))), diskTick)
}

// roomAgain reports whether machines that are held because of the reserve may go on.
func (fs fileSystem) roomAgain(reserve int64) bool {
	return reserve == 0 || fs.known && fs.avail >= reserve+max(reserve/4, 64<<20)
}

// roundEnds reports whether the watch must ask who writes: at the end of a round, or to
// begin the first one.
func (fs fileSystem) roundEnds(reserve int64) bool {
	return reserve > 0 && fs.known && !fs.looking && fs.avail < 2*reserve && (!fs.begun || fs.lost-fs.since >= max(reserve/roundParts, minRound))
}

// beginLook reports whether the watch must ask who writes. If so, it notes that the
// look is under way.
func (w *diskWatch) beginLook() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fs.known && w.fs.avail >= 2*w.reserve {
		w.fs.begun = false
	}
	if !w.fs.roundEnds(w.reserve) {
		return false
	}
	w.fs.looking = true
	return true
}

// endLook ends what beginLook began; with round, the next round began when so much was lost.
func (w *diskWatch) endLook(round bool, since int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fs.looking = false; round {
		w.fs.begun, w.fs.since = true, since
	}
}

// endRounds forgets the round that is under way.
func (w *diskWatch) endRounds() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fs.begun = false
}

// written is what a sandbox has written.
type written struct {
	m     *machine
	sb    Sandbox
	total int64 // since it started
	round int64 // of it, in the round that ends
}

// lookWhoWrites ends a round, and holds the machine that must be held, if any.
func (w *diskWatch) lookWhoWrites() {
	var all []written
	for _, m := range w.machines.list() {
		now := m.now()
		if now.sandbox != nil && !now.dead && (!now.paused || !m.disk.counts(now.sandbox)) {
			all = append(all, written{m: m, sb: now.sandbox})
		}
	}
	before := w.last()
	for i, one := range all {
		n, err := one.sb.WrittenBytes()
		if err != nil && !ended(one.sb) {
			w.logger.Error("measuring what a sprite has written", "sprite", one.m.name, "err", err)
		}
		all[i].total = n
		all[i].round = n - one.m.disk.counted(one.sb, n)
	}
	var m *machine
	fs := w.last()
	if fs.avail < w.reserve && !w.imports.endLargest() && before.begun { // imports make room first
		m = mostWritten(all, before.lost-before.since)
	}
	var held bool
	var next step
	if m != nil {
		var busy bool
		if busy, held, next = m.holdFull(w.full(fs), w.changes.Load()); busy {
			w.endLook(false, 0) // the next look is after that, in the same round
			return
		}
	}
	for _, one := range all {
		one.m.disk.count(one.sb, one.total)
	}
	if !held {
		w.endLook(true, before.lost)
		return
	}
	w.halt(m, next)
	w.endRounds() // what it wrote until it stood still is not the others'
	w.endLook(false, 0)
}

// counts reports whether the round began with this sandbox.
func (g *diskGauge) counts(sb Sandbox) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wroteBy == sb
}

// counted is what a sandbox that has written n in all had written when the round began.
func (g *diskGauge) counted(sb Sandbox, n int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wroteBy == sb && n >= g.wrote {
		return g.wrote
	}
	return 0 // it began anew, as one that is moved does
}

// count begins a round for a sandbox that has written n bytes in all so far.
func (g *diskGauge) count(sb Sandbox, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrote, g.wroteBy = n, sb
}

// mostWritten is the machine that has written the most in a round that lost so many
// bytes; nil: sprites did not cause the loss.
func mostWritten(all []written, lost int64) *machine {
	var most written
	var sum int64
	for _, w := range all {
		sum += w.round
		if w.round > most.round {
			most = w
		}
	}
	if sum < lost/explained {
		return nil
	}
	return most.m
}
