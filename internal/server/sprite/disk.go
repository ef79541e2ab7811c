package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// A watch enforces disk limits: file systems that hold a folder to a quota are rare. To
// know how much a sprite takes, the watch must look at all of its files, which takes a
// while. But a sprite can't have grown by more than the file system has lost since then.
// So the watch looks at the files if the loss may have been enough. It also looks now
// and then besides, because others may have freed as much at the same time. At its limit
// a sprite is held: it is paused, and nothing uses it, until the limit is raised or
// something of it is removed.

const (
	diskTick  = 50 * time.Millisecond // between two looks at the file system
	heldTick  = time.Second           // the same, if all sprites that have a limit are held
	diskWalks = 2                     // looks at files at once

	// After a look that the file system calls for, the watch rests for so many times as
	// long as the look took. During that rest, a sprite with many files may get further
	// beyond its limit.
	diskRest = 4

	// The other looks, for all sprites together, take at most a 50th of a processor.
	// But each sprite gets one every slowDisk at least.
	shareDisk = 50
	quickDisk = time.Second
	slowDisk  = time.Minute

	// describeDisk is for a look while somebody waits for a description.
	describeDisk = time.Second
)

// ErrNoProcess is the error for a sandbox whose process has ended. Either the sandbox is about
// to end, or a checkpoint has another process take it over.
var ErrNoProcess = errors.New("the sandbox has no process")

// diskGauge has what is known about the disk use of a sprite.
type diskGauge struct {
	mu sync.Mutex // no other lock is taken while it is held

	limit int64 // in bytes; 0: none

	known bool
	used  int64         // when it was looked at
	lost  int64         // fileSystem.lost then
	moves int           // fileSystem.moves then
	at    time.Time     // the end of the look
	took  time.Duration // and how long it was

	walking bool

	last usedDisk

	wrote   int64 // what wroteBy had written when the round began; see fileSystem
	wroteBy Sandbox
}

// fileSystem has what is known about the file system.
type fileSystem struct {
	known  bool
	free   uint64 // bytes
	avail  int64  // of them, what an ordinary user may take
	inodes uint64
	lost   int64 // in bytes, of all the looks at which there were less than before
	moves  int   // looks at which it was another than before

	// A round ends when the file system has lost so much that the watch asks who
	// writes.
	begun   bool
	since   int64 // lost, at its begin
	looking bool  // it is being asked, or somebody held
}

// may reports whether a sprite may have reached its limit since it was looked at. mu is held.
func (g *diskGauge) may(fs fileSystem) bool { return !g.known || g.used+(fs.lost-g.lost) >= g.limit }

// due reports whether the watch must look at a running sprite. The duration load is how
// long one look at each running sprite takes, all together. The caller holds mu.
func (g *diskGauge) due(fs fileSystem, now time.Time, load time.Duration) bool {
	switch age := now.Sub(g.at); {
	case g.limit == 0 || g.walking:
		return false
	case !g.known:
		return true
	case g.may(fs):
		return age >= diskRest*g.took
	default:
		return fs.moves != g.moves && age >= min(max(shareDisk*load, quickDisk), slowDisk)
	}
}

// rested reports whether the watch must look at a held sprite. The caller holds mu.
func (g *diskGauge) rested(now time.Time) bool {
	return !g.walking && now.Sub(g.at) >= max(heldTick, diskRest*g.took)
}

// read returns the limit, and what the sprite took when it was looked at; over: that is its
// limit, or more.
func (g *diskGauge) read() (limit, used int64, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit, g.used, g.limit > 0 && g.known && g.used >= g.limit
}

// look reports whether a sprite with a limit may have reached it.
func (g *diskGauge) look(fs fileSystem) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit > 0 && g.may(fs)
}

// weight is the limit, and how long a look at the files takes.
func (g *diskGauge) weight() (limit int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit, g.took
}

// begin begins a look if it is due; the caller calls end. last is when the one before ended.
func (g *diskGauge) begin(due func() bool) (last time.Time, begun bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !due() {
		return time.Time{}, false
	}
	g.walking = true
	return g.at, true
}

// end ends a look.
func (g *diskGauge) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.walking = false
}

// before is what the last look has seen, for the one that begins.
func (g *diskGauge) before() (last usedDisk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = time.Now()
	return g.last
}

// set notes what a look has seen, when the file system was fs: it took so long.
func (g *diskGauge) set(u usedDisk, fs fileSystem, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known, g.used, g.lost, g.moves, g.last = true, u.all, fs.lost, fs.moves, u
	g.at, g.took = time.Now(), took
}

