package server

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestShimMemory: the kernel ends a shim that exceeds its memory limit, and the next shim
// adopts its sandbox. A sandbox that ends leaves no cgroup.
func TestShimMemory(t *testing.T) {
	e2e.NeedsCgroups(t)
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "-q")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "sleep", "100000")
	group := func() string {
		for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
			if dirs, _ := filepath.Glob(filepath.Join(root, "cove-"+h.Info("paint").ID+"-*-shim")); len(dirs) == 1 { // the pattern is right
				return dirs[0]
			}
		}
		return ""
	}
	number := func(dir string, names ...string) int64 {
		t.Helper()
		for _, name := range names {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("%s has none of %v", dir, names)
		return 0
	}
	in := func(dir string, pid int) bool {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return err == nil && strings.Contains("\n"+string(data), fmt.Sprintf("\n%d\n", pid))
	}
	var dir string
	shim := h.Shims()[0]
	e2e.Await(t, "the shim in a cgroup of its own", func() bool { dir = group(); return dir != "" && in(dir, shim) })
	e2e.Await(t, "the shim alone in it", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return err == nil && strings.TrimSpace(string(data)) == strconv.Itoa(shim)
	})
	if limit := number(dir, "memory.limit_in_bytes", "memory.max"); limit <= 0 || limit > 1<<30 {
		t.Errorf("the shim may use %d bytes", limit)
	}
	limitFile := filepath.Join(dir, "memory.limit_in_bytes")
	if _, err := os.Stat(limitFile); err != nil {
		limitFile = filepath.Join(dir, "memory.max")
	}
	tighten := func() { // the kernel may refuse a limit below the memory in use
		used := number(dir, "memory.usage_in_bytes", "memory.current")
		_ = os.WriteFile(limitFile, []byte(strconv.FormatInt(used+1<<20, 10)), 0)
	}
	e2e.Await(t, "the shim's end", func() bool {
		tighten()
		_, _ = h.Try("", "cove", "exec", "-s", "paint", "head", "-c", "20000000", "/dev/zero")
		return syscall.Kill(shim, 0) != nil
	})
	e2e.Await(t, "another shim", func() bool {
		now := h.Shims()
		return len(now) == 1 && now[0] != shim && in(dir, now[0])
	})
	if out := h.Run("", "cove", "exec", "-s", "paint", "pgrep", "-c", "sleep"); strings.TrimSpace(out) != "1" {
		t.Errorf("what ran in the sandbox: %q", out)
	}
	h.Run("", "cove", "rm", "--force", "paint")
	e2e.Await(t, "the end of its cgroup", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
}

// TestTerminatedShim: a SIGTERM to the server and the shims, as of pkill, ends only the
// server. Programs in a sprite go on, and the next server takes the sprite up.
func TestTerminatedShim(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done")
	shims, server := h.Shims(), h.PID()
	if len(shims) != 1 {
		t.Fatalf("there are the shims %v", shims)
	}
	for _, pid := range append(shims, server) {
		if err := e2e.Signal(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if err := e2e.AwaitEnd(server); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "server", "start")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)")
	if now := h.Shims(); !slices.Equal(now, shims) {
		t.Errorf("there are the shims %v, not %v", now, shims)
	}
}
