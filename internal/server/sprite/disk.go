package sprite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// A disk limit is kept by a watch: file systems that hold a folder to a quota are rare.
// What a sprite takes is known by a look at all of its files, which takes a while; but
// it can't have grown by more than the file system has lost since then. So the files are
// looked at when that may have been enough, and now and then besides, for others may
// have freed as much at the same time. At its limit a sprite is held: it is paused, and
// nothing uses it, until the limit is raised or something of it is removed.

const (
	diskTick  = 50 * time.Millisecond // between two looks at the file system
	heldTick  = time.Second           // the same, where all that have a limit are held
	diskWalks = 2                     // looks at files at once

	// Of a look that the file system calls for, the rest before the next is so many
	// times as long as it took. It is that much further beyond the limit that a sprite
	// of many files may come.
	diskRest = 4

	// The looks that nothing calls for are to take no more than a 50th of a processor,
	// for all sprites together, but each has one in slowDisk at least.
	spareDisk = 50
	quickDisk = time.Second
	slowDisk  = time.Minute

	// describeDisk is for a look while somebody waits for a description.
	describeDisk = time.Second
)

// An Unnamer is a Sandbox that knows how much of the disk its open files take that no
// name leads to any more, in bytes.
type Unnamer interface {
	UnnamedBytes() (int64, error)
}

// diskGauge is what is known of what a sprite takes. Host.mu guards it.
type diskGauge struct {
	limit int64 // in bytes; 0: none

	known bool
	used  int64         // when it was looked at
	lost  int64         // diskWatch.lost then
	moves int           // diskWatch.moves then
	at    time.Time     // the end of the look
	took  time.Duration // and how long it was

	walking bool
	held    *sprites.Held // nil: it may run
	news    chan struct{} // closed when held becomes another

	last usedDisk

	wrote   int64 // what wroteBy had written when the round began; see diskWatch
	wroteBy Sandbox
}

// diskWatch is what is known of the file system. Host.mu guards it.
type diskWatch struct {
	known  bool
	free   uint64 // bytes
	avail  int64  // of them, what an ordinary user may take
	inodes uint64
	lost   int64 // in bytes, of all the looks at which there were less than before
	moves  int   // looks at which it was another than before

	// A round is a while in which it loses so much that it is asked who writes.
	begun   bool
	since   int64 // lost, at its begin
	looking bool  // it is being asked, or somebody held
}

// may reports whether a sprite may have reached its limit since it was looked at.
func (g *diskGauge) may(w diskWatch) bool { return !g.known || g.used+(w.lost-g.lost) >= g.limit }

// due reports whether a sprite that runs is to be looked at. load is how long a look at
// each of those that run takes, together.
func (g *diskGauge) due(w diskWatch, now time.Time, load time.Duration) bool {
	switch age := now.Sub(g.at); {
	case g.limit == 0 || g.walking:
		return false
	case !g.known:
		return true
	case g.may(w):
		return age >= diskRest*g.took
	default:
		return w.moves != g.moves && age >= min(max(spareDisk*load, quickDisk), slowDisk)
	}
}

// sample looks at the file system. h.mu is held.
func (h *Host) sample() {
	var st unix.Statfs_t
	if h.Data == "" || unix.Statfs(h.Data, &st) != nil {
		return
	}
	w := &h.disk
	free := st.Bfree * uint64(st.Bsize)
	if w.known && free < w.free {
		w.lost += int64(w.free - free)
	}
	if free != w.free || st.Ffree != w.inodes {
		w.moves++
	}
	w.known, w.free, w.inodes = true, free, st.Ffree
	w.avail = int64(st.Bavail) * st.Bsize
}