// failed notes that nothing could be seen.
func (g *diskGauge) failed(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at, g.took = time.Now(), took
}

// setLimit takes up a changed limit.
func (g *diskGauge) setLimit(limit int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit = limit
}

// diskWatch holds sprites that reach their limits, or take of the reserve, and lets those go
// on that don't any more. It begins with start, and ends with close.
type diskWatch struct {
	dir      string // whose file system is watched; empty: none is
	reserve  int64
	runtime  Runtime
	rows     *rows
	machines *machines
	changes  *atomic.Int64 // of networks
	logger   *slog.Logger

	pause  func(*machine, Pauser) // does the transition pauses
	resume func(*machine)         // and resumes

	imports diskRoom
	news    chan struct{} // has a value when there is something else to watch

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex // no other lock is taken while it is held
	fs fileSystem
}

func (w *diskWatch) start(ctx context.Context) {
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.wg.Go(w.watch)
}

// close ends the watch, if it was started. Sprites that are held stay so.
func (w *diskWatch) close() {
	if w.cancel != nil {
		w.cancel()
		w.wg.Wait()
	}
}

// sample looks at the file system.
func (w *diskWatch) sample() fileSystem {
	w.mu.Lock()
	defer w.mu.Unlock()
	var st unix.Statfs_t
	if w.dir == "" || unix.Statfs(w.dir, &st) != nil {
		return w.fs
	}
	free := st.Bfree * uint64(st.Bsize)
	if w.fs.known && free < w.fs.free {
		w.fs.lost += int64(w.fs.free - free)
	}
	if free != w.fs.free || st.Ffree != w.fs.inodes {
		w.fs.moves++
	}
	w.fs.known, w.fs.free, w.fs.inodes = true, free, st.Ffree
	w.fs.avail = int64(st.Bavail) * st.Bsize
	return w.fs
}

// last is what the last sample has seen.
func (w *diskWatch) last() fileSystem {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fs
}

func (w *diskWatch) watch() {
	walks := make(chan struct{}, diskWalks)
	for w.ctx.Err() == nil {
		due, wait := w.due(time.Now())
		for _, m := range due {
			select {
			case walks <- struct{}{}:
			default: // the next time
				m.disk.end()
				continue
			}
			w.wg.Go(func() {
				defer func() { <-walks }()
				w.review(m)
			})
		}
		if w.beginLook() {
			w.wg.Go(w.lookWhoWrites)
		}
		var tick <-chan time.Time // never, if there is nothing to watch
		if wait > 0 {
			tick = time.After(wait)
		}
		select {
		case <-tick:
		case <-w.news:
		case <-w.ctx.Done():
		}
	}
}

// due returns the machines to look at, and marks them as being looked at. The duration
// wait is the time until the next look at the file system; 0: until there is news.
func (w *diskWatch) due(now time.Time) (due []*machine, wait time.Duration) {
	var load time.Duration
	var run, held []*machine
	var writing, full bool
	for _, m := range w.machines.list() {
		s := m.now()
		limit, took := m.disk.weight()
		writing = writing || w.reserve > 0 && !s.dead && s.runs()
		full = full || s.isFull()
		switch {
		case s.dead || limit == 0 && s.held == nil:
		case s.held != nil:
			held = append(held, m)
		case s.runs() && s.busy == nil:
			run = append(run, m)
			load += took
		case s.runs():
			wait = diskTick // it is about to
		}
	}
	fs := w.last()
	if len(run) > 0 || writing || full {
		fs = w.sample()
	}
	if writing && wait == 0 {
		wait = fs.tick(w.reserve)
	}
	if len(run) > 0 {
		wait = diskTick
	} else if len(held) > 0 && (wait == 0 || wait > heldTick) {
		wait = heldTick
	}
	at := map[*machine]time.Time{}
	for _, m := range run {
		if last, begun := m.disk.begin(func() bool { return m.disk.due(fs, now, load) }); begun {
			due, at[m] = append(due, m), last
		}
	}
	// Sprites that have waited longest come first. Otherwise one with many files would
	// get all looks.
	slices.SortFunc(due, func(a, b *machine) int { return at[a].Compare(at[b]) })
	for _, m := range held { // nothing of it is written, but checkpoints may go
		if _, begun := m.disk.begin(func() bool { return m.disk.rested(now) }); begun {
			due = append(due, m)
		}
	}
	return due, wait
}

