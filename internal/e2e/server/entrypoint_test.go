package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// belowShell is an entrypoint's script that starts the server, and goes on after the
// server's end.
const belowShell = `cove serve --addr 127.0.0.1:0 --suspend-at-end &
sleep 100000 &
wait
`

// TestServerBelowShell: a shell that is a container's first process has started the server.
// cove server stop says what the server's end means there. Doctor warns of a script that does
// not pass TERM on. A restart is refused, because the container may end with it.
func TestServerBelowShell(t *testing.T) {
	h := e2e.NewRootHost(t)
	begin := func(script string) (container *exec.Cmd, inside []string) {
		t.Helper()
		container, inside = newContainer(h, script)
		e2e.Await(t, "the server", func() bool {
			_, code := h.Try("", "nsenter", append(inside, "cove", "server", "status")...)
			return code == 0
		})
		return container, inside
	}
	container, inside := begin(belowShell)
	h.Run("", "nsenter", append(inside, "cove", "create", "paint")...)
	h.Run("", "nsenter", append(inside, "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000")...)
	lives := slices.Concat(inside, []string{"cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done; kill -0 $(cat ~/pid)"})
	h.Run("", "nsenter", lives...)
	const noTerm = "has started the server and does not pass TERM on"
	if out, _ := h.Try("", "nsenter", append(inside, "cove", "doctor")...); !strings.Contains(out, noTerm) || !strings.Contains(out, "write exec before cove serve") {
		t.Errorf("doctor: %s", out)
	}
	if out, code := h.Try("", "nsenter", append(inside, "cove", "server", "restart")...); code != 1 || !strings.Contains(out, "was started by this container's first process (sh)") || !strings.Contains(out, "docker restart CONTAINER") {
		t.Errorf("restart: %d, %s", code, out)
	}
	out, code := h.Try("", "nsenter", append(inside, "cove", "server", "stop")...)
	if code != 0 || !strings.Contains(out, "If that process ends after the server, the container ends") || !strings.Contains(out, "Sprites and jobs sleep, and go on when it starts again.") || strings.Contains(out, "jobs go on.") {
		t.Errorf("stop: %d, %s", code, out)
	}
	if out, code := h.Try("", "nsenter", lives...); code != 0 || strings.Contains(out, "began anew") {
		t.Errorf("with the next server: %d, %s", code, out)
	}
	h.Run("", "nsenter", append(inside, "cove", "rm", "--force", "paint")...)
	if out := h.Run("", "nsenter", append(inside, "cove", "server", "stop")...); strings.Contains(out, "first process") { // this one a command has started
		t.Errorf("stop: %s", out)
	}
	h.Run("", "kill", "-KILL", inside[1])
	_ = container.Wait() // unshare's code is its child's

	container, inside = begin(belowInit)
	if out, _ := h.Try("", "nsenter", append(inside, "cove", "doctor")...); strings.Contains(out, noTerm) {
		t.Errorf("doctor of a script that passes TERM on: %s", out)
	}
	h.Run("", "kill", "-TERM", inside[1])
	_ = container.Wait() // likewise
}

// TestDoctorReadOnly: doctor says why a data folder can't be written, and what to do.
func TestDoctorReadOnly(t *testing.T) {
	h := e2e.NewRootHost(t)
	out, code := h.Try("", "unshare", "-m", "sh", "-c", `mount -t tmpfs full "$1"; mkdir "$1/cove"; mount -o remount,ro "$1"; exec cove doctor --data "$1/cove"`, "sh", t.TempDir())
	if code != 1 || !strings.Contains(out, "is on a file system that is mounted read-only") || !strings.Contains(out, "fix: make it writable (mount -o remount,rw") || strings.Contains(out, "mkdir ") {
		t.Errorf("doctor: %d\n%s", code, out)
	}
}

// TestNoNewPrivileges: an ordinary user can't run a server in a process that may get no new
// privileges, as in a container with no-new-privileges. Doctor and the start say why, and what
// to do.
func TestNoNewPrivileges(t *testing.T) {
	name := os.Getenv("COVE_TEST_USER")
	if os.Geteuid() != 0 || name == "" {
		return // TestOrdinaryUser tells
	}
	h := e2e.NewHost(t)
	dir, err := os.MkdirTemp("", "cove-new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, args := range [][]string{{"chmod", "755", dir}, {"cp", "-r", h.Bin, filepath.Join(dir, "bin")}, {"mkdir", filepath.Join(dir, "home")}, {"chown", name, filepath.Join(dir, "home")}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	as := func(args ...string) (string, int) {
		t.Helper()
		return h.Try("", "setpriv", append([]string{"--no-new-privs", "--reuid", name, "--regid", name, "--init-groups", "env", "-C", filepath.Join(dir, "home"), "HOME=" + filepath.Join(dir, "home"), "COVE_DATA=" + filepath.Join(dir, "home", "data"), filepath.Join(dir, "bin", "cove")}, args...)...)
	}
	const without = "start the container without --security-opt no-new-privileges"
	if out, code := as("doctor"); code != 1 || !strings.Contains(out, "fix: "+without) {
		t.Errorf("doctor: %d\n%s", code, out)
	}
	if out, code := as("create", "paint"); code != 1 || !strings.Contains(out, "this process may get no new privileges") || !strings.Contains(out, without) {
		t.Errorf("create: %d\n%s", code, out)
	}
	if out, _ := h.Try("", "cove", "doctor"); strings.Contains(out, without) {
		t.Errorf("doctor of root: %s", out)
	}
}
