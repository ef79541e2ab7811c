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

// reapLimit is the time that an init has for a process that has ended.
const reapLimit = time.Second

// init looks, in a container, for processes that have ended and that its first process does
// not take in. It reports false if there is nothing to say.
func (d *doctor) init(ctx context.Context) (check, bool) {
	if !(cgroup.Process{}).InContainer() {
		return check{}, false
	}
	left := unreaped("/proc")
	for limit := time.Now().Add(reapLimit); len(left) > 0 && time.Now().Before(limit) && ctx.Err() == nil; {
		time.Sleep(reapLimit / 20)
		now := unreaped("/proc")
		left = slices.DeleteFunc(left, func(pid string) bool { return !slices.Contains(now, pid) })
	}
	if len(left) == 0 {
		return check{}, false
	}
	return check{"init", levelWarn, fmt.Sprintf("process 1 of this container takes in no process that has ended: %d are left, and each has a place among its processes", len(left)),
		"start the container with an init (docker run --init), or with cove serve as its command"}, true
}

// unreaped are the children of process 1 that have ended.
func unreaped(proc string) (pids []string) {
	stats, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat")) // the pattern is a good one
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has just gone
		}
		// State and parent stand after the name, which may have anything in it: proc(5).
		if f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(f) > 1 && f[0] == "Z" && f[1] == "1" {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}