// changed has the watch look again at what it has to watch.
func (w *diskWatch) changed() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// review looks at what a machine takes, for which walking is set, and does what follows.
func (w *diskWatch) review(m *machine) {
	var err error
	if limit, _ := m.disk.weight(); limit > 0 || !m.now().isFull() {
		err = w.measure(w.ctx, m)
	} else {
		m.disk.before()
	}
	m.disk.end()
	if errors.Is(err, store.ErrNotFound) || w.ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, layers.ErrTooDeep) {
		w.logger.Error("measuring a sprite's disk use", "sprite", m.name, "err", err)
		return
	}
	w.judge(m)
}

// measure looks at what a machine takes. One that can't be measured has reached its
// limit; one that has no process at the moment takes what it took.
func (w *diskWatch) measure(ctx context.Context, m *machine) error {
	fs, now := w.sample(), m.now()
	last := m.disk.before()
	began := time.Now()
	u, err := w.used(ctx, m.id, now.sandbox, last)
	took := time.Since(began)
	if errors.Is(err, layers.ErrTooDeep) {
		limit, used, _ := m.disk.read()
		u.all = max(used, limit)
	} else if errors.Is(err, ErrNoProcess) { // the next look finds another, or none
		m.disk.failed(took)
		return nil
	} else if err != nil {
		m.disk.failed(took)
		return err
	}
	if now.runs() {
		u.layer = "" // it may have been written meanwhile
	}
	m.disk.set(u, fs, took)
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

// used is how much of the disk a sprite takes. It counts all layers that the sprite and
// its checkpoints need, as if nobody shared them, and the memories kept with them. If
// the sealed layers are the same as in last, used takes their size from there.
func (w *diskWatch) used(ctx context.Context, id string, sb Sandbox, last usedDisk) (u usedDisk, err error) {
	disks := w.runtime.Layers()
	if disks == nil {
		return u, nil
	}
	for range 5 {
		u = usedDisk{}
		row, err := w.rows.sprites.ByID(ctx, id)
		if err != nil {
			return u, err
		}
		usages, err := w.rows.sprites.Usages(ctx, id)
		if err != nil {
			return u, err
		}
		if _, ok := usages[row.Layer]; !ok {
			continue // it has got another in between
		}
		checkpoints, err := w.rows.sprites.Checkpoints(ctx, id)
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
			if u.sealed, err = sealedBytes(ctx, disks, usages); err != nil {
				return u, err
			}
		}
		if u.layer != last.layer || row.Next.Layer != "" {
			written := []layers.Dir{disks.Dir(row.Layer)}
			if row.Next.Layer != "" {
				written = append(written, disks.Dir(row.Next.Layer))
			}
			if u.written, err = writtenBytes(ctx, written, sb); err != nil {
				return u, err
			}
		}
		u.all += u.sealed + u.written
		return u, nil
	}
	return u, fmt.Errorf("the disk of sprite %s keeps changing", id)
}

// writtenBytes is what layers take that a sandbox, or nobody, is writing.
func writtenBytes(ctx context.Context, written []layers.Dir, sb Sandbox) (int64, error) {
	n, err := layers.Used(ctx, written...)
	if sb == nil || err != nil || ended(sb) {
		return n, err
	}
	unnamed, err := sb.UnnamedBytes()
	if err != nil && ended(sb) {
		err = nil
	}
	return n + unnamed, err
}

// sealedBytes is what sealed layers take. Those that were merged share files with those
// that they were made of, if these are still there: then all are looked at.
func sealedBytes(ctx context.Context, disks LayerStore, all map[string]store.Usage) (n int64, err error) {
	var unknown []layers.Dir
	merged := slices.ContainsFunc(slices.Collect(maps.Values(all)), func(u store.Usage) bool { return u.Level > 0 })
	for layer, u := range all {
		if merged || u.Digest == "" {
			unknown = append(unknown, disks.Dir(layer))
			continue
		}
		n += u.Disk
	}
	more, err := layers.Used(ctx, unknown...)
	return n + more, err
}

// judge holds a machine that has a reason to be held, or lets one go on that has none.
func (w *diskWatch) judge(m *machine) {
	switch was, next := w.weigh(m); was {
	case released:
		if next == resumes {
			w.resume(m)
		}
		w.noteHeld(m)
		w.logger.Info("a sprite is no longer held, and may resume", "sprite", m.name)
	case renewed:
		w.noteHeld(m)
	case isHeld:
		w.halt(m, next)
	}
}

