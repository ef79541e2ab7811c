package userns

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// TestNamespaceOf: a living process is found by its number and its start together.
// This process's own namespace can't be joined.
func TestNamespaceOf(t *testing.T) {
	start := func(flags uintptr) (Process, func()) {
		t.Helper()
		cmd := exec.Command("sh", "-c", "read line")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err1 := processStart(cmd.Process.Pid)
		at, err2 := strconv.ParseUint(text, 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return Process{cmd.Process.Pid, at}, func() {
			_ = in.Close()
			_ = cmd.Wait() // it has read nothing
		}
	}
	within, end := start(syscall.CLONE_NEWUSER)
	defer end()
	ns, err := namespaceOf(within)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	got, err1 := ns.Stat()
	want, err2 := os.Stat(namespaceFile(within.PID))
	if err1 != nil || err2 != nil || !os.SameFile(got, want) {
		t.Errorf("got %v, %v, want %v, %v", got, err1, want, err2)
	}
	if _, err := namespaceOf(Process{within.PID, within.Start + 1}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("another process of its number: got %v", err)
	}
	own, endOwn := start(0)
	defer endOwn()
	if ns, err := namespaceOf(own); err == nil {
		t.Errorf("a process of this namespace: got %v", ns)
	}
	ended, end := start(syscall.CLONE_NEWUSER)
	end()
	if ns, err := namespaceOf(ended); err == nil {
		t.Errorf("a process that has ended: got %v", ns)
	}
}
