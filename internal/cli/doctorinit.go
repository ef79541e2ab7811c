package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// An init that reaps is woken when a process ends. An init that sleeps for reapRounds rounds while
// processes are left unreaped does not reap. A round counts only if init sleeps: on a busy machine,
// it may be about to run.
const (
	reapRound  = 50 * time.Millisecond
	reapRounds = 20
	reapTries  = 10 * reapRounds // nothing is said of an init that never sleeps
)

// init looks, in a container, for ended processes that the container's first process does
// not reap. It reports false if there is nothing to say.
func (d *doctor) init(ctx context.Context) (check, bool) {
	if !(cgroup.Process{}).InContainer() {
		return check{}, false
	}
	left, slept := unreaped("/proc"), 0
	for try := 0; try < reapTries && slept < reapRounds && len(left) > 0 && ctx.Err() == nil; try++ {
		time.Sleep(reapRound)
		first := statOf("/proc/1/stat") // looked at first: it may be woken meanwhile
		now := unreaped("/proc")
		left = slices.DeleteFunc(left, func(pid string) bool { return !slices.Contains(now, pid) })
		if len(first) > 0 && first[0] == "S" {
			slept++
		}
	}
	if slept < reapRounds {
		left = nil
	}
	if len(left) == 0 {
		return check{}, false
	}
	return check{"init", levelWarn, fmt.Sprintf("process 1 of this container does not reap orphans: %d zombies are left, and each counts as one of its processes", len(left)),
		"start the container with an init (docker run --init), or with cove serve as its command"}, true
}

// unreaped are the children of process 1 that have ended.
func unreaped(proc string) (pids []string) {
	stats, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat")) // the pattern is a good one
	for _, name := range stats {
		if f := statOf(name); len(f) > 1 && f[0] == "Z" && f[1] == "1" {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// statOf are the fields of a stat file that follow a process's name, which may have anything in
// it: first its state, then its parent (proc(5)). There are none if it has just gone.
func statOf(name string) []string {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}
