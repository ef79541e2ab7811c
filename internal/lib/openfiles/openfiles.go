// Package openfiles raises and reads the number of files that a process may have open.
// Sandboxes need many. For each file that a sandbox has open, gVisor holds a file of the host,
// and for some that the sandbox had open before.
package openfiles

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Enough is the least number with which sandboxes have no trouble.
const Enough = 4096

// most is the number that root asks for.
const most = 1 << 20

// Raise lets this process, and those that it starts, have as many files open as this
// user may, and returns that number. It returns 0 if the kernel does not tell.
func Raise() uint64 {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 0
	}
	if os.Geteuid() == 0 && lim.Max < most { // it takes CAP_SYS_RESOURCE
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}); err == nil {
			return most
		}
	}
	// This is needed even if the limit is the hard one already. Go raised it for this process
	// alone, and gives the processes that it starts the original limit.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lim.Max, Max: lim.Max}); err != nil {
		return lim.Cur
	}
	return lim.Max
}

// Of returns how many files a process may have open; 0: this user can't tell.
func Of(pid int) uint64 {
	var lim unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &lim); err != nil {
		return 0
	}
	return lim.Cur
}

// Exhausted reports whether a process has as many files open as it may. It returns false if
// this user can't tell.
func Exhausted(pid int) bool {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	limit, open := Of(pid), uint64(len(entries))
	if pid == os.Getpid() {
		open-- // the list itself
	}
	return limit > 0 && open >= limit
}
