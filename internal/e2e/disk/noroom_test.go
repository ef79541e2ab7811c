package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestSuspendNoRoom: a server that ends with its container has room for the memory of only one
// of two sprites. It keeps that one. For the other, the next server says how much room there
// was.
func TestSuspendNoRoom(t *testing.T) {
	h := e2e.NewSmallHost(t, "1G")
	h.Serve(nil, "--suspend-at-end", "--disk-reserve", "0", "--idle", "0")
	names := []string{"one", "two"}
	for _, name := range names {
		h.Run("", "cove", "create", name)
		h.Run("", "cove", "exec", "-s", name, "--detach", "--", "python3", "-c", `import os, time
held = os.urandom(200 << 20)
open("/tmp/held", "w").close()
time.sleep(100000)`)
	}
	for _, name := range names {
		h.Sh(name, "until test -e /tmp/held; do sleep 0.1; done")
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(h.Data, &disk); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(h.Data, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(disk.Bavail)*disk.Bsize-320<<20); err != nil {
		t.Fatal(err)
	}
	h.EndServer(syscall.SIGTERM)
	kept, err := filepath.Glob(filepath.Join(h.Data, "images", "*", "cove.json"))
	if err != nil || len(kept) != 1 {
		log, _ := os.ReadFile(filepath.Join(h.Data, "serve.log"))
		t.Fatalf("memories that are kept: %q, %v\n%s", kept, err, log)
	}
	e2e.Await(t, "the end of the sandbox whose memory is kept", func() bool {
		left, err := filepath.Glob(filepath.Join(h.Data, "run", "*", "sandbox.json"))
		return err == nil && len(left) == 1
	})
	// All processes of a container end with it.
	st, shims := h.SandboxState(), h.Shims()
	for _, pid := range append(shims, st.PID) {
		if err := e2e.Signal(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) { // a shim whose sandbox is saved may just have ended
			t.Fatal(err)
		}
	}
	for _, pid := range append(shims, st.PID) {
		if err := e2e.AwaitEnd(pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	h.Serve(nil, "--disk-reserve", "0", "--idle", "0")
	woke := 0
	for _, name := range names {
		out, code := h.Try("", "cove", "exec", "-s", name, "--", "sh", "-c", "pgrep -f time[.]sleep >/dev/null && echo runs")
		switch {
		case name != st.Hostname && code == 0 && out == "runs\n":
			woke++
		case name == st.Hostname && strings.Contains(out, "its memory was not kept: no room: ") && strings.Contains(out, "MiB were free, and some 2"):
		default:
			t.Errorf("%s (%s was lost): %d, %s", name, st.Hostname, code, out)
		}
	}
	if woke != 1 {
		t.Errorf("%d sprites went on", woke)
	}
	if out := h.Run("", "cove", "info", st.Hostname); !strings.Contains(out, "no room: ") {
		t.Errorf("cove info: %s", out)
	}
}