// watchDisks holds sprites that reach their limits, or take of the reserve, and lets
// those go on that don't any more, until ctx ends.
func (h *Host) watchDisks(ctx context.Context) {
	walks := make(chan struct{}, diskWalks)
	for ctx.Err() == nil {
		due, wait := h.dueDisks(time.Now())
		for _, m := range due {
			select {
			case walks <- struct{}{}:
			default: // the next time
				h.mu.Lock()
				m.disk.walking = false
				h.mu.Unlock()
				continue
			}
			h.wg.Go(func() {
				defer func() { <-walks }()
				h.review(ctx, m)
			})
		}
		if h.beginLook() {
			h.wg.Go(h.lookWhoWrites)
		}
		var tick <-chan time.Time // never, if there is nothing to watch
		if wait > 0 {
			tick = time.After(wait)
		}
		select {
		case <-tick:
		case <-h.diskNews:
		case <-ctx.Done():
		}
	}
}

// dueDisks are the machines that are to be looked at, which are noted as being so, and
// how long to wait until the next look at the file system; 0: until there is news.
func (h *Host) dueDisks(now time.Time) (due []*machine, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var load time.Duration
	var run, held []*machine
	var writing, full bool
	for _, m := range h.machines {
		writing = writing || h.DiskReserve > 0 && !m.dead && m.sandbox != nil && !m.paused
		full = full || m.isFull()
		switch {
		case m.dead || m.disk.limit == 0 && m.disk.held == nil:
		case m.disk.held != nil:
			held = append(held, m)
		case m.sandbox != nil && !m.paused && m.busy == nil:
			run = append(run, m)
			load += m.disk.took
		case m.sandbox != nil && !m.paused:
			wait = diskTick // it is about to
		}
	}
	if len(run) > 0 || writing || full {
		h.sample()
	}
	if writing && wait == 0 {
		wait = h.disk.tick(h.DiskReserve)
	}
	if len(run) > 0 {
		wait = diskTick
	} else if len(held) > 0 && (wait == 0 || wait > heldTick) {
		wait = heldTick
	}
	for _, m := range run {
		if m.disk.due(h.disk, now, load) {
			due = append(due, m)
		}
	}
	// Those that wait the longest come first, or one of many files would have all.
	slices.SortFunc(due, func(a, b *machine) int { return a.disk.at.Compare(b.disk.at) })
	for _, m := range held { // nothing of it is written, but checkpoints may go
		if !m.disk.walking && now.Sub(m.disk.at) >= max(heldTick, diskRest*m.disk.took) {
			due = append(due, m)
		}
	}
	for _, m := range due {
		m.disk.walking = true
	}
	return due, wait
}

// diskChanged has the watch look again at what it has to watch.
func (h *Host) diskChanged() {
	select {
	case h.diskNews <- struct{}{}:
	default:
	}
}

// review looks at what a machine takes, for which walking is set, and does what follows.
func (h *Host) review(ctx context.Context, m *machine) {
	h.mu.Lock()
	measured := m.disk.limit > 0 || !m.isFull()
	m.disk.at = time.Now()
	h.mu.Unlock()
	var err error
	if measured {
		err = h.measure(ctx, m)
	}
	h.mu.Lock()
	m.disk.walking = false
	h.mu.Unlock()
	if errors.Is(err, store.ErrNotFound) || ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, layers.ErrTooDeep) {
		h.Logger.Error("looking at what a sprite takes of the disk", "sprite", m.name, "err", err)
		return
	}
	h.judge(m)
}

// measure looks at what a machine takes. One that can't be measured has reached its
// limit.
func (h *Host) measure(ctx context.Context, m *machine) error {
	h.mu.Lock()
	h.sample()
	lost, moves := h.disk.lost, h.disk.moves
	last, sb := m.disk.last, m.sandbox
	still := sb == nil || m.paused
	h.mu.Unlock()
	began := time.Now()
	u, err := h.used(ctx, m.id, sb, last)
	deep := errors.Is(err, layers.ErrTooDeep)
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &m.disk
	g.at = time.Now()
	g.took = g.at.Sub(began)
	if err != nil && !deep {
		return err
	}
	if deep {
		u.all = max(g.used, g.limit)
	}
	if !still {
		u.layer = "" // it may have been written meanwhile
	}
	g.known, g.used, g.lost, g.moves, g.last = true, u.all, lost, moves, u
	return err
}