// weigh holds a machine, or lets it go on, by what is known now.
func (w *diskWatch) weigh(m *machine) (was weighed, next step) {
	fs := w.last()
	var limited sprites.Held
	if limit, used, over := m.disk.read(); over {
		limited = sprites.Held{Code: CodeDiskLimit, UsedBytes: used, LimitBytes: limit}
	}
	return m.weigh(limited, w.full(fs), fs.roomAgain(w.reserve), w.changes.Load())
}

// full is why a machine is held that takes of the reserve.
func (w *diskWatch) full(fs fileSystem) sprites.Held {
	return sprites.Held{Code: CodeDiskFull, FreeBytes: fs.avail, ReserveBytes: w.reserve}
}

// halt notes that a machine is held, and does what next says: it pauses, or there is nothing
// to be paused.
func (w *diskWatch) halt(m *machine, next step) {
	now := m.now()
	pauser, ok := now.sandbox.(Pauser)
	if next == pauses && !ok {
		m.finish(nil) // it has just ended
	}
	if next != pauses || !ok {
		w.noteHeld(m)
		return
	}
	_, look := m.disk.weight()
	_, found, _ := m.disk.read()
	began := time.Now()
	noted := make(chan struct{})
	go func() { defer close(noted); w.noteHeld(m) }() // for the next server, if this one dies in the middle
	w.pause(m, pauser)
	pause := time.Since(began)
	<-noted
	if now.isFull() {
		w.logger.Warn("the disk is almost full, and the sprite that writes the most is paused", "sprite", m.name, "left", w.sample().avail, "reserve", w.reserve, "pause", pause)
		return
	}
	// Now it grows no more, and can be looked at in peace.
	if err := w.measure(w.ctx, m); err == nil {
		_, used, _ := m.disk.read()
		m.heldAt(used)
		w.noteHeld(m)
	}
	limit, used, _ := m.disk.read()
	w.logger.Warn("a sprite has reached its disk limit, and is paused", "sprite", m.name, "used", used, "limit", limit, "found", found, "look", look, "pause", pause)
}

// weighed is what a look at what a machine takes has changed.
type weighed int

const (
	asBefore weighed = iota
	released         // it is held no more
	renewed          // it is held with other figures
	isHeld           // it is held, as it was not before
)

// weigh holds the machine, or lets it go on. If the machine has reached its limit, limited is
// the reason; if not, the code of limited is empty. If the machine stays held because of the
// reserve, full is the reason. The flag room says that there is room again. The transition that
// weigh has begun is next: resumes or pauses. The number told is network.changes.
func (m *machine) weigh(limited, full sprites.Held, room bool, told int64) (was weighed, next step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	why := limited
	if why.Code == "" && isFull(m.hold.why) && m.sandbox != nil && !room {
		why = full // one that sleeps writes nothing, and may be woken to remove files
	}
	held := m.hold.why
	switch {
	case m.dead || m.tasks.isClosed() || why.Code == "" && held == nil:
		return asBefore, nothing
	case why.Code == "" && m.busy != nil:
		return asBefore, nothing // the next look is after that
	case why.Code == "":
		m.hold.set(nil)
		if m.sandbox != nil && m.paused && !ended(m.sandbox) {
			m.begin()
			next = resumes
		}
		return released, next
	case held != nil && held.Code == why.Code && (m.sandbox == nil || m.paused):
		before := *held
		if m.hold.stand(why); why.Code == CodeDiskLimit && before != *held {
			return renewed, nothing
		}
		return asBefore, nothing
	case m.busy != nil:
		return asBefore, nothing // the next look is after that
	}
	return isHeld, m.halt(why, told)
}

// holdFull holds the machine because of the reserve; full is the reason. If the machine is busy,
// it can't be held now.
func (m *machine) holdFull(full sprites.Held, told int64) (busy, held bool, next step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.busy != nil:
		return true, false, nothing
	case m.dead || m.tasks.isClosed() || m.sandbox == nil || m.paused || m.hold.why != nil:
		return false, false, nothing
	}
	return false, true, m.halt(full, told)
}

// halt holds the machine, and begins the pause of its sandbox if that runs. mu is held, and
// it is not busy.
func (m *machine) halt(why sprites.Held, told int64) (next step) {
	m.hold.stand(why)
	if _, ok := m.sandbox.(Pauser); !ok || m.paused || ended(m.sandbox) {
		return nothing
	}
	m.begin()
	m.told = told
	return pauses
}

