package server

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// asInit makes a machine in its own namespaces, with systemd as init. It has this machine's
// files, changed only in memory, and a lasting folder for /var/lib. Of the units of this
// machine's packages only the journal is left: the others would act on this machine.
// Arguments: $1 a folder; $2 the programs; $3 this process's cgroups, a line each; $4
// /var/lib.
const asInit = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for dir in run tmp; do mount -t tmpfs tmpfs "$root/$dir"; done
mount --bind "$4" "$root/var/lib"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
echo "$3" | while IFS=: read -r _ names _; do
	case $names in
	"") if test -f /sys/fs/cgroup/cgroup.controllers; then mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"; fi; continue ;;
	name=*) as=none,$names dir=${names#name=} ;;
	*) as=$names dir=$names ;;
	esac
	mkdir "$root/sys/fs/cgroup/$dir"
	mount -t cgroup -o "$as" cgroup "$root/sys/fs/cgroup/$dir"
done
mkdir -p "$root/opt/cove" "$root/old"
mount --bind "$2" "$root/opt/cove"
rm -f "$root/etc/fstab"
find "$root/etc/systemd" "$root/usr/lib/systemd" -path '*.target.wants/*' ! -name 'systemd-journald*' -delete
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target --log-target=console
`

// A machine is a machine that systemd has booted.
type machine struct {
	t    *testing.T
	cmd  *exec.Cmd // its namespaces; args are those of its beginning
	args []string
	said bytes.Buffer
	init string // its systemd's id here
}

// newMachine boots a machine in cgroups of its own, and ends it after the test.
func newMachine(t *testing.T) *machine {
	t.Helper()
	h := e2e.NewRootHost(t)
	dir := filepath.Join(filepath.Dir(h.Home), "machine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := "cove-machine-" + filepath.Base(filepath.Dir(filepath.Dir(h.Home)))
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, at, _ := strings.Cut(rest, ":")
		mount := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(names, "name="))
		if names == "" && isDir("/sys/fs/cgroup/unified") {
			mount = "/sys/fs/cgroup/unified"
		}
		if !isDir(mount) {
			continue
		}
		group := filepath.Join(mount, at, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // v1 does not inherit these
			if text, err := os.ReadFile(filepath.Join(mount, at, file)); err == nil && names != "" {
				if err := os.WriteFile(filepath.Join(group, file), text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		groups = append(groups, group)
	}
	t.Cleanup(func() {
		for _, group := range groups {
			e2e.Await(t, "the end of "+group, func() bool {
				_ = exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
				return !isDir(group)
			})
		}
	})
	join := `for group in $5; do echo $$ >"$group/cgroup.procs"; done
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -c "$6" sh "$1" "$2" "$3" "$4"`
	lib := filepath.Join(filepath.Dir(h.Home), "lib")
	if err := os.Mkdir(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, args: []string{"-c", join, "sh", dir, h.Bin, string(own), lib, strings.Join(groups, " "), asInit}}
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill() // it may have ended
		_ = m.cmd.Wait()
		if t.Failed() {
			t.Logf("systemd:\n%s", m.said.String())
		}
	})
	m.begin()
	return m
}

// begin has the machine boot.
func (m *machine) begin() {
	m.t.Helper()
	m.cmd = exec.Command("sh", m.args...)
	m.cmd.Stdout, m.cmd.Stderr = &m.said, &m.said
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	e2e.Await(m.t, "systemd", func() bool {
		out, err := exec.Command("pgrep", "--parent", strconv.Itoa(m.cmd.Process.Pid), "--exact", "systemd").Output()
		m.init = strings.TrimSpace(string(out))
		return err == nil && m.init != ""
	})
	e2e.Await(m.t, "basic.target", func() bool {
		_, code := m.try("systemctl", "is-active", "basic.target")
		return code == 0
	})
}

// end has the machine shut down.
func (m *machine) end() {
	m.t.Helper()
	if out, code := m.try("systemctl", "poweroff"); code > 0 { // -1: the machine ended before it did
		m.t.Fatalf("systemctl poweroff: %d, %s", code, out)
	}
	_ = m.cmd.Wait() // its code is systemd's
}

// try runs a program there.
func (m *machine) try(args ...string) (string, int) {
	m.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--target", m.init, "--all", "--wdns=/", "env", "-i", "HOME=/root", "PATH=/opt/cove:/usr/sbin:/usr/bin:/sbin:/bin"}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(out), 0
}

// says runs a program there that must succeed and print some text.
func (m *machine) says(want string, args ...string) {
	m.t.Helper()
	if out, code := m.try(args...); code != 0 || !strings.Contains(out, want) {
		m.t.Fatalf("%s: %d, not %q:\n%s", strings.Join(args, " "), code, want, out)
	}
}

// refuses runs a program there that must fail and print some text.
func (m *machine) refuses(want string, args ...string) {
	m.t.Helper()
	if out, code := m.try(args...); code == 0 || !strings.Contains(out, want) {
		m.t.Fatalf("%s: %d, not %q:\n%s", strings.Join(args, " "), code, want, out)
	}
}

// TestServerUnit has a real systemd run the server. cove server install writes its unit, and
// the other commands of cove server use the unit. A killed server is started again, and a
// sprite's program goes on all the while.
func TestServerUnit(t *testing.T) {
	m := newMachine(t)
	m.refuses("is on overlayfs", "cove", "--data", "/srv/cove", "create", "paint")
	m.says("", "cove", "create", "paint") // a server of cove's own is replaced
	m.says("systemd runs the server now", "cove", "server", "install")
	m.says("run by:    systemd, /etc/systemd/system/cove.service", "cove", "server", "status")
	m.says("enabled", "systemctl", "is-enabled", "cove")
	m.says("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000")
	m.says("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done")
	m.says("The server runs at", "cove", "server", "restart")

	// If the settings are such that the next server would refuse them, the running server
	// stays.
	m.says("", "sh", "-c", `f=$(cove server status --json | sed -n 's/.*"settings": "\(.*\)".*/\1/p'); cp "$f" /tmp/was; echo 'colour = "red"' >>"$f"`)
	m.refuses("the server was left as it is, since the next one would not start", "cove", "server", "restart")
	m.says("active", "systemctl", "is-active", "cove")
	m.says("", "sh", "-c", `cp /tmp/was "$(cove server status --json | sed -n 's/.*"settings": "\(.*\)".*/\1/p')"`)

	m.says("The server has ended", "cove", "server", "stop")
	m.refuses("inactive", "systemctl", "is-active", "cove")
	m.refuses("start it with: cove server start", "cove", "exec", "-s", "paint", "true")
	m.says("The server runs at", "cove", "server", "start")
	m.says("active", "systemctl", "is-active", "cove")

	m.says("", "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "cove")
	e2e.Await(t, "a server after the one that was killed", func() bool {
		_, code := m.try("cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)")
		return code == 0
	})
	e2e.Await(t, "its line in the journal", func() bool {
		out, _ := m.try("cove", "server", "logs")
		return strings.Count(out, "listening on http://127.0.0.1:7878") >= 4
	})

	m.end() // all sandboxes end, with their memory on disk
	m.begin()
	m.says("systemd runs the server now", "cove", "server", "install") // /etc was in memory
	if out, code := m.try("cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)"); code != 0 || strings.Contains(out, "began anew") {
		t.Fatalf("after the machine's end: %d, %s", code, out)
	}

	m.refuses("runs another server", "cove", "--data", "/var/lib/other", "server", "install")
	m.says("systemd runs the server now", "cove", "server", "install") // once more: as it was
	m.says("Sprites and jobs stay", "cove", "server", "uninstall")
	m.refuses("could not be found", "systemctl", "status", "cove")
	m.refuses("no unit of systemd", "cove", "server", "uninstall")
	m.says("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)") // by a server of cove's own
	m.says("Removed paint", "cove", "rm", "--force", "paint")
	m.says("The server has ended", "cove", "server", "stop")
}

// TestServerUnitOfUser has an ordinary user's own systemd run the user's server.
func TestServerUnitOfUser(t *testing.T) {
	name := os.Getenv("COVE_TEST_USER")
	m := newMachine(t)
	m.says("", "systemd-run", "--unit=person", "--property=Delegate=yes", "--property=User="+name, "--property=RuntimeDirectory=person", "--setenv=XDG_RUNTIME_DIR=/run/person",
		"--setenv=HOME=/tmp/home", "--setenv=PATH=/opt/cove:/usr/bin", "sh", "-c", "mkdir -p ~ && exec /lib/systemd/systemd --user --unit=basic.target")
	person := func(args ...string) []string {
		return append([]string{"setpriv", "--reuid", name, "--regid", name, "--init-groups", "env", "HOME=/tmp/home", "XDG_RUNTIME_DIR=/run/person"}, args...)
	}
	e2e.Await(t, "the user's systemd", func() bool {
		_, code := m.try(person("systemctl", "--user", "is-active", "basic.target")...)
		return code == 0
	})
	m.says("systemd runs the server now", person("cove", "server", "install")...)
	m.says("run by:    systemd, /tmp/home/.config/systemd/user/cove.service", person("cove", "server", "status")...)
	m.says("", person("cove", "create", "paint")...)
	m.says("", person("cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000")...)
	m.says("", person("cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done")...)
	m.says("The server runs at", person("cove", "server", "restart")...)
	m.says("", person("cove", "exec", "-s", "paint", "--", "sh", "-c", "kill -0 $(cat ~/pid)")...)
	m.says("Removed paint", person("cove", "rm", "--force", "paint")...)
	m.says("Sprites and jobs stay", person("cove", "server", "uninstall")...)
	m.refuses("running:   no", person("cove", "server", "status")...)
}