// usedDisk is what a sprite takes, in bytes.
type usedDisk struct {
	all     int64
	sealed  int64  // of it, by sealed layers
	of      string // which are these
	written int64  // by the one that is written, and by open files without names
	layer   string // which is this; empty: something else by now
}

// used is what a sprite takes of the disk: all the layers that it and its checkpoints
// need, as if it were the only one that does, and the memories that were kept with them.
// What is of the same layers as last is not looked at again.
func (h *Host) used(ctx context.Context, id string, sb Sandbox, last usedDisk) (u usedDisk, err error) {
	reader, ok := h.Runtime.(DiskReader)
	if !ok {
		return u, nil
	}
	for range 5 {
		u = usedDisk{}
		row, err := h.Store.Sprites.ByID(ctx, id)
		if err != nil {
			return u, err
		}
		usages, err := h.Store.Sprites.Usages(ctx, id)
		if err != nil {
			return u, err
		}
		if _, ok := usages[row.Layer]; !ok {
			continue // it has got another in between
		}
		checkpoints, err := h.Store.Sprites.Checkpoints(ctx, id)
		if err != nil {
			return u, err
		}
		for _, c := range checkpoints {
			u.all += c.MemoryBytes
		}
		delete(usages, row.Layer)
		u.of, u.layer = strings.Join(slices.Sorted(maps.Keys(usages)), " "), row.Layer
		u.sealed, u.written = last.sealed, last.written
		if u.of != last.of {
			if u.sealed, err = sealedBytes(ctx, reader, usages); err != nil {
				return u, err
			}
		}
		if u.layer != last.layer || row.Next.Layer != "" {
			written := []layers.Dir{reader.LayerDir(row.Layer)}
			if row.Next.Layer != "" {
				written = append(written, reader.LayerDir(row.Next.Layer))
			}
			if u.written, err = writtenBytes(ctx, written, sb); err != nil {
				return u, err
			}
		}
		u.all += u.sealed + u.written
		return u, nil
	}
	return u, fmt.Errorf("the disk of sprite %s changes all the time", id)
}

// writtenBytes is what layers take that a sandbox, or nobody, is writing.
func writtenBytes(ctx context.Context, written []layers.Dir, sb Sandbox) (int64, error) {
	n, err := layers.Used(ctx, written...)
	unnamer, ok := sb.(Unnamer)
	if !ok || err != nil || ended(sb) {
		return n, err
	}
	unnamed, err := unnamer.UnnamedBytes()
	if err != nil && ended(sb) {
		err = nil
	}
	return n + unnamed, err
}

// sealedBytes is what sealed layers take. Those that were merged share files with those
// that they were made of, if these are still there: then all are looked at.
func sealedBytes(ctx context.Context, reader DiskReader, all map[string]store.Usage) (n int64, err error) {
	var unknown []layers.Dir
	merged := slices.ContainsFunc(slices.Collect(maps.Values(all)), func(u store.Usage) bool { return u.Level > 0 })
	for layer, u := range all {
		if merged || u.Digest == "" {
			unknown = append(unknown, reader.LayerDir(layer))
			continue
		}
		n += u.Disk
	}
	more, err := layers.Used(ctx, unknown...)
	return n + more, err
}

// judge holds a machine that has a reason to be held, or lets one go on that has none.
func (h *Host) judge(m *machine) {
	h.mu.Lock()
	g := &m.disk
	code := h.reason(m)
	switch {
	case m.dead || h.closed || code == "" && g.held == nil:
		h.mu.Unlock()
	case code == "":
		h.letOn(m) // which releases h.mu
	case g.held != nil && g.held.Code == code && (m.sandbox == nil || m.paused):
		before := *g.held
		h.hold(m, code)
		news := code == CodeDiskLimit && before != *g.held
		h.mu.Unlock()
		if news {
			h.noteHeld(m)
		}
	default:
		h.halt(m, code) // which releases h.mu
	}
}

