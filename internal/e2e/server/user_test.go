package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestOrdinaryUser runs the tests of durability again as an ordinary user. The test of
// this name in internal/e2e/scripts runs scripts.
func TestOrdinaryUser(t *testing.T) {
	tests, most := "TestSoakKill|TestSoakSleep|TestSoakCycles|TestHolderKilled|TestHolderOfServer|TestForeignSandbox", "50m"
	if e2e.Soak() {
		tests, most = tests+"|TestSoakFaults|TestOlderStorePutBack", "2h"
	}
	e2e.AsOrdinaryUser(t, "^("+tests+")$", most)
}

// TestUserHoldsNoDisk: the host can unmount a disk while an ordinary user's earlier
// sandboxes run: they do not hold it.
func TestUserHoldsNoDisk(t *testing.T) {
	name := os.Getenv("COVE_TEST_USER")
	if os.Geteuid() != 0 || name == "" {
		return // TestOrdinaryUser tells
	}
	dir, err := os.MkdirTemp("", "cove-disk-")
	if err != nil {
		t.Fatal(err)
	}
	home, usb := filepath.Join(dir, "home"), filepath.Join(dir, "usb")
	run := func(script string) string {
		t.Helper()
		out, err := exec.Command("sh", "-c", "set -e; cd "+dir+"; "+script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	asUser := func(script string) string {
		t.Helper()
		return run("exec setpriv --reuid " + name + " --regid " + name + " --init-groups env HOME=" + home + " PATH=" + dir + "/bin:$PATH COVE_DATA=" + home + "/data sh -ec '" + script + "'")
	}
	t.Cleanup(func() {
		_ = unix.Unmount(usb, 0)
		e2e.Await(t, "the end of the user's last process", func() bool { return unix.Unmount(home, 0) == nil })
		run("rm -r " + dir)
	})
	run("chmod 755 .; cp -r " + e2e.BinDir + " bin; mkdir home usb; mount -t tmpfs home home; chown " + name + " home; mount -t tmpfs usb usb; touch usb/file")
	t.Cleanup(func() { asUser("cd; cove rm -f paint; cove server stop") })
	if out := asUser("cd; cove create -q paint; cove checkpoint create -q -s paint; cove exec -s paint echo runs"); !strings.HasSuffix(out, "runs\n") {
		t.Errorf("the sprite says %q", out)
	}
	run("umount usb")
	held, err := exec.Command("sh", "-c", `for p in $(pgrep --uid "$1"); do grep -H " $2 " /proc/$p/mountinfo 2>/dev/null; done; true`, "sh", name, usb).Output()
	if err != nil || len(held) > 0 {
		t.Errorf("the disk is held: %v\n%s", err, held)
	}
	if out := asUser("cd; cove exec -s paint echo goes on"); out != "goes on\n" {
		t.Errorf("the sprite says %q", out)
	}
}
