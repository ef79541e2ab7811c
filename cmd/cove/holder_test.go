package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/shim"
)

// holder returns the process that keeps the server's user namespace.
func (h *host) holder() (pid int) {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.data, "userns"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// kill ends processes with -9, all at once, and returns when they are gone.
func (h *host) kill(pids ...int) {
	h.t.Helper()
	signalAll(h.t, syscall.SIGKILL, pids...)
	for _, pid := range pids {
		if err := awaitEnd(pid); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestHolderKilled kills the process that keeps an ordinary user's namespace, with each of
// the others, at once and one after the other. What runs inside goes on: as long as a
// process of the namespace lives, the next holder joins it.
func TestHolderKilled(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--idle", "0")
	h.run("", "cove", "exec", "-s", "paint", "--detach", "sleep", "1000")
	h.run("", "cove", "exec", "-s", "paint", "touch", "/dev/shm/mark", "file") // in memory, and on disk
	check := func(t *testing.T, after string) {
		t.Helper()
		if out := h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "pgrep -c sleep; ls /dev/shm/mark file"); out != "1\n/dev/shm/mark\nfile\n" {
			t.Errorf("after %s: %s", after, out)
		}
	}
	h.kill(h.holder())
	check(t, "the holder")
	h.kill(h.pid())
	check(t, "the holder, and later the server")
	h.kill(h.holder(), h.pid())
	check(t, "holder and server")
	h.kill(append(h.shims(), h.holder())...)
	check(t, "holder and shim")
	h.kill(h.holder())
	h.run("", "cove", "exec", "-s", "paint", "true") // its shim is there again
	h.kill(append(h.shims(), h.pid())...)
	check(t, "the holder, and later server and shim")
	h.kill(append(h.shims(), h.holder(), h.pid())...)
	check(t, "holder, server and shim")

	h.run("", "cove", "exec", "-s", "paint", "pkill", "sleep")
	h.run("", "cove", "update", "paint", "--idle", "1s")
	h.stage("paint", true)
	h.kill(append(h.shims(), h.holder(), h.pid())...)
	if out := h.run("", "cove", "exec", "-s", "paint", "ls", "/dev/shm/mark"); out != "/dev/shm/mark\n" {
		t.Errorf("after all but a sandbox that is paused: %s", out)
	}
}

// TestHolderOfServer: beside a server whose holder has died another one does not start, and
// the holder that it leaves keeps the first one's namespace, though no sandbox is in that.
func TestHolderOfServer(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	h := newHost(t)
	h.serve(nil)
	first := h.holder()
	h.kill(first)
	if out, code := h.try("", "cove", "serve", "--addr", "127.0.0.1:0"); code == 0 || h.holder() == first {
		t.Fatalf("exit code %d, holder %d: %s", code, h.holder(), out)
	}
	got, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", h.holder()))
	want, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", h.pid()))
	if err1 != nil || err2 != nil || got != want {
		t.Errorf("got %s, %v, want %s, %v", got, err1, want, err2)
	}
}

// TestForeignSandbox has a server start in another user namespace than the one that its
// sandboxes are in. It can't look after them, and puts their memory on disk. One that has no
// shim to do that is ended, and its sprite begins anew.
func TestForeignSandbox(t *testing.T) {
	if os.Geteuid() == 0 {
		return // root needs no namespace; TestOrdinaryUser runs this
	}
	other, h := newHost(t), newLoneHost(t)
	other.serve(nil)
	h.serve(nil)
	for _, name := range []string{"paused", "running", "alone"} {
		h.run("", "cove", "create", name, "--idle", "0")
		h.run("", "cove", "exec", "-s", name, "touch", "/dev/shm/mark", "file")
	}
	h.run("", "cove", "update", "paused", "--idle", "1s")
	h.stage("paused", true)

	// Its note of the holder becomes the other's, but for the folder.
	theirs, err1 := os.ReadFile(filepath.Join(other.data, "userns"))
	ours, err2 := os.ReadFile(filepath.Join(h.data, "userns"))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	to, from := strings.Fields(string(ours)), strings.Fields(string(theirs))
	alone := filepath.Join(h.data, "run", jsonField(t, h.run("", "cove", "info", "alone", "--json"), "id"))
	keeper, _, err := shim.Keeper(alone)
	if err != nil {
		t.Fatal(err)
	}
	was, err := shim.ReadState(alone)
	if err != nil {
		t.Fatal(err)
	}
	h.kill(h.pid(), h.holder(), keeper)
	h.write("data/userns", fmt.Sprintf("%10s %20s %33s\n", from[0], from[1], to[2]))

	for _, name := range []string{"paused", "running"} {
		if out := h.run("", "cove", "exec", "-s", name, "ls", "/dev/shm/mark", "file"); out != "/dev/shm/mark\nfile\n" {
			t.Errorf("%s: %s", name, out)
		}
	}
	if out, code := h.try("", "cove", "exec", "-s", "alone", "ls", "file"); code != 0 || !strings.Contains(out, "the sprite began anew") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if err := awaitEnd(was.PID); err != nil {
		t.Errorf("its sandbox: %v", err)
	}
}
