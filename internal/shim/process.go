package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// readStat reads a stat of /proc, from its third field on.
func readStat(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The name in parentheses may hold anything, so count from its end.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return nil, fmt.Errorf("%s has no name", path)
	}
	fields := strings.Fields(string(data[i+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("%s has too few fields", path)
	}
	return fields, nil
}

// processStart returns when a process started, in clock ticks since the host's
// boot. With its number it names a process for good.
func processStart(pid int) (uint64, error) {
	fields, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
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

// exiting is PF_EXITING, of a thread's flags: it makes no system call any more.
const exiting = 0x4

// ending reports whether a process is about to end and gives its memory and files back,
// or has ended.
func ending(pid int) bool {
	fields, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&exiting != 0
}

// acts reports whether a process that is still the one that started then has a thread
// that may yet do something. One that was killed may be long in giving back its memory.
func acts(pid int, startTime uint64) bool {
	if !alive(pid, startTime) {
		return false
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid)) // the pattern is right
	for _, path := range threads {
		fields, err := readStat(path)
		if err != nil {
			continue // it has ended
		}
		if flags, err := strconv.ParseUint(fields[6], 10, 64); err != nil || flags&exiting == 0 {
			return true
		}
	}
	return false
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

// arguments is a process's command line; nil: there is none, or nobody may see it.
func arguments(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\x00")
}

// killWith ends the processes whose command line matches, also those that these start
// meanwhile. It gives up on more than killLimit.
func killWith(matches func(args []string) bool) {
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		found := false
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
		for _, name := range names {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err != nil || !matches(arguments(pid)) {
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
const killLimit = time.Minute
