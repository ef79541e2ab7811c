package datafolder

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
)

// Serves reports whether the process that is said to serve a data folder is this user's, and holds the
// lock. Its number may be another one's by now, and another file may have the lock's.
func Serves(dir string, server Server) bool {
	pid := server.PID
	if pid < 1 || server.Started != "" && server.Started != private.StartOf(pid) {
		return false
	}
	var st unix.Stat_t
	if unix.Stat(filepath.Join(dir, LockFile), &st) != nil {
		return false
	}
	// The device is not compared: of some file systems stat gives another one.
	holds, err := lockListed(func(f []string) bool {
		return len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10))
	})
	return err == nil && holds && userOf(pid) == os.Geteuid()
}

// ending reports whether the server of a data folder was killed, and is not gone: it has lost the
// lock, or its first thread has ended and others have not.
func ending(dir string) bool {
	server, err := Read(dir)
	if err != nil || server.Started == "" || private.Elsewhere(server.Processes) || Serves(dir, server) {
		return false
	}
	if start := private.StartOf(server.PID); start != "" {
		return start == server.Started
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", server.PID))
	return err == nil && len(threads) > 1
}

// Locked reports whether some process holds the flock of a file. It takes no
// lock itself; where the kernel does not tell it says yes.
func Locked(name string) bool {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return false
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	held, err := lockListed(func(f []string) bool { return slices.Contains(f, want) })
	return held || err != nil
}

// StartsHere reports whether a process of this container holds a lock: a server that has not
// said yet that it is one.
func StartsHere(lock *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(lock.Fd()), &st) != nil {
		return false
	}
	held, err := lockListed(func(f []string) bool {
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10)) {
			return false
		}
		status, err := os.ReadFile("/proc/" + f[4] + "/status")
		return err == nil && oneNumber.Match(status)
	})
	return err == nil && held
}

// oneNumber is in the status of a process that has no other number in a namespace below.
var oneNumber = regexp.MustCompile(`(?m)^NSpid:\s+\d+$`)

// lockListed reports whether the kernel's list of locks has one that is wanted, by the
// fields of its line. The kernel gives the list page by page, and if others come and go
// between two pages it leaves out locks that hold all the time: so it is read again.
func lockListed(wanted func(fields []string) bool) (bool, error) {
	const reads = 10 // beside a hundred locks that change all the time, 1 in 300 fails
	for range reads {
		list, err := os.ReadFile("/proc/locks")
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(list)) {
			if wanted(strings.Fields(line)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// userOf is the user of a process; -1: there is none of that number, or it is of several,
// as a program that takes another's rights is.
func userOf(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "Uid:" && f[1] == f[2] && f[2] == f[3] {
			if uid, err := strconv.Atoi(f[1]); err == nil {
				return uid
			}
		}
	}
	return -1
}