// reason is the code of why a machine is to be held; empty: it may run. Its own limit
// comes before the reserve. h.mu is held.
func (h *Host) reason(m *machine) string {
	g := &m.disk
	switch {
	case g.limit > 0 && g.known && g.used >= g.limit:
		return CodeDiskLimit
	case m.isFull() && m.sandbox != nil && !h.disk.roomAgain(h.DiskReserve):
		return CodeDiskFull // one that sleeps writes nothing, and may be woken to remove files
	}
	return ""
}

// halt holds a machine, and pauses it. h.mu is held, and released.
func (h *Host) halt(m *machine, code string) {
	if m.busy != nil {
		h.mu.Unlock()
		return // the next look is after that
	}
	pauser, ok := m.sandbox.(Pauser)
	if !ok || m.paused || ended(m.sandbox) {
		h.hold(m, code)
		h.mu.Unlock()
		h.noteHeld(m)
		return
	}
	m.disarm()
	m.busy, m.told = newTransition(), h.changes
	g := &m.disk
	h.hold(m, code)
	look, found := g.took, g.used
	h.mu.Unlock()
	began := time.Now()
	noted := make(chan struct{})
	h.wg.Go(func() { defer close(noted); h.noteHeld(m) }) // for the next server, if this one dies in the middle
	h.pause(m, pauser)
	pause := time.Since(began)
	<-noted
	if code == CodeDiskFull {
		h.mu.Lock()
		h.sample()
		left := h.disk.avail
		h.mu.Unlock()
		h.Logger.Warn("the disk is almost full, and the sprite that writes the most is paused", "sprite", m.name, "left", left, "reserve", h.DiskReserve, "pause", pause)
		return
	}
	// Now it grows no more, and can be looked at in peace.
	if err := h.measure(h.ctx, m); err == nil {
		h.mu.Lock()
		if m.disk.held != nil {
			m.disk.held.UsedBytes = m.disk.used
		}
		h.mu.Unlock()
		h.noteHeld(m)
	}
	h.mu.Lock()
	used, limit := g.used, g.limit
	h.mu.Unlock()
	h.Logger.Warn("a sprite has reached its disk limit, and is paused", "sprite", m.name, "used", used, "limit", limit, "found", found, "look", look, "pause", pause)
}

// hold notes why a machine is held. h.mu is held.
func (h *Host) hold(m *machine, code string) {
	if m.disk.held == nil || m.disk.held.Code != code {
		m.disk.held = &sprites.Held{Code: code, Since: time.Now().UTC()}
		m.disk.changed()
	}
	if code == CodeDiskFull {
		m.disk.held.FreeBytes, m.disk.held.ReserveBytes = h.disk.avail, h.DiskReserve
		return
	}
	m.disk.held.UsedBytes, m.disk.held.LimitBytes = m.disk.used, m.disk.limit
}

// letOn has a machine that was held go on, if it was paused for that. h.mu is held, and
// released.
func (h *Host) letOn(m *machine) {
	if m.busy != nil {
		h.mu.Unlock()
		return // the next look is after that
	}
	m.disk.held = nil
	m.disk.changed()
	if m.sandbox != nil && m.paused && !ended(m.sandbox) {
		h.beginResume(m)
	}
	h.mu.Unlock()
	h.noteHeld(m)
	h.Logger.Info("a sprite is held no more, and may go on", "sprite", m.name)
}

// changed tells who waits for it that held is another. Host.mu is held.
func (g *diskGauge) changed() {
	if g.news != nil {
		close(g.news)
		g.news = nil
	}
}

// noteHeld writes to the store whether a machine is held, as it is when it is written.
func (h *Host) noteHeld(m *machine) {
	h.note(m.id, func(s *store.Sprite) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.Held = nil; m.disk.held != nil {
			s.Held = new(*m.disk.held)
		}
	})
}

