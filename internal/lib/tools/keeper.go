package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/proctree"
)

const (
	killGrace = 2 * time.Second  // between TERM and KILL, as a rule
	killLimit = 30 * time.Second // for KILL's effect; a busy machine may hold up sudo, or the keeper

	settle = 100 * time.Millisecond // for what a command started and left, to end with it
)

// exitSurvivors is a keeper's exit code if it could not end the remaining processes, which are
// another user's.
const exitSurvivors = 3

// keeperSpec is the order to a keeper, in one line of its input.
type keeperSpec struct {
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env"`

	Grace time.Duration `json:"grace"` // between TERM and KILL
}

// keeperReport is a line of a keeper's report. The first says that the command runs, or why
// not; the next how it ended.
type keeperReport struct {
	Error  string `json:"error,omitempty"`
	Ended  bool   `json:"ended,omitempty"`
	Code   int    `json:"code"`             // 128 + the signal's number
	Signal string `json:"signal,omitempty"` // such as KILL
	Left   bool   `json:"left,omitempty"`   // what it started still runs
}

// Keep is the process above one command of Bash, `cove-guest tool keep`. All processes that
// the command starts stay below the keeper, even after a double fork: orphans become its
// children. It lives as long as any of them does. When its input ends, it ends all of them. It
// writes its report to report.
func Keep(stdin io.Reader, report *os.File) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	syscall.CloseOnExec(int(report.Fd()))
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the command: %w", err)
	}
	var spec keeperSpec
	if err := json.Unmarshal(line, &spec); err != nil {
		return fmt.Errorf("read the command: %w", err)
	}
	out := json.NewEncoder(report)
	pid, err := startCommand(spec)
	if err != nil {
		return out.Encode(keeperReport{Error: err.Error()})
	}
	if err := out.Encode(keeperReport{}); err != nil {
		return err
	}
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		// If there are none below, this is not the end yet: the last may not be reported, or
		// one has just been started.
		for deadline := time.Now().Add(spec.Grace + killLimit); ; {
			ended := endBelow(spec.Grace)
			if await(context.Background(), gone, 10*time.Millisecond) {
				return
			}
			if !ended && time.Now().After(deadline) {
				os.Exit(exitSurvivors)
			}
		}
	}()
	return collectChildren(pid, out)
}

// startCommand starts the command in a kernel session of its own, and gives away
// the streams of its output.
func startCommand(spec keeperSpec) (pid int, err error) {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(null)
	pid, err = syscall.ForkExec(spec.Argv[0], spec.Argv, &syscall.ProcAttr{
		Dir: spec.Dir, Env: spec.Env, Files: []uintptr{uintptr(null), 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	return pid, errors.Join(syscall.Dup3(null, 1, 0), syscall.Dup3(null, 2, 0))
}

// collectChildren waits for every child, its own and those left to it, and reports
// the end of one.
func collectChildren(main int, out *json.Encoder) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD:
			return nil
		case err != nil:
			return fmt.Errorf("wait for the command: %w", err)
		case pid != main:
			continue
		}
		r := keeperReport{Ended: true, Code: status.ExitStatus(), Left: !collectRest()}
		if status.Signaled() {
			r.Code = 128 + int(status.Signal())
			r.Signal = signalName(status.Signal())
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

// collectRest gives what a command started a moment to end with it, and reports
// whether it has.
func collectRest() bool {
	for deadline := time.Now().Add(settle); ; {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.ECHILD:
			return true
		case err == nil && pid > 0, err == syscall.EINTR:
		case time.Now().After(deadline):
			return false
		default:
			<-time.After(2 * time.Millisecond)
		}
	}
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); len(name) > 3 {
		return name[3:] // without SIG
	}
	return fmt.Sprint(int(sig))
}

// endBelow ends every process below this one: TERM, and KILL until there are none. It reports
// whether there are none. They are collected elsewhere.
func endBelow(grace time.Duration) (ended bool) {
	for _, pid := range proctree.Below(os.Getpid()) {
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have just ended
		_ = syscall.Kill(pid, syscall.SIGCONT) // one that is stopped takes no TERM
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		if len(proctree.Below(os.Getpid())) == 0 {
			return true
		}
	}
	helper := 0
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); <-time.After(2 * time.Millisecond) {
		below := proctree.Below(os.Getpid())
		if len(below) == 0 {
			return true
		}
		var others []string
		for _, pid := range below {
			if pid != helper && syscall.Kill(pid, syscall.SIGKILL) == syscall.EPERM {
				others = append(others, strconv.Itoa(pid))
			}
		}
		if len(others) > 0 && !slices.Contains(below, helper) {
			helper = killAsRoot(others)
		}
	}
	return false
}

// killAsRoot ends another user's processes, such as those of a command's sudo, by sudo. If
// sudo needs a password, they stay. The helper is collected with all other children; 0: there
// is none.
func killAsRoot(pids []string) (helper int) {
	sudo, err := exec.LookPath("sudo")
	if err != nil {
		return 0
	}
	helper, err = syscall.ForkExec(sudo, append([]string{"sudo", "-n", "kill", "-KILL"}, pids...), &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{1, 1, 1}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0
	}
	return helper
}
