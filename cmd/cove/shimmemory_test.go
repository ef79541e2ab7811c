package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A shim that uses more memory than it may is ended by the kernel, the next one adopts
// its sandbox, and a sandbox that ends leaves no cgroup.
func TestShimMemory(t *testing.T) {
	needsCgroups(t)
	h := newHost(t)
	h.run("", "cove", "create", "paint", "-q")
	h.run("", "cove", "exec", "-s", "paint", "--detach", "sleep", "1000")
	group := func() string {
		for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
			if dirs, _ := filepath.Glob(filepath.Join(root, "cove-"+h.info("paint").ID+"-*-shim")); len(dirs) == 1 { // the pattern is right
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
	shim := h.shims()[0]
	await(t, "the shim in a cgroup of its own", func() bool { dir = group(); return dir != "" && in(dir, shim) })
	await(t, "the shim alone in it", func() bool {
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
	tighten := func() { // the kernel may refuse what it would have to take back first
		used := number(dir, "memory.usage_in_bytes", "memory.current")
		_ = os.WriteFile(limitFile, []byte(strconv.FormatInt(used+1<<20, 10)), 0)
	}
	await(t, "the shim's end", func() bool {
		tighten()
		_, _ = h.try("", "cove", "exec", "-s", "paint", "head", "-c", "20000000", "/dev/zero")
		return syscall.Kill(shim, 0) != nil
	})
	await(t, "another shim", func() bool {
		now := h.shims()
		return len(now) == 1 && now[0] != shim && in(dir, now[0])
	})
	if out := h.run("", "cove", "exec", "-s", "paint", "pgrep", "-c", "sleep"); strings.TrimSpace(out) != "1" {
		t.Errorf("what ran in the sandbox: %q", out)
	}
	h.run("", "cove", "rm", "--force", "paint")
	await(t, "the end of its cgroup", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
}
