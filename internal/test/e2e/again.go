package e2e

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

// AtBackend runs tests of the package again, with the sprites of their hosts at a backend.
// In make soak it runs the tests whose names match the pattern all; in make test those
// that match sample.
func AtBackend(t *testing.T, sample, all string) {
	t.Helper()
	if os.Getenv(FarVariable) != "" {
		t.Skip("it is what runs this")
	}
	RequireSandbox(t)
	t.Parallel()
	run := sample
	if Soak() {
		run = all
	}
	cmd := exec.Command(os.Args[0], "-test.run", run, "-test.parallel", "2", "-test.timeout", "30m", "-test.v")
	cmd.Env = append(os.Environ(), FarVariable+"=1", "COVE_SOAK=")
	out, err := cmd.CombinedOutput()
	passed := strings.Count(string(out), "--- PASS: Test")
	if err != nil || passed == 0 || strings.Contains(string(out), "--- FAIL") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d tests passed", passed)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- SKIP") {
			t.Log(line)
		}
	}
}

// AsOrdinaryUser runs tests of the package again as the ordinary user that COVE_TEST_USER
// names (.ci/run makes one). The pattern tests matches their names; most is a limit as of
// go test -timeout. The arguments files are the files and folders of the package that
// they need.
func AsOrdinaryUser(t *testing.T, tests, most string, files ...string) {
	t.Helper()
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
	copies := map[string]string{BinDir: "bin", os.Args[0]: "cove.test"}
	for _, file := range files {
		copies[file] = file
	}
	for from, to := range copies {
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
	cmd := exec.Command(filepath.Join(dir, "cove.test"), "-test.v="+strconv.FormatBool(testing.Verbose()), "-test.parallel="+flag.Lookup("test.parallel").Value.String(),
		"-test.run="+tests, "-test.count=1", "-test.timeout="+most)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(dir, "home"), "USER="+name, "TMPDIR="+tmp, "COVE_BIN="+filepath.Join(dir, "bin"), need.Ordinary+"=1", need.Noted+"=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", strings.TrimSpace(string(out)))
	if err != nil {
		t.Errorf("as %s: %v", name, err)
	}
}

// mountMemory mounts a tmpfs at dir, if a tmpfs can hold an ordinary user's overlay. Each
// data folder there has the machine's 17,000 folders of programs, and ext4 slows all
// programs while it frees so many.
func mountMemory(t *testing.T, dir string) {
	t.Helper()
	if Soak() {
		return // a soak must have the data folders on the disk
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
