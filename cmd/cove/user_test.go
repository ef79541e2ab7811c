package main

import (
	"flag"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/need"
)

// TestOrdinaryUser runs the scripts and the tests of durability again as an
// ordinary user, whom COVE_TEST_USER names; .ci/run makes one.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this is that run
	}
	name := os.Getenv("COVE_TEST_USER")
	if name == "" {
		need.Missing(t, "COVE_TEST_USER names no ordinary user", "make one as .ci/run does, and set COVE_TEST_USER to its name")
	}
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	// All that the user needs is copied to where the user may read it.
	dir := t.TempDir()
	for from, to := range map[string]string{binDir: "bin", "testdata": "testdata", os.Args[0]: "cove.test"} {
		if out, err := exec.Command("cp", "-r", from, filepath.Join(dir, to)).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v: %s", from, err, out)
		}
	}
	tmp := filepath.Join(dir, "tmp")
	for _, d := range []string{tmp, filepath.Join(dir, "home")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	mountMemory(t, tmp)
	if err := os.Chown(tmp, uid, gid); err != nil {
		t.Fatal(err)
	}
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	scripts := "/^(checkpoint|exec|hardlinks|hostile|job|packages|policy|private|restart|sleep|url)$" // where an ordinary user's sandboxes are others
	tests, most := "TestScripts|TestSoakKill|TestSoakSleep|TestSoakCycles|TestHolderKilled|TestHolderOfServer|TestForeignSandbox", "50m"
	if soak() {
		scripts, tests, most = "", tests+"|TestSoakFaults|TestOlderStorePutBack", "2h"
	}
	cmd := exec.Command(filepath.Join(dir, "cove.test"), "-test.v="+strconv.FormatBool(testing.Verbose()), "-test.parallel="+flag.Lookup("test.parallel").Value.String(),
		"-test.run=^("+tests+")$"+scripts, "-test.count=1", "-test.timeout="+most)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(dir, "home"), "USER="+name, "TMPDIR="+tmp, "COVE_BIN="+filepath.Join(dir, "bin"), need.Ordinary+"=1", need.Noted+"=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", strings.TrimSpace(string(out)))
	if err != nil {
		t.Errorf("as %s: %v", name, err)
	}
}

// mountMemory mounts a tmpfs where that can hold an overlay of an ordinary user's. Each data
// folder there has the machine's 17,000 folders of programs, and ext4 is slow for everybody
// while it frees so many.
func mountMemory(t *testing.T, dir string) {
	t.Helper()
	if soak() {
		return // which is to have them on the disk
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=0755,size=8g"); err != nil {
		t.Fatal(err)
	}
	leave := func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	if unix.Setxattr(dir, "user.cove", []byte("a test"), 0) != nil { // before Linux 6.6
		leave()
		return
	}
	t.Cleanup(leave)
}

// TestUserHoldsNoDisk: a disk that the host unmounts is not held by the sandboxes of an
// ordinary user, which began before.
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
		await(t, "the end of the user's last process", func() bool { return unix.Unmount(home, 0) == nil })
		run("rm -r " + dir)
	})
	run("chmod 755 .; cp -r " + binDir + " bin; mkdir home usb; mount -t tmpfs home home; chown " + name + " home; mount -t tmpfs usb usb; touch usb/file")
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
