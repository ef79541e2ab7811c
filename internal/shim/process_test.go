package shim

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestProcessIdentity(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	start, err := processStart(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !alive(pid, start) || alive(pid, start+1) || alive(0, start) {
		t.Errorf("alive: got %v, %v, %v for the process, a later one of its number, and none; want true, false, false",
			alive(pid, start), alive(pid, start+1), alive(0, start))
	}
	killProcess(pid, start+1)
	if !alive(pid, start) {
		t.Fatal("killProcess ended a process that is not the one meant")
	}
	killProcess(pid, start)
	if alive(pid, start) {
		t.Error("the process lives on after killProcess")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process was not killed")
	}
	if alive(pid, start) {
		t.Error("alive after its parent collected it")
	}
}

func TestWaitProcessEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	waitProcess(ctx, os.Getpid())
	if ctx.Err() == nil {
		t.Error("waitProcess returned before the process or the context ended")
	}
}

func TestGuestAddr(t *testing.T) {
	seen := map[netip.Addr]int64{}
	for n := range int64(2000) {
		a := guestAddr(n)
		if !subnet.Contains(a) || a == subnet.Addr() {
			t.Fatalf("incarnation %d: %v is outside of %v, or the gateway's", n, a, subnet)
		}
		if prev, ok := seen[a]; ok && n-prev < 60000 {
			t.Errorf("incarnations %d and %d share %v", prev, n, a)
		}
		seen[a] = n
	}
}
