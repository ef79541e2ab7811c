package cli

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/sprites"
)

// TestMachineCheck: doctor says which limits of a container sprites have, and warns of one
// that leaves them few processes.
func TestMachineCheck(t *testing.T) {
	c := machineCheck(cgroup.Machine{Memory: 1 << 30, CPUs: 2, Server: cgroup.Limits{Memory: 1 << 30, Processes: 200, ProcessesLeft: 150}})
	if c.Level != levelWarn || !strings.Contains(c.Detail, "of memory (a limit of") || !strings.Contains(c.Detail, "2 CPUs, and 200 processes") || !strings.Contains(c.Fix, "--pids-limit") {
		t.Errorf("a container: got %+v", c)
	}
	c = machineCheck(cgroup.Machine{Memory: 8 << 30, CPUs: 8})
	if c.Level != levelOK || c.Fix != "" || strings.Contains(c.Detail, "limit") {
		t.Errorf("a machine: got %+v", c)
	}
}

// TestTunCheck: sprites have a network even without /dev/net/tun, no matter which user runs the
// server. No fix is for a file that does not exist.
func TestTunCheck(t *testing.T) {
	for _, tt := range []struct {
		err  error
		root bool
		want string
		not  string
	}{
		{unix.ENOENT, true, "modprobe tun", "chmod"},
		{unix.ENOENT, false, "modprobe tun", "chmod"},
		{unix.EPERM, true, "--device /dev/net/tun", "chmod"},
		{unix.EPERM, false, "--device /dev/net/tun", "chmod"},
		{unix.EACCES, false, "sudo chmod 0666 /dev/net/tun", "modprobe"},
	} {
		c := tunCheck(tt.err, tt.root)
		if c.Level != levelWarn || !strings.HasSuffix(c.Detail, "a veth pair is used instead") || !strings.Contains(c.Fix, tt.want) || strings.Contains(c.Fix, tt.not) {
			t.Errorf("%v, root %v: got %+v", tt.err, tt.root, c)
		}
	}
	if c := tunCheck(nil, true); c.Level != levelOK || c.Fix != "" {
		t.Errorf("got %+v", c)
	}
}

// TestOverlayFault: the fix is for the fault, and no text is of the probe's process.
func TestOverlayFault(t *testing.T) {
	exited := exec.Command("false").Run()
	for said, fix := range map[string]string{
		"cove: mount an overlay: no such device":                           "modprobe overlay",
		"cove: mount an overlay: operation not permitted":                  "--privileged",
		"cove: mount an overlay: invalid argument":                         "ext4, XFS or btrfs",
		"cove: write to an overlay: no space left on device\n  hint: free": "free room",
	} {
		c := overlayFault(exited, said)
		if want, _, _ := strings.Cut(strings.TrimPrefix(said, "cove: "), "\n"); c.Level != levelFail || c.Detail != want || !strings.Contains(c.Fix, fix) || strings.Contains(c.Fix, "modprobe") != strings.Contains(fix, "modprobe") {
			t.Errorf("%q: got %+v", said, c)
		}
	}
	if c := overlayFault(unix.EPERM, ""); c.Detail != "operation not permitted" || !strings.Contains(c.Fix, "mounts are not allowed") {
		t.Errorf("got %+v", c)
	}
}

// A user id without an account fails with what to do about it.
func TestSubordinatesWithoutAccount(t *testing.T) {
	checks := subordinates(98765432)
	if len(checks) != 1 || checks[0].Level != levelFail || !strings.Contains(checks[0].Detail, "98765432 has no account") || !strings.Contains(checks[0].Fix, "useradd --uid 98765432") {
		t.Errorf("got %+v", checks)
	}
}

// TestDelegateHint: an ordinary user gets limits in v2 by a delegated cgroup, in v1 not at all.
func TestDelegateHint(t *testing.T) {
	for _, tt := range []struct {
		version string
		systemd bool
		want    string
	}{
		{"v1", true, "run the server as root"},
		{"v2", true, "cove server install; or, without a unit: cove server stop; systemd-run --user --scope -p Delegate=yes cove server start"},
		{"v2", false, "run the server as root, or in a cgroup that belongs to this user, with the controllers memory, cpu, pids"},
	} {
		if got := delegate(tt.version, tt.systemd); got != tt.want {
			t.Errorf("%s, systemd %v: got %q, want %q", tt.version, tt.systemd, got, tt.want)
		}
	}
}

// TestJoinLines: an error of several lines is one of a table's cells.
func TestJoinLines(t *testing.T) {
	if got, want := joinLines("start: exit status 1: one\n  two;\n\nthree"), "start: exit status 1: one; two; three"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var out strings.Builder
	printInfo(&out, sprites.Info{Cove: &sprites.Details{LastError: "one\ntwo"}}, "")
	if !strings.Contains(out.String(), "one; two") {
		t.Errorf("got %s", out.String())
	}
}
