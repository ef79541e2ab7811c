package shim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A sandbox that uses more memory than its cgroup has is ended by the host's kernel,
// as a whole. Before that its guest is to end the largest process. What counts is what
// the kernel counts, gVisor's own part included, so it is this side that looks.

// reserve is how much of a limit is left when a process is ended: what a fast
// allocator takes until it is.
func reserve(limit int64) int64 {
	return min(max(limit/16, 48<<20), 256<<20, limit/4)
}

// held is the part of the reserve that nobody gets before the guest was asked for
// relief. It is small: while the sandbox waits for it, gVisor's own calls of the
// kernel for memory may fail, which can be its end.
func held(limit int64) int64 { return reserve(limit) / 8 }

// Looks at the memory come the sooner the less is free: nothing fills more than
// fastestFill bytes in a second.
const (
	fastestFill = 4 << 30
	shortLook   = 2 * time.Millisecond
	longLook    = time.Second
	// reliefLimit bounds the guest's part; settleLimit the wait for the memory of a
	// process that has ended.
	reliefLimit = 5 * time.Second
	settleLimit = 500 * time.Millisecond
)

// nextLook is how long to wait when so much is free.
func nextLook(free int64) time.Duration {
	return min(max(time.Duration(float64(free)/fastestFill*float64(time.Second)), shortLook), longLook)
}

// memory is what a sandbox may use, and uses. Cache that the kernel can take back is
// not used.
type memory struct{ limit, used int64 }

// free is what is left before a process has to end.
func (m memory) free() int64 { return m.limit - reserve(m.limit) - m.used }

// A memoryGroup is the memory cgroup of a sandbox that has a limit.
type memoryGroup struct {
	dir   string
	v1    bool
	limit int64
	held  bool // see hold
}

func openMemoryGroup(group string, limit int64) memoryGroup {
	g := memoryGroup{dir: filepath.Join(cgroupRoot, "memory", group), v1: true, limit: limit}
	if _, err := os.Stat(filepath.Join(g.dir, "memory.oom_control")); err != nil {
		g.dir, g.v1 = filepath.Join(cgroupRoot, group), false
	}
	return g
}

// read reads what the sandbox uses. Close to the limit it takes a closer look, at what
// of it the kernel can't take back.
func (g *memoryGroup) read() (memory, error) {
	file := "memory.current"
	if g.v1 {
		file = "memory.usage_in_bytes"
	}
	used, err := readNumber(filepath.Join(g.dir, file))
	if err != nil {
		return memory{}, err
	}
	m := memory{g.limit, used}
	if m.free() > 0 {
		return m, nil
	}
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return memory{}, err
	}
	if !g.waiting() {
		m.used = min(used, unreclaimable(data))
	}
	return m, nil
}

// spare is what the sandbox has left before a process has to end, once the kernel has
// taken back what it can.
func (g *memoryGroup) spare() (int64, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return memory{g.limit, unreclaimable(data)}.free(), nil
}

// waiting reports whether somebody waits for memory because of hold: what thousands of
// processes take of the kernel is in no statistics, and can't be taken back either.
func (g *memoryGroup) waiting() bool {
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.oom_control"))
	return err == nil && strings.Contains(string(data), "under_oom 1\n")
}

// hold has the kernel, in v1 alone, stop who would use the reserve, instead of ending the
// sandbox: a process that takes a gigabyte in a second then waits until the guest comes
// to end it. In v2 there is no such wait, and the reserve has to be enough.
func (g *memoryGroup) hold() {
	err := os.WriteFile(filepath.Join(g.dir, "memory.oom_control"), []byte("1"), 0)
	if err == nil {
		// It is refused where the reserve is in use: then the next look tries again.
		err = g.setLimit(g.limit - held(g.limit))
	}
	g.held = err == nil
	if !g.held {
		g.release()
	}
}

