package shim

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/test/need"
)

// A shim leaves its cgroup even if its children start processes all the time, and some of
// these are about to end.
func TestLeaveAmongForks(t *testing.T) {
	mount, from := filepath.Join(cgroupRoot, "memory"), cgroup.Process{}.Dir("memory")
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		mount = cgroupRoot
	}
	if from == "" || unix.Access(from, unix.W_OK) != nil {
		need.Missing(t, "cgroups can't be written here", "sudo make test, outside of a container")
	}
	for range 5 {
		g := ownGroup{mount: mount, group: "/cove-forks-" + filepath.Base(t.TempDir()), from: from}
		if err := os.Mkdir(g.dir(), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			cmd := exec.Command("sh", "-c", `echo $$ >"$1" && while :; do /bin/true; done`, "sh", filepath.Join(g.dir(), "cgroup.procs"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := errors.Join(cmd.Process.Kill(), cmd.Wait()); err != nil && cmd.ProcessState == nil {
					t.Error(err)
				}
			})
		}
		for deadline := time.Now().Add(10 * time.Minute); ; <-time.After(time.Millisecond) {
			if data, err := os.ReadFile(filepath.Join(g.dir(), "cgroup.procs")); err != nil || len(data) > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("no process joins the cgroup")
			}
		}
		if err := g.leave(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cgroup is left: %v", err)
			_ = removeGroup(g.mount, g.group)
		}
	}
}

// TestMoveToNoGroup: no file is made in a folder that is no cgroup, where others would take it
// for one.
func TestMoveToNoGroup(t *testing.T) {
	dir := t.TempDir()
	if err := moveTo(dir, os.Getpid()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("made: %v, %v", made, err)
	}
}