// admit returns an error if what a machine takes of the disk forbids that anything runs
// in it: it is held, or would be at once. The machine is busy.
func (h *Host) admit(m *machine) error {
	h.mu.Lock()
	if m.disk.limit == 0 && m.disk.held == nil {
		h.mu.Unlock()
		return nil
	}
	h.sample()
	look := m.disk.held == nil && m.disk.may(h.disk)
	h.mu.Unlock()
	if look {
		if err := h.measure(h.ctx, m); err != nil && !errors.Is(err, layers.ErrTooDeep) {
			return err
		}
	}
	h.mu.Lock()
	g := &m.disk
	if g.held == nil && g.limit > 0 && g.used >= g.limit {
		h.hold(m, CodeDiskLimit)
		defer h.noteHeld(m)
	}
	defer h.mu.Unlock()
	return m.heldError()
}

// heldError is what a use of a machine that is held gets; nil: it is not. Host.mu is
// held.
func (m *machine) heldError() error {
	if m.disk.held == nil {
		return nil
	}
	d := describeHeld(m.name, *m.disk.held)
	return fail.New(d.Code, d.Message, d.Hint)
}

// heldBy is heldError for who does not hold Host.mu.
func (h *Host) heldBy(m *machine) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return m.heldError()
}

// describeHeld says for people why a sprite is held.
func describeHeld(name string, held sprites.Held) *sprites.Held {
	const mib = 1 << 20
	if held.Code == CodeDiskFull {
		held.Message = fmt.Sprintf("the server's disk has only %d MiB left, and keeps %d free: sprite %s, which wrote to it the most, stands still", held.FreeBytes/mib, held.ReserveBytes/mib, name)
		held.Hint = fmt.Sprintf("free room on the server's disk, or remove sprites or checkpoints: cove list; cove rm NAME; then it goes on by itself; or %s", endAndRemove(name))
		return &held
	}
	held.Message = fmt.Sprintf("sprite %s has reached its disk limit: it takes %d MiB of %d, and stands still", name, held.UsedBytes/mib, held.LimitBytes/mib)
	// Half as much again, and more than it takes.
	more := max(held.LimitBytes, held.UsedBytes) / mib * 3 / 2
	held.Hint = fmt.Sprintf("raise the limit with: cove update %s --disk %dM; then it goes on; or remove checkpoints: cove checkpoint list --all -s %s", name, more, name)
	return &held
}

// Held says why the sprite that the lease is of stands still, or nil, and returns what
// is closed when that changes.
func (l *Lease) Held() (held *sprites.Held, changed <-chan struct{}) {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	m := l.machine
	if m.disk.news == nil {
		m.disk.news = make(chan struct{})
	}
	if m.disk.held != nil {
		held = describeHeld(m.name, *m.disk.held)
	}
	return held, m.disk.news
}

// reviewNow looks at what a sprite takes that was changed from outside, if that may let
// it go on, or hold it.
func (h *Host) reviewNow(ctx context.Context, id string) {
	row, err := h.Store.Sprites.ByID(ctx, id)
	h.mu.Lock()
	m := h.machines[id]
	if m == nil || m.dead || err != nil {
		h.mu.Unlock()
		return
	}
	m.disk.limit = row.Config.DiskLimit()
	watched := m.disk.limit > 0 || m.disk.held != nil
	look := m.disk.limit > 0 && (m.disk.held != nil || m.disk.may(h.disk))
	h.mu.Unlock()
	if !watched {
		return
	}
	if look {
		if err := h.measure(ctx, m); err != nil {
			h.Logger.Error("looking at what a sprite takes of the disk", "sprite", m.name, "err", err)
		}
	}
	h.judge(m)
	h.diskChanged()
}

// diskUsed is what a sprite that has a limit takes, for a description; 0: that is not
// known, or it has none.
func (h *Host) diskUsed(ctx context.Context, row store.Sprite) int64 {
	if row.Config.DiskLimit() == 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, describeDisk)
	defer cancel()
	h.mu.Lock()
	m := h.machines[row.ID]
	var known int64
	var sb Sandbox
	if m != nil {
		sb, known = m.sandbox, m.disk.used
	}
	h.mu.Unlock()
	u, err := h.used(ctx, row.ID, sb, usedDisk{})
	if err != nil {
		return known
	}
	return u.all
}
