package shim

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// reserve is how much of a limit is left when a process is ended. A fast allocator may
// take as much until the process has ended.
func reserve(limit int64) int64 {
	return min(max(limit/16, 48<<20), 256<<20, limit/4)
}

// held is the part of the reserve that is not given out before the guest was asked for
// relief. It is small: while the sandbox waits for it, gVisor's own calls for memory may
// fail, and that can end the sandbox.
func held(limit int64) int64 { return reserve(limit) / 8 }

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

// read reads what the sandbox uses. Close to the limit only memory that the kernel can't
// take back counts, unless a process waits for memory.
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

// spare is the memory that the sandbox has left before a process must end, after the
// kernel has taken back what it can.
func (g *memoryGroup) spare() (int64, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return memory{g.limit, unreclaimable(data)}.free(), nil
}

// waiting reports whether a process waits for memory because of hold. Thousands of
// processes take kernel memory that is in no statistics, and that can't be taken back.
func (g *memoryGroup) waiting() bool {
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.oom_control"))
	return err == nil && strings.Contains(string(data), "under_oom 1\n")
}

// hold is for v1 alone. It makes the kernel stop a process that would use the reserve,
// instead of ending the sandbox. So a process that takes a gigabyte in a second waits
// until the guest ends it. In v2 there is no such wait, and the reserve must be enough.
func (g *memoryGroup) hold() {
	err := os.WriteFile(filepath.Join(g.dir, "memory.oom_control"), []byte("1"), 0)
	if err == nil {
		// The kernel refuses this if the reserve is in use. Then the next look tries
		// again.
		err = g.setLimit(g.limit - held(g.limit))
	}
	g.held = err == nil
	if !g.held {
		g.release()
	}
}

// release gives the sandbox all of its limit. At the limit the kernel ends the sandbox.
func (g *memoryGroup) release() {
	if !g.v1 {
		return
	}
	g.held = false
	_ = g.setLimit(g.limit) // the group has just gone
	_ = os.WriteFile(filepath.Join(g.dir, "memory.oom_control"), []byte("0"), 0)
}

// widen gives gVisor some more of the reserve every moment, because gVisor may wait for
// memory as well. It ends when done is closed. If the reserve is used up before, it calls
// release.
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

// spareSoon is the memory left below the limit, after gVisor has given back to the
// machine what programs inside have freed. gVisor does that a moment later, on a thread
// of its own.
func (g *memoryGroup) spareSoon() (int64, error) {
	const pause, patience, most = 50 * time.Millisecond, time.Second, 5 * time.Second
	began := time.Now()
	best, since := int64(math.MinInt64), began
	for {
		free, err := g.spare()
		if free > best {
			best, since = free, time.Now()
		}
		if err != nil || free > 0 || time.Since(since) > patience || time.Since(began) > most {
			return free, err
		}
		time.Sleep(pause)
	}
}

func (g *memoryGroup) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0)
}

func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
}

// unreclaimable adds up the memory in memory.stat that is not cache. It does not count on
// swap.
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