// heldAt notes what a machine takes that is held for that.
func (m *machine) heldAt(used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hold.why != nil {
		m.hold.why.UsedBytes = used
	}
}

// noteHeld writes to the store whether a machine is held, as it is when it is written. If it is
// held at a limit that has changed meanwhile, the next look goes by the present one.
func (w *diskWatch) noteHeld(m *machine) {
	w.rows.note(m.id, func(s *store.Sprite) {
		s.Held = m.now().held
		w.machines.heed(*s)
	})
}

// admit returns an error if a machine takes so much of the disk that nothing may run in
// it. Such a machine is held, or would be at once. The machine is busy.
func (w *diskWatch) admit(ctx context.Context, m *machine) error {
	limit, _, _ := m.disk.read()
	held := m.now().held
	if limit == 0 && held == nil {
		return nil
	}
	if fs := w.sample(); held == nil && m.disk.look(fs) {
		if err := w.measure(ctx, m); err != nil && !errors.Is(err, layers.ErrTooDeep) {
			return err
		}
	}
	limit, used, _ := m.disk.read()
	over, err := m.holdOver(limit, used)
	if over {
		w.noteHeld(m)
	}
	return err
}

// holdOver holds the machine if it has reached its limit. If the machine is held, for
// whatever reason, err is the error for those who use it.
func (m *machine) holdOver(limit, used int64) (over bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if over = m.hold.why == nil && limit > 0 && used >= limit; over {
		m.hold.stand(sprites.Held{Code: CodeDiskLimit, UsedBytes: used, LimitBytes: limit})
	}
	return over, heldError(m.name, m.hold.why)
}

// heldError is what a use of a machine that is held gets; nil: it is not.
func heldError(name string, held *sprites.Held) error {
	if held == nil {
		return nil
	}
	d := describeHeld(name, *held)
	return fail.New(d.Code, d.Message, d.Hint)
}

// describeHeld says for people why a sprite is held.
func describeHeld(name string, held sprites.Held) *sprites.Held {
	const mib = 1 << 20
	if held.Code == CodeDiskFull {
		held.Message = fmt.Sprintf("the server's disk has only %d MiB left, and keeps %d free: sprite %s, which wrote the most to it, is paused", held.FreeBytes/mib, held.ReserveBytes/mib, name)
		held.Hint = fmt.Sprintf("free room on the server's disk, or remove sprites or checkpoints: cove list; cove rm NAME; then it resumes by itself; or %s", endAndRemove(name))
		return &held
	}
	held.Message = fmt.Sprintf("sprite %s has reached its disk limit: it takes %d MiB of %d, and is paused", name, held.UsedBytes/mib, held.LimitBytes/mib)
	// Half as much again, and more than it takes.
	more := max(held.LimitBytes, held.UsedBytes) / mib * 3 / 2
	held.Hint = fmt.Sprintf("raise the limit with: cove update %s --disk %dM; then it resumes; or remove checkpoints: cove checkpoint list --all -s %s", name, more, name)
	return &held
}

// reviewNow looks at what a sprite takes that was changed from outside, if that may let
// it go on, or hold it.
func (w *diskWatch) reviewNow(ctx context.Context, id string) {
	m := w.machines.known(id)
	if m == nil {
		return
	}
	now := m.now()
	if now.dead {
		return
	}
	limit, _ := m.disk.weight()
	watched := limit > 0 || now.held != nil
	look := limit > 0 && (now.held != nil || m.disk.look(w.last()))
	if !watched {
		return
	}
	if look {
		err := w.measure(ctx, m)
		if ctx.Err() != nil { // nobody waits any more: the watch looks by itself
			w.changed()
			return
		}
		if err != nil {
			w.logger.Error("measuring a sprite's disk use", "sprite", m.name, "err", err)
		}
	}
	w.judge(m)
	w.changed()
}

// usedNow is what a sprite that has a limit takes, for a description; 0: that is not
// known, or it has none.
func (w *diskWatch) usedNow(ctx context.Context, row store.Sprite) int64 {
	if row.Config.DiskLimit() == 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, describeDisk)
	defer cancel()
	var known int64
	var sb Sandbox
	if m := w.machines.known(row.ID); m != nil {
		sb = m.now().sandbox
		_, known, _ = m.disk.read()
	}
	u, err := w.used(ctx, row.ID, sb, usedDisk{})
	if err != nil {
		return known
	}
	return u.all
}
