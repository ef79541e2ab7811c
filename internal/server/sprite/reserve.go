package sprite

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The reserve is what sprites are to leave free of the file system that all share, for
// the database, and for what the server does: checkpoints, memories, uploads. It refuses
// nothing but imports (room.go), which also end before a sprite is held. While there is
// less than twice the reserve, what is lost is divided into rounds of a 16th of it, and at the end of each it is asked what each sprite has written
// in it. If there is less than the reserve then, the one that has written the most is
// held. One that writes little is so only if that little has taken a whole round.

const (
	reserveTick = 10 * time.Second // the longest between two looks at the file system
	diskSpeed   = 2 << 30          // bytes in a second that all sprites together may write
	roundParts  = 16               // of the reserve
	minRound    = 1 << 20

	// What others than sprites have written is nobody's fault: to hold one, all of them
	// must have written a 4th of what was lost.
	explained = 4
)

// A WriteCounter is a Sandbox that knows how much was written to files of the disk from
// inside, since it started, in bytes.
type WriteCounter interface {
	WrittenBytes() (int64, error)
}

// DefaultDiskReserve is the reserve of a data folder if nobody says another: 1 GiB, or
// 5 % of its file system if that is less.
func DefaultDiskReserve(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look how large the disk of %s is: %w", dir, err)
	}
	return int64(min(1<<30, st.Blocks*uint64(st.Bsize)/20)), nil
}

// DiskFree is how much of the file system of Data an ordinary user may take, in bytes; 0:
// that is not known.
func (h *Host) DiskFree() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sample()
	return h.disk.avail
}

// isFull reports whether a machine is held because of the reserve. Host.mu is held.
func (m *machine) isFull() bool { return m.disk.held != nil && m.disk.held.Code == CodeDiskFull }

// tick is how long it takes at least until who writes is to be known.
func (w diskWatch) tick(reserve int64) time.Duration {
	room := max(w.avail-2*reserve, 0)
	return max(time.Duration(min(float64(room)/diskSpeed*float64(time.Second), float64(reserveTick))), diskTick)
}

// roomAgain reports whether who is held because of the reserve may go on.
func (w diskWatch) roomAgain(reserve int64) bool {
	return reserve == 0 || w.known && w.avail >= reserve+max(reserve/4, 64<<20)
}

// roundEnds reports whether it is to be asked who writes, with the first round's begin.
func (w diskWatch) roundEnds(reserve int64) bool {
	return reserve > 0 && w.known && !w.looking && w.avail < 2*reserve && (!w.begun || w.lost-w.since >= max(reserve/roundParts, minRound))
}

// beginLook reports whether it is to be asked who writes, which is noted as being done.
func (h *Host) beginLook() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.disk.known && h.disk.avail >= 2*h.DiskReserve {
		h.disk.begun = false
	}
	if !h.disk.roundEnds(h.DiskReserve) {
		return false
	}
	h.disk.looking = true
	return true
}

// written is what a sandbox has written.
type written struct {
	m     *machine
	sb    Sandbox
	total int64 // since it started
	round int64 // of it, in the round that ends
}

// lookWhoWrites ends a round, and holds the one that has to be.
func (h *Host) lookWhoWrites() {
	h.mu.Lock()
	var all []written
	for _, m := range h.machines {
		if m.sandbox != nil && !m.dead && (!m.paused || m.disk.wroteBy != m.sandbox) {
			all = append(all, written{m: m, sb: m.sandbox})
		}
	}
	begun, at := h.disk.begun, h.disk.lost
	lost := at - h.disk.since
	h.mu.Unlock()
	for i, w := range all {
		c, ok := w.sb.(WriteCounter)
		if !ok {
			continue
		}
		n, err := c.WrittenBytes()
		if err != nil && !ended(w.sb) {
			h.Logger.Error("looking at what a sprite has written", "sprite", w.m.name, "err", err)
		}
		all[i].total = n
	}
	h.mu.Lock()
	defer func() { h.disk.looking = false; h.mu.Unlock() }()
	for i, w := range all {
		all[i].round = w.total
		if g := &w.m.disk; g.wroteBy == w.sb && w.total >= g.wrote { // else it began anew, as one that is moved does
			all[i].round -= g.wrote
		}
	}
	var m *machine
	if h.disk.avail < h.DiskReserve && !h.room.endLargest() && begun { // imports make room first
		m = mostWritten(all, lost)
	}
	if m != nil && m.busy != nil {
		return // the next look is after that, in the same round
	}
	for _, w := range all {
		w.m.disk.wrote, w.m.disk.wroteBy = w.total, w.sb
	}
	h.disk.begun, h.disk.since = true, at
	if m == nil || m.dead || h.closed || m.sandbox == nil || m.paused || m.disk.held != nil {
		return
	}
	h.halt(m, CodeDiskFull) // which releases h.mu
	h.mu.Lock()
	h.disk.begun = false // what it wrote until it stood still is not the others'
}

// mostWritten is the machine that has written the most in a round in which so much was
// lost; nil: it was not sprites that did that.
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