// release gives the sandbox all of its limit, at which the kernel ends it.
func (g *memoryGroup) release() {
	if !g.v1 {
		return
	}
	g.held = false
	_ = g.setLimit(g.limit) // the group has just gone
	_ = os.WriteFile(filepath.Join(g.dir, "memory.oom_control"), []byte("0"), 0)
}

// widen gives gVisor some of the reserve every moment, for it may wait for memory as
// well, until done is closed or there is no more: then it is as after release.
func (g *memoryGroup) widen(done <-chan struct{}) {
	const step, moment = 1 << 20, 50 * time.Millisecond
	for limit := g.limit - held(g.limit) + step; limit < g.limit; limit += step {
		select {
		case <-time.After(moment):
			_ = g.setLimit(limit)
		case <-done:
			return
		}
	}
	g.release()
}

func (g *memoryGroup) setLimit(n int64) error {
	file := "memory.max"
	if g.v1 {
		file = "memory.limit_in_bytes"
	}
	return os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(n, 10)), 0)
}

// raiseMemory lets a paused sandbox use more than its limit: what it writes of its
// memory to a file in memory, or to a disk's cache, counts as its own, as does what
// gVisor needs for that. The next one has the limit from its start. s.moves.turn is held.
func (s *Shim) raiseMemory(st State) { s.limitMemory(st, true, 2*st.MemoryLimit+saveReserve) }

// lowerMemory undoes raiseMemory, once what was written is gone.
func (s *Shim) lowerMemory(st State) {
	if now := s.record.get(); now.Container == st.Container {
		st.MemoryLimit = now.MemoryLimit
	}
	s.limitMemory(st, false, st.MemoryLimit)
}

// saveReserve is what gVisor may need to save the memory of a small sandbox.
const saveReserve = 64 << 20

func (s *Shim) limitMemory(st State, raised bool, limit int64) {
	s.mu.Lock()
	was := s.raised
	s.raised = raised
	s.mu.Unlock()
	if !s.containers.cgroups || st.MemoryLimit == 0 || was == raised || s.record.get().Container != st.Container {
		return // of one that is no more it does not matter
	}
	g := openMemoryGroup(st.cgroup(), st.MemoryLimit)
	if err := g.setLimit(limit); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("change the sandbox's memory limit for it to be saved", "limit", limit, "err", err)
	}
}

func (s *Shim) memoryRaised() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised
}

func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
}

// unreclaimable adds up what memory.stat says of memory that is not cache. There is
// no swap to count on.
func unreclaimable(stat []byte) int64 {
	v1, v2 := int64(0), int64(0)
	for line := range strings.Lines(string(stat)) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "total_rss", "total_shmem":
			v1 += n
		case "anon", "shmem", "kernel_stack", "pagetables", "slab_unreclaimable":
			v2 += n
		}
	}
	// v1 has the plain names, too, of the group without those below it.
	return max(v1, v2)
}

// watchMemory has the guest end a process each time the sandbox has almost used up its
// memory, until ctx ends.
func (s *Shim) watchMemory(ctx context.Context, guest *guestClient) {
	log := newEventLog(s.cfg.Dir, MemoryLog)
	var g memoryGroup
	var container string
	for pause := shortLook; ; {
		select {
		case <-time.After(pause):
		case <-s.limited:
		case <-ctx.Done():
			return
		}
		st := s.record.get()
		if st.MemoryLimit == 0 {
			s.setShort(false)
			container, pause = "", shortLook
			select {
			case <-s.limited:
			case <-ctx.Done():
			}
			continue
		}
		if st.Container != container || g.limit != st.MemoryLimit { // a checkpoint has moved it, or setLimits
			container, g = st.Container, openMemoryGroup(st.cgroup(), st.MemoryLimit)
		}
		m, err := g.read()
		switch {
		case s.memoryRaised():
			g.held, pause = false, longLook/100
		case err != nil: // its group may be on its way
			container, pause = "", longLook/10
		case m.free() > 0:
			s.setShort(false)
			pause = nextLook(m.free())
			if !s.holdMemory(&g) {
				pause = shortLook
			}
			if free, limited := serverFree(st); limited && free > 0 {
				pause = min(pause, max(nextLook(free), crowdedLook))
			} else if limited {
				pause = min(pause, s.relieveServer(ctx, guest, log))
			}
		default:
			pause = s.relieve(ctx, guest, &g, log)
		}
	}
}

