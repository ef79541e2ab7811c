package cgroup

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Machine is what all sprites together may have: what the machine has, or less if the
// server's cgroups allow less.
type Machine struct {
	Memory int64 // bytes
	CPUs   int

	Server Limits // those that are less than the machine has; 0: the machine's
}

// SandboxMemory is the most memory that one sandbox gets, in bytes: all that the server may
// use, less a reserve for the server itself. So the sandbox's largest process ends before
// the kernel ends a process of the server's cgroup. 0: the server has no limit.
func (l Limits) SandboxMemory() int64 {
	mb := l.Memory >> 20
	if mb == 0 {
		return 0
	}
	return max(mb-max(mb/8, 64), mb/2, 1) << 20
}

// Machine looks at the machine and at the limits of a process.
func (p Process) Machine() (Machine, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Machine{}, fmt.Errorf("ask for the machine's memory: %w", err)
	}
	return p.Limits().of(Machine{Memory: int64(info.Totalram) * int64(info.Unit), CPUs: runtime.NumCPU()}), nil
}

// of is a machine under limits.
func (l Limits) of(m Machine) Machine {
	if l.Memory >= m.Memory {
		l.Memory = 0
	}
	if l.CPUs >= m.CPUs {
		l.CPUs = 0
	}
	if l.Quota >= int64(m.CPUs)*Period {
		l.Quota = 0
	}
	return Machine{Memory: least(m.Memory, l.Memory), CPUs: least(m.CPUs, l.CPUs), Server: l}
}
