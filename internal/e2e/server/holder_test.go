package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// holder returns the process that keeps the server's user namespace.
func holder(h *e2e.Host) (pid int) {
	h.T.Helper()
	text, err := os.ReadFile(filepath.Join(h.Data, "userns"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return pid
}

// kill ends processes with -9, all at once, and waits until they are gone.
func kill(h *e2e.Host, pids ...int) {
	h.T.Helper()
	e2e.SignalAll(h.T, syscall.SIGKILL, pids...)
	for _, pid := range pids {
		if err := e2e.AwaitEnd(pid); err != nil {
			h.T.Fatal(err)
		}
	}
}

// TestHolderKilled kills the process that keeps an ordinary user's namespace, with each of
// the others, at once and one after the other. Programs inside go on: while a process of
// the namespace lives, the next holder joins it.
func TestHolderKilled(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "sleep", "100000")
	h.Run("", "cove", "exec", "-s", "paint", "touch", "/dev/shm/mark", "file") // in memory, and on disk
	check := func(t *testing.T, after string) {
		t.Helper()
		if out := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "pgrep -c sleep; ls /dev/shm/mark file"); out != "1\n/dev/shm/mark\nfile\n" {
			t.Errorf("after %s: %s", after, out)
		}
	}
	kill(h, holder(h))
	check(t, "the holder")
	kill(h, h.PID())
	check(t, "the holder, and later the server")
	kill(h, holder(h), h.PID())
	check(t, "holder and server")
	kill(h, append(h.Shims(), holder(h))...)
	check(t, "holder and shim")
	kill(h, holder(h))
	h.Run("", "cove", "exec", "-s", "paint", "true") // its shim is there again
	kill(h, append(h.Shims(), h.PID())...)
	check(t, "the holder, and later server and shim")
	kill(h, append(h.Shims(), holder(h), h.PID())...)
	check(t, "holder, server and shim")

	h.Run("", "cove", "exec", "-s", "paint", "pkill", "sleep")
	h.Run("", "cove", "update", "paint", "--idle", "1s")
	h.Stage("paint", true)
	kill(h, append(h.Shims(), holder(h), h.PID())...)
	if out := h.Run("", "cove", "exec", "-s", "paint", "ls", "/dev/shm/mark"); out != "/dev/shm/mark\n" {
		t.Errorf("after all but a sandbox that is paused: %s", out)
	}
}

// TestHolderOfServer: beside a server whose holder has died, a second server does not
// start. Yet it leaves a holder, which keeps the first server's namespace, even without a
// sandbox there.
func TestHolderOfServer(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	h := e2e.NewHost(t)
	h.Serve(nil)
	first := holder(h)
	kill(h, first)
	if out, code := h.Try("", "cove", "serve", "--addr", "127.0.0.1:0"); code == 0 || holder(h) == first {
		t.Fatalf("exit code %d, holder %d: %s", code, holder(h), out)
	}
	got, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", holder(h)))
	want, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", h.PID()))
	if err1 != nil || err2 != nil || got != want {
		t.Errorf("got %s, %v, want %s, %v", got, err1, want, err2)
	}
}

// TestForeignSandbox has a server start in another user namespace than the one that its
// sandboxes are in. It can't look after them, and puts their memory on disk. A sandbox
// without a shim, which would do that, is ended, and its sprite begins anew.
func TestForeignSandbox(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	other, h := e2e.NewHost(t), e2e.NewLoneHost(t)
	other.Serve(nil)
	h.Serve(nil)
	for _, name := range []string{"paused", "running", "alone"} {
		h.Run("", "cove", "create", name, "--idle", "0")
		h.Run("", "cove", "exec", "-s", name, "touch", "/dev/shm/mark", "file")
	}
	h.Run("", "cove", "update", "paused", "--idle", "1s")
	h.Stage("paused", true)

	// Its note of the holder becomes the other's, but for the folder.
	theirs, err1 := os.ReadFile(filepath.Join(other.Data, "userns"))
	ours, err2 := os.ReadFile(filepath.Join(h.Data, "userns"))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	to, from := strings.Fields(string(ours)), strings.Fields(string(theirs))
	alone := filepath.Join(h.Data, "run", e2e.JSONField(t, h.Run("", "cove", "info", "alone", "--json"), "id"))
	keeper, _, err := shim.Keeper(alone)
	if err != nil {
		t.Fatal(err)
	}
	was, err := shim.ReadState(alone)
	if err != nil {
		t.Fatal(err)
	}
	kill(h, h.PID(), holder(h), keeper)
	h.Write("data/userns", fmt.Sprintf("%10s %20s %33s\n", from[0], from[1], to[2]))

	for _, name := range []string{"paused", "running"} {
		if out := h.Run("", "cove", "exec", "-s", name, "ls", "/dev/shm/mark", "file"); out != "/dev/shm/mark\nfile\n" {
			t.Errorf("%s: %s", name, out)
		}
	}
	if out, code := h.Try("", "cove", "exec", "-s", "alone", "ls", "file"); code != 0 || !strings.Contains(out, "the sprite began anew") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if err := e2e.AwaitEnd(was.PID); err != nil {
		t.Errorf("its sandbox: %v", err)
	}
}