// holdMemory is hold, but for a checkpoint, which takes memory of the sandbox's own.
// It reports false where it is to be tried again at once.
func (s *Shim) holdMemory(g *memoryGroup) bool {
	if !g.v1 || g.held {
		return true
	}
	if !s.moves.turn.TryLock() {
		return false
	}
	g.hold()
	s.moves.turn.Unlock()
	return true
}

// relieve has the guest end its largest process, and waits until that has made room.
// It returns when to look again.
func (s *Shim) relieve(ctx context.Context, guest *guestClient, g *memoryGroup, log eventLog) (pause time.Duration) {
	if s.moves.shortly(ctx, func() { pause = s.relieveInTurn(ctx, guest, g, log) }) {
		return pause
	}
	if !s.memoryRaised() {
		g.release()
	}
	return longLook / 10
}

// relieveInTurn is relieve. moves.turn is held.
func (s *Shim) relieveInTurn(ctx context.Context, guest *guestClient, g *memoryGroup, log eventLog) time.Duration {
	st := s.record.get()
	m, err := g.read()
	if st.Paused || err != nil || m.free() > 0 {
		return longLook / 10
	}
	s.setShort(true)
	asking, asked := context.WithTimeout(ctx, reliefLimit)
	defer asked()
	s.setRelieving(asked)
	defer s.setRelieving(nil)
	if !alive(st.PID, st.StartTime) {
		return longLook / 10
	}
	var widened sync.WaitGroup
	if g.held {
		widened.Go(func() { g.widen(asking.Done()) })
	}
	kill, err := askForRelief(asking, guest, m.limit)
	asked()
	widened.Wait()
	if err != nil {
		g.release()
		s.log.Warn("the sandbox is almost out of memory, and no process of it could be ended", "used", m.used, "limit", m.limit, "err", err)
		return longLook / 4
	}
	s.setShort(false)
	kill.Time, kill.LimitBytes = time.Now().UTC(), m.limit
	log.write(kill)
	s.log.Warn("the sandbox was almost out of memory, and a process of it was ended", "used", m.used, "limit", m.limit, "name", kill.Name, "pid", kill.PID, "bytes", kill.ResidentBytes)
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline) && ctx.Err() == nil; {
		if m, err := g.read(); err != nil || m.free() > 0 {
			break
		}
		time.Sleep(shortLook)
	}
	g.held = false // it may have been widened
	return shortLook
}

func (s *Shim) setRelieving(cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relieving = cancel
}

// setShort notes whether memory is wanted: the sandbox may end for that reason.
func (s *Shim) setShort(short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short = short
}

// endRelief has relieve wait no longer for a guest that is ending, or has ended.
func (s *Shim) endRelief() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relieving != nil {
		s.relieving()
	}
}

// askForRelief has the guest end its largest process, and returns which it was, as the
// guest says.
func askForRelief(ctx context.Context, guest *guestClient, limit int64) (kill sprites.MemoryKill, err error) {
	err = guest.call(ctx, http.MethodPost, "/v1/memory/relief?limit="+strconv.FormatInt(limit, 10), func(r io.Reader) (err error) {
		kill, err = readMemoryKill(r)
		return err
	})
	return kill, err
}

// readMemoryKill reads what a guest says, which is hostile.
func readMemoryKill(r io.Reader) (sprites.MemoryKill, error) {
	k, err := answered[sprites.MemoryKill](r, maxOwnerAnswer)
	if err != nil {
		return k, err
	}
	if k.Name, err = process(k.PID, k.Name); err == nil && k.ResidentBytes < 0 {
		err = errors.New("the guest names a process of less than no memory")
	}
	k.Session = processName(k.Session)
	return k, err
}
