package shim

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// shortage is what the host's cgroups say of the end of a sandbox.
type shortage struct {
	oomKills int   // its processes that the kernel ended because memory was short
	refused  int   // processes and threads that it could not have
	limit    int64 // of its memory, in bytes; 0: it has none
	peak     int64 // the most memory that it used; 0: not known
	tasks    int   // its limit of processes and threads of the host; 0: it has none
	server   cgroup.Limits
}

// shortageOf looks at a sandbox's cgroup, which exists until teardown. tasks is the sandbox's
// limit of processes of the host. refusals is how many processes the server's cgroups had
// refused before the sandbox started.
func shortageOf(st State, tasks, refusals int) shortage {
	group := st.cgroup()
	x := shortage{oomKills: oomKills(group), limit: st.MemoryLimit, tasks: tasks, server: cgroup.Process{}.Limits()}
	for _, dir := range []string{filepath.Join(cgroupRoot, "pids", group), filepath.Join(cgroupRoot, group)} {
		x.refused += cgroup.Event(filepath.Join(dir, "pids.events"), "max")
	}
	// Since Linux 6.11 a cgroup of v2 counts what its own limit refused, and not its parent's.
	if _, err := os.Stat(filepath.Join(cgroupRoot, group)); err == nil {
		x.refused += max(cgroup.Process{}.ProcessRefusals()-refusals, 0)
	}
	for _, file := range []string{filepath.Join(cgroupRoot, "memory", group, "memory.max_usage_in_bytes"), filepath.Join(cgroupRoot, group, "memory.peak")} {
		if n, err := readNumber(file); err == nil {
			x.peak = n
		}
	}
	return x
}

// memory says, for people, which limit of memory ended the sandbox.
func (x shortage) memory(hostname string) string {
	server := x.server.Memory
	own := x.limit > 0 && (server == 0 || x.peak == 0 || x.peak >= x.limit-reserve(x.limit))
	switch {
	case own && server > 0 && x.limit >= x.server.SandboxMemory():
		return fmt.Sprintf("out of memory: it used all %d MiB that a sprite gets of the server's %d MiB; give the server (a container: --memory) more", x.limit>>20, server>>20)
	case own:
		return fmt.Sprintf("out of memory: it used more than its %d MiB; give it more: cove update %s --memory SIZE", x.limit>>20, hostname)
	case server > 0:
		return fmt.Sprintf("out of memory: the server and its sprites used all %d MiB of their cgroup or container; give that more, or this sprite less: cove update %s --memory SIZE", server>>20, hostname)
	}
	return "out of memory: the host's kernel ended it"
}

// processes says which limit of processes did; empty: none.
func (x shortage) processes() string {
	switch {
	case x.refused == 0:
		return ""
	case x.server.Processes > 0:
		return fmt.Sprintf("out of host processes: the server may have %d (a container: --pids-limit; a unit: TasksMax=)", x.server.Processes)
	case x.tasks > 0:
		return fmt.Sprintf("out of host processes: it may have %d, threads included", x.tasks)
	}
	return "out of host processes: a limit of the machine was reached"
}
