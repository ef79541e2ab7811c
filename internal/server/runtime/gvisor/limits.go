package gvisor

import (
	"sync"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// share is what one sandbox may use. 0 is no limit.
type share struct {
	memoryMB, cpus int
	tasks          int // processes that it sees
	hostTasks      int // processes and threads of the host
}

// A process in gVisor takes two or three threads of the host. A sandbox takes half of what
// the server has left, so that there is room for another, and for the server.
const (
	sandboxTasks = 64 // of gVisor, the gofer and the shim, whatever runs inside
	serverTasks  = 16
	tasksEach    = 6
	leastTasks   = 8
)

// shareOf is the share of a sandbox with these limits, in a server with limits of its own.
// Whatever its limit of memory, it gets no more than cgroup.Limits.SandboxMemory.
func shareOf(server cgroup.Limits, memoryMB, cpus int) share {
	s := share{memoryMB: memoryMB, cpus: cpus, tasks: boot.PidsMax, hostTasks: hostPidsMax}
	if most := int(server.SandboxMemory() >> 20); most > 0 && (memoryMB == 0 || memoryMB > most) {
		s.memoryMB = most
	}
	if cpus == 0 {
		s.cpus = server.CPUs
	}
	if server.Processes > 0 {
		s.tasks = min(s.tasks, max((server.ProcessesLeft-sandboxTasks)/tasksEach, leastTasks))
		s.hostTasks = min(s.hostTasks, max(server.ProcessesLeft-serverTasks, sandboxTasks))
	}
	return s
}

// cgroups knows where the cgroups of sandboxes are made.
type cgroups struct {
	userNS bool // see Runtime

	mu sync.Mutex // held while the server's processes are moved to a cgroup of their own
}

// place is where the cgroups of a sandbox are made. An ordinary user's are where they
// were delegated. If they were not, the shim finds that it may not write.
func (c *cgroups) place() cgroup.Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.userNS {
		return cgroup.Place{Parent: cgroup.Process{}.Parent()}
	}
	place, err := cgroup.Process{}.TakeDelegated()
	if err != nil {
		return cgroup.Place{Parent: "/"}
	}
	return place
}
