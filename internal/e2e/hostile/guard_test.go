package hostile

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// smallUsr fills a folder ($1), which will be shown as /usr, with programs and their
// libraries.
const smallUsr = `to=$1
mkdir -p $to/bin $to/share/private
for p in sh cat ls ln cp mv chmod mkdir id mount nsenter setpriv newuidmap newgidmap; do
	file=$(command -v $p)
	cp -aL $file $to/bin/$p
	for lib in $(ldd $file | grep -o '/[^ ]*'); do
		real=/usr/${lib#/usr/}
		mkdir -p $to/$(dirname ${real#/usr/})
		cp -aL $lib $to/${real#/usr/}
	done
done`

// takeAll tries, as root of a sandbox, all that could reveal a secret of the host.
const takeAll = `cd /usr/share
for f in key late replaced private/key; do
	cat $f; cp $f /tmp/copy && cat /tmp/copy; ln $f link && cat link
	chmod 644 $f && cat $f; mv $f moved && cat moved
done
chmod 755 private; cat private/*; mv private elsewhere; cat elsewhere/*
cat open`

// TestGuarded: a host file that becomes secret is hidden at once. A running sandbox, a
// waiting one of the pool, and the next to start do not see its content. That holds even if
// the sandbox has looked the file up before, or if the server's own user owns it.
func TestGuarded(t *testing.T) {
	if os.Geteuid() != 0 {
		return // an ordinary user can't show a sandbox another /usr
	}
	users := []string{"root"}
	if name := os.Getenv("COVE_TEST_USER"); name != "" {
		users = append(users, name)
	} else {
		need.Missing(t, "COVE_TEST_USER names no ordinary user", "make one as .ci/run does, and set COVE_TEST_USER to its name")
	}
	for _, name := range users {
		t.Run(name, func(t *testing.T) { testGuarded(t, name) })
	}
}

func testGuarded(t *testing.T, name string) {
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	dir := t.TempDir()
	usr, bin, own := filepath.Join(dir, "usr"), filepath.Join(dir, "bin"), filepath.Join(dir, "own")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(errors.Join(err1, err2, os.Mkdir(own, 0o755), os.Chown(own, uid, gid)))
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		check(os.Chmod(parent, 0o755))
	}
	for _, args := range [][]string{{"cp", "-r", e2e.BinDir, bin}, {"sh", "-ec", smallUsr, "sh", usr}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args[0], err, out)
		}
	}
	share := func(name string) string { return filepath.Join(usr, "share", name) }
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		check(errors.Join(os.WriteFile(share(name), []byte(text), 0o600), os.Chmod(share(name), mode), os.Chown(share(name), uid, gid)))
	}
	names := []string{"key", "replaced", "private/key", "open"}
	for _, name := range names {
		put(name, "known to all\n", 0o644)
	}
	check(os.Chown(share("private"), uid, gid))

	env := append(os.Environ(), "HOME="+own, "USER="+name, "TMPDIR="+own, "COVE_DATA="+filepath.Join(own, "data"), "PATH="+bin+":"+os.Getenv("PATH"))
	try := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(bin, "cove"), args...)
		cmd.Env, cmd.Dir = env, own
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("cove %q: %v: %s", args, err, out)
		}
		return out
	}
	server := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$1" /usr && exec setpriv --reuid=$2 --regid=$3 --init-groups cove serve --addr 127.0.0.1:0 --pool 1`,
		"sh", usr, account.Uid, account.Gid)
	server.Env, server.Dir = env, own
	log, err := os.Create(filepath.Join(dir, "serve.log"))
	check(err)
	defer log.Close()
	server.Stdout, server.Stderr = log, log
	check(server.Start())
	t.Cleanup(func() {
		for _, s := range []string{"a", "b", "c"} {
			_, _ = try("rm", s) // of those that are there
		}
		if err := errors.Join(server.Process.Signal(syscall.SIGTERM), server.Wait()); err != nil {
			t.Errorf("end the server: %v", err)
		}
	})
	ready := func() {
		t.Helper()
		e2e.Await(t, "the server and its pool", func() bool {
			out, _ := try("doctor")
			return strings.Contains(out, "of its pool, 1 of 1 are ready")
		})
	}
	ready()
	run("create", "a")
	looked := run("exec", "-s", "a", "--user", "root", "sh", "-c", "ls -l /usr/share; cat /usr/share/open")
	for _, name := range names {
		if top, _, _ := strings.Cut(name, "/"); !strings.Contains(looked, top) {
			t.Errorf("%s is not there while all may read it:\n%s", name, looked)
		}
	}
	ready() // once more: the pool has another one

	for _, name := range []string{"key", "private/key"} {
		put(name, "tell-nobody\n", 0o644)
	}
	put("late", "tell-nobody\n", 0o600)
	put("new", "tell-nobody\n", 0o600)
	check(errors.Join(os.Chmod(share("key"), 0o600), os.Chmod(share("private"), 0o700), os.Rename(share("new"), share("replaced"))))
	take := func(when, sprite string) {
		t.Helper()
		out := run("exec", "-s", sprite, "--user", "root", "sh", "-c", takeAll)
		if strings.Contains(out, "tell-nobody") || !strings.Contains(out, "known to all") {
			t.Errorf("%s has the host's secrets, or nothing at all:\n%s", when, out)
		}
	}
	take("a sandbox that ran", "a")
	run("create", "b")
	take("one of the pool", "b")
	run("rm", "b")
	run("create", "--memory", "300M", "c")
	take("one that starts", "c")
}
