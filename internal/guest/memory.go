package guest

import (
	"cmp"
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// If a sandbox uses more memory than its control group on the host has, the host kills the
// whole sandbox. The shim sees that coming, and asks the guest to kill one process before.
// gVisor has no OOM killer, and reports no memory pressure. Only the host knows how much
// memory gVisor itself takes.

const (
	// leastBlame is how much memory a process must use to be killed: smaller ones free too
	// little.
	leastBlame = 8 << 20
	// keptKills is how many kills are remembered.
	keptKills = 32
	// killedLimit bounds the wait for the end of a killed process.
	killedLimit = 2 * time.Second
)

// memoryKills are the processes that were ended for want of memory.
type memoryKills struct {
	relief sync.Mutex // held while one is chosen and ended

	mu   sync.Mutex
	last []sprites.MemoryKill
}

func (m *memoryKills) add(k sprites.MemoryKill) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = append(m.last, k)
	if len(m.last) > keptKills {
		m.last = slices.Clone(m.last[len(m.last)-keptKills:])
	}
}

func (m *memoryKills) list() []sprites.MemoryKill {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]sprites.MemoryKill{}, m.last...)
}

// ended reports whether a session's main process ended for want of memory. Either it was
// killed itself, or it has the exit code that a shell returns if its child was killed.
func (m *memoryKills) ended(session string, main *process) bool {
	const killed = 128 + int(syscall.SIGKILL)
	if code, _ := main.code(); code != killed {
		return false
	}
	return slices.ContainsFunc(m.list(), func(k sprites.MemoryKill) bool {
		return k.Session == session && (k.PID == main.pid || !main.status.Signaled())
	})
}

// get lists the killed processes. A job's supervisor asks, too.
func (m *memoryKills) get(w http.ResponseWriter, _ *http.Request) error {
	return wire.Respond(w, sprites.MemoryKills{Kills: m.list()})
}

// postRelief ends the largest process, and answers when it has gone.
func (s *sessions) postRelief(w http.ResponseWriter, r *http.Request) error {
	limit, err := strconv.ParseInt(r.URL.Query().Get("limit"), 10, 64)
	if err != nil {
		return wire.BadRequest("limit is a number of bytes")
	}
	s.memory.relief.Lock()
	defer s.memory.relief.Unlock()
	kill, ok := largest(s.members())
	if !ok {
		return fail.New("nothing_to_end", "no process uses so much memory that its end would help", "")
	}
	kill.Time, kill.LimitBytes = time.Now().UTC(), limit
	s.memory.add(kill) // who sees its end finds the reason
	if err := syscall.Kill(kill.PID, syscall.SIGKILL); err != nil {
		return err
	}
	s.logger.Warn("out of memory: a process was ended", "name", kill.Name, "pid", kill.PID, "bytes", kill.ResidentBytes)
	awaitEnd(r.Context(), kill.PID)
	return wire.Respond(w, kill)
}

// awaitEnd waits for a process that was killed to be gone, for a while.
func awaitEnd(ctx context.Context, pid int) {
	ctx, cancel := context.WithTimeout(ctx, killedLimit)
	defer cancel()
	for {
		if _, _, _, alive := procStat(pid); !alive {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// largest finds the process with the most resident memory among those of sessions. It skips
// cove's own processes, such as the supervisor of a job.
func largest(members map[int]string) (sprites.MemoryKill, bool) {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return sprites.MemoryKill{}, false
	}
	page := int64(os.Getpagesize())
	var all []sprites.MemoryKill
	for pid, session := range members {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
		f := strings.Fields(string(data))
		if err != nil || len(f) < 2 {
			continue // it has ended
		}
		if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil && pages*page >= leastBlame {
			all = append(all, sprites.MemoryKill{Process: sprites.Process{PID: pid}, ResidentBytes: pages * page, Session: session})
		}
	}
	slices.SortFunc(all, func(a, b sprites.MemoryKill) int { return cmp.Compare(b.ResidentBytes, a.ResidentBytes) })
	for _, k := range all {
		dir := "/proc/" + strconv.Itoa(k.PID)
		if exe, err := os.Stat(dir + "/exe"); err == nil && os.SameFile(exe, own) {
			continue
		}
		name, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		k.Name = strings.TrimSpace(string(name))
		return k, true
	}
	return sprites.MemoryKill{}, false
}

// members returns the processes of all sessions, services' too, with the session's id.
func (s *sessions) members() map[int]string {
	if s.runner.cgroups.dir == "" {
		return s.byProcess()
	}
	of := map[int]string{}
	// Programs inside may make groups of their own in these.
	_ = filepath.WalkDir(s.runner.cgroups.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == s.runner.cgroups.dir {
			return nil //nolint:nilerr // it has just gone
		}
		below, _ := filepath.Rel(s.runner.cgroups.dir, path)
		session, _, _ := strings.Cut(below, "/")
		pids, _ := (&group{dir: path}).procs()
		for _, pid := range pids {
			of[pid] = session
		}
		return nil
	})
	return of
}
