package shim

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// All sandboxes of a container share its memory, and one may have as much as the rest of it.
// If together they use it up, the kernel ends some process of the container's, perhaps of a
// sandbox that takes little. So before that each shim looks at the container's memory too, and
// the one with the largest sandbox has its guest end the largest process.

// crowdedLook is the least time between two looks at the container's memory.
const crowdedLook = 5 * time.Millisecond

// serverGroup is the cgroup above the sandbox's, if that has a limit of memory.
func serverGroup(st State) (memoryGroup, bool) {
	g := openMemoryGroup(st.CgroupParent, 0)
	file := "memory.max"
	if g.v1 {
		file = "memory.limit_in_bytes"
	}
	var err error
	g.limit, err = readNumber(filepath.Join(g.dir, file))
	return g, err == nil && g.limit > 0 && g.limit < 1<<60 // v1 says so of no limit
}

// serverFree is what all sandboxes together have left before a process of the largest has to
// end; false: nothing limits them.
func serverFree(st State) (int64, bool) {
	g, ok := serverGroup(st)
	if !ok {
		return 0, false
	}
	m, err := g.read()
	return m.free(), err == nil
}

// largest reports whether no other sandbox of the data folder uses more memory than the
// sandbox of this folder. Paused ones don't count: their processes can't be ended.
func largest(folder string, st State) bool {
	used := func(st State) int64 {
		g := openMemoryGroup(st.cgroup(), 0)
		data, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
		if err != nil {
			return 0
		}
		return unreclaimable(data)
	}
	own := used(st)
	dirs, err := filepath.Glob(filepath.Join(filepath.Dir(folder), "*")) // the pattern is right
	for _, dir := range dirs {
		other, stateErr := ReadState(dir)
		if stateErr == nil && other.Container != st.Container && !other.Paused && other.CgroupParent == st.CgroupParent && used(other) > own {
			return false
		}
	}
	return err == nil
}

// lockSandboxes takes the lock that one shim of a data folder has at a time, if no other has
// it. Close gives it back.
func lockSandboxes(folder string) (*os.File, bool) {
	f, err := os.Open(filepath.Dir(folder))
	if err != nil {
		return nil, false
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil, false
	}
	return f, true
}

// relieveServer is relieve for the memory of all sandboxes together, if this one is the
// largest.
func (w *memoryWatch) relieveServer(ctx context.Context, guest *guestClient, log eventLog) (pause time.Duration) {
	lock, ok := lockSandboxes(w.folder.path)
	if !ok {
		return crowdedLook
	}
	defer lock.Close()
	st := w.record.get()
	g, ok := serverGroup(st)
	if !ok {
		return crowdedLook
	}
	m, err := g.read()
	if err != nil || m.free() > 0 || st.Paused || !largest(w.folder.path, st) {
		return crowdedLook
	}
	if w.moves.shortly(ctx, func() { pause = w.relieveServerInTurn(ctx, guest, log, m) }) {
		return pause
	}
	return crowdedLook
}

// relieveServerInTurn is relieveServer, of a memory that is as m says. moves.turn is held.
func (w *memoryWatch) relieveServerInTurn(ctx context.Context, guest *guestClient, log eventLog, m memory) time.Duration {
	st := w.record.get()
	if st.Paused || !alive(st.PID, st.StartTime) {
		return crowdedLook
	}
	asking, asked := context.WithTimeout(ctx, reliefLimit)
	defer asked()
	w.setRelieving(asked)
	defer w.setRelieving(nil)
	kill, err := askForRelief(asking, guest, m.limit)
	if err != nil {
		w.log.Warn("the server's cgroup or container is almost out of memory, and no process of the largest sandbox could be ended", "used", m.used, "limit", m.limit, "err", err)
		return longLook / 4
	}
	kill.Time, kill.LimitBytes = time.Now().UTC(), m.limit
	log.write(kill)
	w.log.Warn("the server's cgroup or container was almost out of memory, and a process of the largest sandbox was ended", "used", m.used, "limit", m.limit, "name", kill.Name, "pid", kill.PID, "bytes", kill.ResidentBytes)
	for deadline := time.Now().Add(settleLimit); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(shortLook) {
		if free, ok := serverFree(st); !ok || free > 0 {
			break
		}
	}
	return shortLook
}
