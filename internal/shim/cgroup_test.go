package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// TestHandDown: each cgroup above a sandbox's hands all controllers down, and one that does
// not is an error before runsc meets it.
func TestHandDown(t *testing.T) {
	mount := t.TempDir()
	parent := filepath.Join(mount, "a", "b")
	if err := errors.Join(os.MkdirAll(parent, 0o755), handDown(mount, parent)); err != nil {
		t.Fatalf("v1: %v", err)
	}
	if err := os.WriteFile(filepath.Join(mount, "cgroup.controllers"), []byte("cpu io memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	controls := []string{}
	for _, dir := range []string{mount, filepath.Join(mount, "a"), parent} {
		controls = append(controls, filepath.Join(dir, "cgroup.subtree_control"))
	}
	for _, name := range controls {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := handDown(mount, parent); err != nil {
		t.Fatal(err)
	}
	for _, name := range controls {
		if got, err := os.ReadFile(name); err != nil || string(got) != "+cpu +io +memory" {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if err := errors.Join(os.Remove(controls[1]), os.Mkdir(controls[1], 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := handDown(mount, parent); !errors.Is(err, unix.EISDIR) {
		t.Errorf("got %v of a cgroup that hands nothing down", err)
	}
}

// TestMakeGroup: without all the controllers that runsc wants, the shim makes the cgroup and
// its limits. One that is there keeps its own.
func TestMakeGroup(t *testing.T) {
	mount := t.TempDir()
	limit, period, quota := int64(300<<20), uint64(cgroup.Period), int64(cgroup.Period)
	r := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit}, CPU: &specs.LinuxCPU{Period: &period, Quota: &quota}, Pids: &specs.LinuxPids{Limit: 77},
	}
	for _, tt := range []struct {
		controllers string // empty: v1
		made        bool
	}{{"", false}, {"cpuset cpu io memory hugetlb pids\n", false}, {"cpu memory pids\n", true}} {
		if tt.controllers != "" {
			if err := os.WriteFile(filepath.Join(mount, "cgroup.controllers"), []byte(tt.controllers), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := makeGroup(mount, "/g", r); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(mount, "g")); (err == nil) != tt.made {
			t.Errorf("controllers %q: %v", tt.controllers, err)
		}
	}
	limit = 1
	if err := makeGroup(mount, "/g", r); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.max": "314572800", "cpu.max": "100000 100000", "pids.max": "77"} {
		if got, err := os.ReadFile(filepath.Join(mount, "g", name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}
