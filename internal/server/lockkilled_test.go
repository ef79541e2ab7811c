package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestKilledButNotGone: a server that was killed keeps its lock until the kernel is done with its
// process. Here ptrace stops the process at the beginning of its end. The next server says
// that it waits, and has the lock as soon as the process is gone, however long that takes.
func TestKilledButNotGone(t *testing.T) {
	runtime.LockOSThread() // the tracer is a thread; it ends with the test
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	held, err := os.Create(filepath.Join(dir, datafolder.LockFile))
	must(t, err)
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	last := exec.Command("sleep", "infinity")
	last.ExtraFiles = []*os.File{held}
	last.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	must(t, last.Start())
	must(t, held.Close())
	pid := last.Process.Pid
	var status unix.WaitStatus
	next := func() {
		t.Helper()
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		must(t, err)
	}
	next() // at its first instruction
	must(t, unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT|unix.PTRACE_O_EXITKILL))
	must(t, unix.PtraceCont(pid, 0))
	text, err := json.Marshal(datafolder.Server{
		ServerInfo: sprites.ServerInfo{PID: pid, URL: "http://127.0.0.1:1"},
		Processes:  private.Processes(), Started: private.StartOf(pid),
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, datafolder.ServerFile), text, 0o600))
	_, err = server.Lock(t.Context(), dir, nil)
	failIf(t, !errors.Is(err, store.ErrLocked), "while it lives: got %v", err)

	must(t, unix.Kill(pid, unix.SIGKILL))
	next() // at the beginning of its end
	if !status.Stopped() || status.TrapCause() != unix.PTRACE_EVENT_EXIT {
		t.Fatalf("it is not about to end: %#x", status)
	}
	waits, has := make(chan int), make(chan error, 1)
	go func() {
		lock, err := server.Lock(t.Context(), dir, func(pid int) { waits <- pid })
		if err == nil {
			err = lock.Close()
		}
		has <- err
	}()
	select {
	case err := <-has:
		must(t, fmt.Errorf("the lock of one that is not gone: got %w", err))
	case got := <-waits:
		failIf(t, got != pid, "it waits for process %d, not %d", got, pid)
	}
	must(t, unix.PtraceCont(pid, 0))
	must(t, <-has)
	next()
	failIf(t, !status.Signaled(), "it ended with %#x", status)
}
