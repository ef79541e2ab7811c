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
)

// TestOrdinaryUser runs the scripts and the tests of durability again as an
// ordinary user, whom COVE_TEST_USER names; .ci/run makes one.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this is that run
	}
	name := os.Getenv("COVE_TEST_USER")
	if name == "" {
		unable(t, "COVE_TEST_USER names no ordinary user; run as one, make test tests the same")
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
	scripts := "/^(checkpoint|exec|hostile|job|packages|policy|private|restart|sleep|url)$" // where an ordinary user's sandboxes are others
	tests, most := "TestScripts|TestSoakKill|TestSoakSleep|TestSoakCycles", "10m"
	if soak() {
		scripts, tests, most = "", tests+"|TestSoakFaults|TestOlderStorePutBack", "2h"
	}
	cmd := exec.Command(filepath.Join(dir, "cove.test"), "-test.v="+strconv.FormatBool(testing.Verbose()), "-test.parallel="+flag.Lookup("test.parallel").Value.String(),
		"-test.run=^("+tests+")$"+scripts, "-test.count=1", "-test.timeout="+most)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(dir, "home"), "USER="+name, "TMPDIR="+tmp, "COVE_BIN="+filepath.Join(dir, "bin"))
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
