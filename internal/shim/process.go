package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processStart returns when a process started, in clock ticks since the host's
// boot. With its number it names a process for good.
func processStart(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything, so count from its end.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return 0, fmt.Errorf("process %d: no name in its stat", pid)
	}
	fields := strings.Fields(string(data[i+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("process %d: short stat", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// alive reports whether the process that had this number at that time still runs.
func alive(pid int, startTime uint64) bool {
	if pid <= 0 {
		return false
	}
	got, err := processStart(pid)
	return err == nil && got == startTime
}

// waitProcess returns when the process has ended, or ctx has. The process need
// not be a child.
func waitProcess(ctx context.Context, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // ESRCH: gone already
	}
	defer unix.Close(fd)
	for ctx.Err() == nil {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		timeout := -1
		if ctx.Done() != nil {
			timeout = 100
		}
		n, err := unix.Poll(poll, timeout)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

// signalProcess signals a process that is still the one that started then.
func signalProcess(pid int, startTime uint64, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if alive(pid, startTime) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0) // it is gone already
	}
}

// killProcess ends a process that is still the one that started then, and waits
// until it is gone.
func killProcess(pid int, startTime uint64) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !alive(pid, startTime) {
		return
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return
	}
	waitProcess(context.Background(), pid)
}

// killWithArg ends the processes that were started with an argument, also those
// that these start meanwhile. It gives up on more than killLimit.
func killWithArg(arg string) {
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		found := false
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), arg) {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err != nil {
				continue
			}
			if start, err := processStart(pid); err == nil {
				found = true
				killProcess(pid, start)
			}
		}
		if !found {
			return
		}
	}
}

// killLimit bounds the end of a sandbox that nobody knows the number of.
const killLimit = 5 * time.Second

// raiseFileLimit lets the sandbox open as many files as this user may: gVisor
// holds a host file for each of the guest's.
func raiseFileLimit() {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return
	}
	if os.Geteuid() == 0 && lim.Max < 1<<20 {
		raised := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
			return
		}
	}
	lim.Cur = lim.Max
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
}
