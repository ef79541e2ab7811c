package shim

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestLacking: a limit that has no controller is not enforced. In v2 the other limits are
// enforced. In v1 runsc would start no sandbox with the hierarchies that there are.
func TestLacking(t *testing.T) {
	no := func(names string) string { return "the cgroups at /sys/fs/cgroup have no controller " + names }
	for _, tt := range []struct {
		mounted cgroup.Mounted
		want    []string
		inside  bool // the sandbox has cgroups
	}{
		{cgroup.Mounted{V2: true}, []string{"memory: " + no("memory, cpu"), "cpu: " + no("memory, cpu")}, false},
		{cgroup.Mounted{V2: true, Have: []string{"pids"}}, []string{"memory: " + no("memory, cpu"), "cpu: " + no("memory, cpu")}, false},
		{cgroup.Mounted{V2: true, Have: []string{"cpu", "pids"}}, []string{"memory: " + no("memory")}, true},
		{cgroup.Mounted{V2: true, Have: []string{"memory", "pids"}}, []string{"cpu: " + no("cpu")}, true},
		{cgroup.Mounted{V2: true, Have: []string{"memory", "cpu"}}, nil, true},
		{cgroup.Mounted{Have: []string{"cpu", "pids"}}, []string{"memory: " + no("memory"), "cpu: " + no("memory")}, false},
		{cgroup.Mounted{Have: []string{"memory", "cpu"}}, nil, true},
	} {
		got := lacking(tt.mounted)
		if st := (State{Unlimited: got}); !slices.Equal(got, tt.want) || inCgroups(st) != tt.inside {
			t.Errorf("%+v: got %q, in cgroups %v; want %q, %v", tt.mounted, got, inCgroups(st), tt.want, tt.inside)
		}
	}
}

// TestOnlyEnforced: a sandbox's cgroup is given no limit that it has no controller for.
func TestOnlyEnforced(t *testing.T) {
	cfg := Config{MemoryMB: 100, CPUs: 1, PidsMax: 77}
	for _, tt := range []struct {
		have              []string
		memory, cpu, pids bool
	}{{[]string{"memory"}, true, false, false}, {[]string{"cpu", "pids"}, false, true, true}, {[]string{"memory", "cpu", "pids"}, true, true, true}} {
		r := onlyEnforced(cfg.resources(), State{Unlimited: lacking(cgroup.Mounted{V2: true, Have: tt.have})}, tt.have)
		if (r.Memory != nil) != tt.memory || (r.CPU != nil) != tt.cpu || (r.Pids != nil) != tt.pids {
			t.Errorf("%q: got %+v", tt.have, r)
		}
	}
}

// TestCannotLimit: a shim sees which controllers the mounted cgroups have, even if it can
// make cgroups. The server says the same before the sandbox starts.
func TestCannotLimit(t *testing.T) {
	withCgroups(t, func() {
		if got := cannotLimit("/cove-lack"); !slices.Equal(got, unlimited(noCgroups)) || !slices.Equal(Unlimited(), got) {
			t.Errorf("nothing is mounted: got %q, %q", got, Unlimited())
		}
		for _, name := range []string{"memory", "cpu"} { // no hierarchies
			if err := os.Mkdir(filepath.Join(cgroupRoot, name), 0o755); err != nil {
				t.Error(err)
			}
		}
		if got := cannotLimit("/cove-lack"); !slices.Equal(got, unlimited(noCgroups)) {
			t.Errorf("folders of controllers: got %q", got)
		}
		if err := unix.Mount("none", cgroupRoot, "cgroup2", 0, ""); err != nil {
			t.Error(err)
			return
		}
		text, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		if err != nil {
			t.Error(err)
		}
		for _, name := range hostLimits {
			lacks := !slices.Contains(strings.Fields(string(text)), name)
			st := State{Unlimited: cannotLimit("/cove-lack")}
			if before := (State{Unlimited: Unlimited()}); lacks && (enforced(st, name) || enforced(before, name)) {
				t.Errorf("controllers %q: got %q, %q", text, st.Unlimited, before.Unlimited)
			}
		}
		// The limits that are left can be given.
		have := cgroup.Look().Have
		r := onlyEnforced(Config{MemoryMB: 100, CPUs: 1, PidsMax: 77}.resources(), State{Unlimited: lacking(cgroup.Look())}, have)
		if err := makeGroup(cgroupRoot, "cove-lack", r); err != nil {
			t.Error(err)
		}
		if err := removeCgroups("/cove-lack"); err != nil {
			t.Error(err)
		}
	})
}

// ownCgroups is set in the process that a test runs itself in again.
const ownCgroups = "COVE_TEST_OWN_CGROUPS"

// withCgroups runs f with an empty folder for cgroups: the test is run again, in a process
// that has a mount namespace of its own.
func withCgroups(t *testing.T, f func()) {
	t.Helper()
	if os.Getenv(ownCgroups) != "" {
		if err := unix.Mount("none", cgroupRoot, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		f()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), ownCgroups+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // in which / is private
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		need.Missing(t, "this user can't have a mount namespace", "sudo make test")
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
