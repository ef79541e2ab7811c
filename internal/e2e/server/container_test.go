package server

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// inContainer runs a server as a container's main process. Its mount namespace gets no
// mounts from outside, and with cgroup v1 it has cgroups of its own. It sees only its own
// part of the memory hierarchy, mounted twice, but the host's whole pids hierarchy.
const inContainer = `set -e
mount --make-rprivate /
if test -d /sys/fs/cgroup/memory; then
	echo $$ >"$1/cgroup.procs"
	mount --bind "$1" /sys/fs/cgroup/memory
	mount --bind /sys/fs/cgroup/memory /sys/fs/cgroup/memory
	echo $$ >"$2/cgroup.procs"
fi
exec cove serve --addr 127.0.0.1:0
`

// TestServerInContainer boots a sprite there, with limits, and moves it to another disk. A
// disk that is unmounted there is held by no process of the sprite's.
func TestServerInContainer(t *testing.T) {
	need.Root(t)
	h := e2e.NewHost(t)
	name := filepath.Base(filepath.Dir(filepath.Dir(h.Data)))
	group, pids := "/sys/fs/cgroup/memory/"+name, "/sys/fs/cgroup/pids/"+name
	v1 := isDir("/sys/fs/cgroup/memory") && isDir("/sys/fs/cgroup/pids")
	if v1 {
		for file, limit := range map[string]string{filepath.Join(group, "memory.limit_in_bytes"): "1073741824", filepath.Join(pids, "pids.max"): "900"} {
			dir := filepath.Dir(file)
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, []byte(limit), 0)); err != nil {
				t.Fatal(err)
			}
			// No cgroup of a sandbox is left below it, nor in a hierarchy where the server does
			// not see its own.
			t.Cleanup(func() { e2e.Await(t, "the cgroup's end", func() bool { return unix.Rmdir(dir) == nil }) })
		}
	}
	usb := filepath.Join(filepath.Dir(h.Home), "usb")
	if err := os.Mkdir(usb, 0o700); err != nil {
		t.Fatal(err)
	}
	serveIn(h, "mount -t tmpfs usb "+usb+"\n"+inContainer, group, pids)

	if v1 {
		if said, code := h.Try("", "cove", "create", "large", "--memory", "2G"); code == 0 || !strings.Contains(said, "the server may use 1024") {
			t.Errorf("a sprite with more memory than the container:\n%s", said)
		}
	}
	h.Run("", "cove", "create", "inner", "--idle", "0", "--memory", "512M")
	h.Sh("inner", "echo kept >kept")
	h.Run("", "cove", "checkpoint", "create", "-s", "inner")
	if got := h.Sh("inner", "cat kept"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if info := h.Run("", "cove", "info", "inner"); v1 && strings.Contains(info, "not enforced") {
		t.Errorf("limits of a container that may write its cgroups:\n%s", info)
	}
	if v1 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", h.SandboxState().PID))
		if err != nil || !strings.Contains(string(text), ":memory:/"+name+"/") || !strings.Contains(string(text), ":pids:/"+name+"/cove-") {
			t.Errorf("the sandbox is not in the container's cgroups: %v\n%s", err, text)
		}
		// A command that starts more processes than the container has does not end the sandbox.
		pid := h.SandboxState().PID
		h.Try("", "cove", "exec", "-s", "inner", "--", "sh", "-c", "for i in $(seq 600); do sleep 2 & done; wait")
		e2e.Await(t, "the end of its processes", func() bool {
			out, code := h.Try("", "cove", "exec", "-s", "inner", "--", "sh", "-c", "pgrep sleep || echo none")
			return code == 0 && strings.HasSuffix(out, "none\n")
		})
		if now := h.SandboxState().PID; now != pid {
			t.Errorf("a sprite that forks without end lost its sandbox: %s", h.Run("", "cove", "info", "inner"))
		}
		// A command that uses all of the container's memory does not end the sandbox
		// either.
		if said, _ := h.Try("", "cove", "update", "inner", "--memory", "1G"); !strings.Contains(said, "Of 1024 MiB of memory it gets 896 MiB") {
			t.Errorf("update says:\n%s", said)
		}
		// The guest says why the command ended, unless the kernel ended it before.
		said, code := h.Try("", "cove", "exec", "-s", "inner", "--", "python3", "-c", `x = b"x" * (2 << 30)`)
		info := h.Run("", "cove", "info", "inner")
		if now := h.SandboxState().PID; now != pid || code == 0 || said != "" && !strings.Contains(said, "memory was used up") || !strings.Contains(info, "1024 MiB; it gets 896 MiB") {
			t.Errorf("a sprite that uses all memory: %d, sandbox %d, was %d\n%s\n%s", code, now, pid, said, info)
		}
	}
	for _, pid := range h.Shims() {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
		if err != nil || strings.Contains(string(text), usb) {
			t.Errorf("the shim holds the disk that it does not need: %v\n%s", err, text)
		}
	}
}

// serveIn starts a server by a script ($1 and so on are its arguments) in a mount namespace of its own.
func serveIn(h *e2e.Host, script string, args ...string) {
	t := h.T
	t.Helper()
	cmd := h.Command("", "unshare", "-m", "sh", "-c", script, "sh")
	cmd.Args = append(cmd.Args, args...)
	cmd.Path, _ = exec.LookPath("unshare")
	log, err := os.Create(filepath.Join(h.Data, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { // before the cgroup's
		if err := e2e.EndServer(h.Bin, h.Data, h.Home); err != nil {
			t.Errorf("end the server: %v", err)
		}
		<-ended
	})
	e2e.Await(t, "the server", func() bool { pid, err := e2e.ServerPID(h.Data); return err == nil && pid == cmd.Process.Pid })
}

// TestContainerOutOfMemory: three sprites use up their container's memory, but none its own.
// A process of the largest sprite is ended, and its caller is told; the others stay.
func TestContainerOutOfMemory(t *testing.T) {
	h := e2e.NewRootHost(t)
	if !isDir("/sys/fs/cgroup/memory") {
		return // a container of v2 is a cgroup namespace's own
	}
	group := "/sys/fs/cgroup/memory/" + filepath.Base(filepath.Dir(filepath.Dir(h.Data)))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e2e.Await(t, "the cgroup's end", func() bool { return unix.Rmdir(group) == nil }) })
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("1073741824"), 0); err != nil {
		t.Fatal(err)
	}
	serveIn(h, `echo $$ >"$1/cgroup.procs"; exec cove serve --addr 127.0.0.1:0 --idle 0`, group)
	const hold = `import sys, time
held = []
for i in range(int(sys.argv[1]) // 10):
    held.append(b"x" * (10 << 20)); time.sleep(0.02)
open("/tmp/held", "w").close()
time.sleep(100000)`
	for sprite, size := range map[string]string{"small": "80", "medium": "250"} {
		h.Run("", "cove", "create", sprite)
		h.Run("", "cove", "exec", "-s", sprite, "--detach", "--", "python3", "-c", hold, size)
		h.Sh(sprite, "until test -e /tmp/held; do sleep 0.1; done")
	}
	h.Run("", "cove", "create", "large")
	said, code := h.Try("", "cove", "exec", "-s", "large", "--", "python3", "-c", hold, "700")
	if code != 137 || !strings.Contains(said, "memory was used up") {
		t.Errorf("the command of the largest sprite: %d, %s", code, said)
	}
	if info := h.Run("", "cove", "info", "large"); !strings.Contains(info, "out of memory") || strings.Contains(info, "last error") {
		t.Errorf("the largest sprite:\n%s", info)
	}
	for _, sprite := range []string{"small", "medium"} {
		if out := h.Sh(sprite, "pgrep -f time[.]sleep >/dev/null && echo runs"); out != "runs\n" {
			t.Errorf("%s: %q\n%s", sprite, out, h.Run("", "cove", "info", sprite))
		}
	}
	if out, _ := h.Try("", "cove", "doctor"); !strings.Contains(out, "the largest process of the largest sprite is killed") {
		t.Errorf("doctor says:\n%s", out)
	}
}

// TestWakeInASmallerContainer: a saved memory that does not fit into the container's limit is
// kept, and the error says why. In a larger container the program goes on.
func TestWakeInASmallerContainer(t *testing.T) {
	h := e2e.NewRootHost(t)
	if !isDir("/sys/fs/cgroup/memory") {
		return // as in TestContainerOutOfMemory
	}
	serve := func(name, limit string) {
		t.Helper()
		group := "/sys/fs/cgroup/memory/" + filepath.Base(filepath.Dir(filepath.Dir(h.Data))) + name
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			e2e.Await(t, "the cgroup's end", func() bool { return !isDir(group) || unix.Rmdir(group) == nil })
		})
		if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte(limit), 0); err != nil {
			t.Fatal(err)
		}
		serveIn(h, `echo $$ >"$1/cgroup.procs"; exec cove serve --addr 127.0.0.1:0 --idle 0`, group)
	}
	serve("-large", "1073741824")
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "-c", `import os, time
held = os.urandom(300 << 20)
open("/tmp/held", "w").close()
time.sleep(100000)`)
	h.Sh("paint", "until test -e /tmp/held; do sleep 0.1; done")
	h.Run("", "cove", "suspend", "paint")
	h.EndServer(syscall.SIGTERM)
	serve("-small", "268435456")
	said, code := h.Try("", "cove", "exec", "-s", "paint", "--", "true")
	if code == 0 || !strings.Contains(said, "its memory is kept") || !strings.Contains(said, "out of memory: ") {
		t.Errorf("in the smaller one: %d, %s", code, said)
	}
	h.EndServer(syscall.SIGTERM)
	serve("-large", "1073741824")
	if out := h.Sh("paint", "pgrep -f time[.]sleep >/dev/null && echo runs"); out != "runs\n" {
		t.Errorf("in the larger one: %q\n%s", out, h.Run("", "cove", "info", "paint"))
	}
}

// TestServerWithPartOfACPU: a container may have half a processor, or one and a half. Sprites
// start there with and without a limit of their own, even one above the container's. The
// limits of a running sprite can be changed.
func TestServerWithPartOfACPU(t *testing.T) {
	if !isDir("/sys/fs/cgroup/cpu") || !isDir("/sys/fs/cgroup/memory") {
		return // v2 allows a limit above the parent's
	}
	h := e2e.NewRootHost(t)
	name := filepath.Base(filepath.Dir(filepath.Dir(h.Data)))
	dirs := []string{"/sys/fs/cgroup/cpu/" + name, "/sys/fs/cgroup/memory/" + name}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e2e.Await(t, "the cgroup's end", func() bool { return unix.Rmdir(dir) == nil }) })
	}
	quota := filepath.Join(dirs[0], "cpu.cfs_quota_us")
	if err := errors.Join(os.WriteFile(quota, []byte("150000"), 0), os.WriteFile(filepath.Join(dirs[1], "memory.limit_in_bytes"), []byte("1073741824"), 0)); err != nil {
		t.Fatal(err)
	}
	serveIn(h, `echo $$ >"$1/cgroup.procs"; echo $$ >"$2/cgroup.procs"; exec cove serve --addr 127.0.0.1:0`, dirs...)
	for sprite, args := range map[string][]string{"plain": nil, "one": {"--cpus", "1"}, "two": {"--cpus", "2"}} {
		h.Run("", "cove", append([]string{"create", sprite}, args...)...)
		h.Sh(sprite, "true")
	}
	h.Run("", "cove", "update", "one", "--cpus", "2")
	for _, sprite := range []string{"plain", "one", "two"} { // else the kernel refuses a lower limit above them
		h.Run("", "cove", "suspend", sprite)
	}
	e2e.Await(t, "the end of cgroups with more than that", func() bool { return os.WriteFile(quota, []byte("50000"), 0) == nil })
	for _, sprite := range []string{"plain", "one", "two"} {
		if got := h.Sh(sprite, "echo runs"); got != "runs\n" {
			t.Errorf("%s at half a processor: got %q", sprite, got)
		}
		h.Run("", "cove", "restart", sprite)
	}
	if got := h.Sh("plain", "nproc"); got != "1\n" {
		t.Errorf("half a processor: nproc says %q", got)
	}
	if out, _ := h.Try("", "cove", "doctor"); !strings.Contains(out, "and 0.5 CPUs (a limit") {
		t.Errorf("doctor says:\n%s", out)
	}
}

// withoutCpuset runs a server with cgroups v1 as some containers have them: three
// hierarchies, and no cpuset.
const withoutCpuset = `set -e
mount --make-rprivate /
mount -t tmpfs cgroup "$1"
for c in memory cpu pids; do
	mkdir "$1/$c"
	mount --bind /sys/fs/cgroup/$c "$1/$c"
done
umount -R -l /sys/fs/cgroup
mount --move "$1" /sys/fs/cgroup
mount -o remount,ro /sys/fs/cgroup
exec cove serve --addr 127.0.0.1:0
`

// TestServerWithoutCpuset boots a sprite there, with limits, and moves it to another disk.
func TestServerWithoutCpuset(t *testing.T) {
	if os.Geteuid() != 0 || !isDir("/sys/fs/cgroup/memory") {
		return // only root, and only with cgroup v1
	}
	h := e2e.NewHost(t)
	at := filepath.Join(filepath.Dir(h.Home), "cgroup")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	serveIn(h, withoutCpuset, at)
	h.Run("", "cove", "create", "inner", "--idle", "0", "--memory", "512M", "--cpus", "1")
	h.Sh("inner", "echo kept >kept")
	h.Run("", "cove", "checkpoint", "create", "-s", "inner")
	if got := h.Sh("inner", "cat kept"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if info := h.Run("", "cove", "info", "inner"); strings.Contains(info, "not enforced") {
		t.Errorf("limits of a container that may write its cgroups:\n%s", info)
	}
}

// readOnlyCgroups makes all cgroups read-only.
const readOnlyCgroups = `set -e
mount --make-rprivate /
for dir in /sys/fs/cgroup /sys/fs/cgroup/*; do
	if mountpoint -q "$dir"; then mount -o remount,ro,bind "$dir"; fi
done
`

// TestReadOnlyCgroups: a person who limits a sprite there is told that nothing enforces the
// limit. Doctor does not advise root to run the server as root.
func TestReadOnlyCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	h := e2e.NewHost(t)
	serveIn(h, readOnlyCgroups+"exec cove serve --addr 127.0.0.1:0")
	if out, _ := h.Try("", "cove", "create", "inner", "--memory", "512M"); !strings.Contains(out, "The server's machine does not enforce its limits: memory: the cgroups at /sys/fs/cgroup are mounted read-only") {
		t.Errorf("create says:\n%s", out)
	}
	if out, _ := h.Try("", "cove", "create", "free"); strings.Contains(out, "enforce") {
		t.Errorf("create without a limit says:\n%s", out)
	}
	if got := h.Sh("inner", "echo runs"); got != "runs\n" {
		t.Errorf("got %q", got)
	}
	out, _ := h.Try("", "unshare", "-m", "sh", "-c", readOnlyCgroups+"exec cove doctor")
	if !strings.Contains(out, "mounted read-only, so that the host's limits are not enforced") || !strings.Contains(out, "mount -o remount,rw,bind /sys/fs/cgroup") || strings.Contains(out, "run the server as root") {
		t.Errorf("doctor says:\n%s", out)
	}
}

// overlayUsr makes /usr an overlay, as all of a container's own files are.
const overlayUsr = `set -e
mount --make-rprivate /
mkdir -p "$1/upper" "$1/work"
mount -t overlay container -o "lowerdir=/usr,upperdir=$1/upper,workdir=$1/work" /usr
`

// TestServerOnOverlay: sandboxes run if /usr is an overlay itself, and a secret is hidden from
// those that start later. The server's log and doctor say that a running sandbox can still
// read it. On the machine itself doctor says the opposite.
func TestServerOnOverlay(t *testing.T) {
	h := e2e.NewRootHost(t)
	at := filepath.Join(filepath.Dir(h.Home), "container")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	serveIn(h, overlayUsr+"exec cove serve --addr 127.0.0.1:0", at)
	h.Run("", "cove", "create", "before")
	h.Sh("before", "true")
	secret := fmt.Sprintf("/proc/%d/root/usr/share/tell-nobody", h.PID())
	if err := os.WriteFile(secret, []byte("tell-nobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "create", "after")
	if out, code := h.Try("", "cove", "exec", "-s", "after", "--user", "root", "--", "cat", "/usr/share/tell-nobody"); code == 0 {
		t.Errorf("a sandbox that starts later has the secret: %s", out)
	}
	log, err := os.ReadFile(filepath.Join(h.Data, "serve.log"))
	if err != nil || !strings.Contains(string(log), "stays readable to the sandboxes that run") || !strings.Contains(string(log), "folders=/usr") {
		t.Errorf("the server's log: %v\n%s", err, log)
	}
	row := func(out string) string {
		_, out, _ = strings.Cut(out, "new secrets")
		out, _, _ = strings.Cut(out, "\n")
		return strings.TrimSpace(out)
	}
	out, _ := h.Try("", "unshare", "-m", "sh", "-c", overlayUsr+"exec cove doctor", "sh", t.TempDir())
	if got := row(out); !strings.HasPrefix(got, "/usr: an overlay itself") || !strings.Contains(out, "run the server as an ordinary user") {
		t.Errorf("doctor in a container says:\n%s", out)
	}
	out, _ = h.Try("", "unshare", "-m", "sh", "-c", overlayUsr+`exec cove doctor --data /usr/cove`, "sh", t.TempDir())
	if !strings.Contains(out, "/usr is on overlayfs, as a container's own files are") || !strings.Contains(out, "put the data folder on a volume (docker run -v cove:/usr/cove)") || strings.Contains(out, "modprobe overlay") {
		t.Errorf("doctor of a data folder on a container's own files says:\n%s", out)
	}
	out, _ = h.Try("", "cove", "doctor")
	if got := row(out); len(base.Files{}.Unguarded()) == 0 && !strings.Contains(got, "is refused at once") {
		t.Errorf("doctor on the machine says:\n%s", out)
	}
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// TestDoctorOnFullDisk: doctor names the full disk, and no other cause.
func TestDoctorOnFullDisk(t *testing.T) {
	h := e2e.NewRootHost(t)
	out, _ := h.Try("", "unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=40k full "$1"; head -c 1M /dev/zero >"$1/full"; exec cove doctor --data "$1"`, "sh", t.TempDir())
	if !strings.Contains(out, "free room on the data folder's disk") && !strings.Contains(out, "can't be tried: the disk of") || strings.Contains(out, "modprobe") {
		t.Errorf("doctor says:\n%s", out)
	}
}

// TestServerIsInit: if the server is a container's first process, its end ends all others.
// Before that it puts the memory of all sprites on disk. If it was killed, the next command
// says that the memory is gone. Commands in the container find the server, and no ended
// process stays there as a zombie.
func TestServerIsInit(t *testing.T) {
	h := e2e.NewRootHost(t)
	begin := func() (cmd *exec.Cmd, init string) {
		t.Helper()
		cmd = h.Command("", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", filepath.Join(h.Bin, "cove"), "serve", "--addr", "127.0.0.1:0")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		e2e.Await(t, "the server", func() bool {
			out, err := exec.Command("pgrep", "--parent", strconv.Itoa(cmd.Process.Pid)).Output()
			init = strings.TrimSpace(string(out))
			if err != nil || init == "" {
				return false
			}
			_, code := h.Try("", "nsenter", "--target", init, "--mount", "--pid", "cove", "server", "status")
			return code == 0
		})
		return cmd, init
	}
	beat := []string{"cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000"}
	beats := []string{"exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done; kill -0 $(cat ~/pid)"}

	server, init := begin()
	inside := []string{"--target", init, "--mount", "--pid"}
	h.Run("", "nsenter", append(inside, "cove", "create", "paint")...)
	h.Run("", "nsenter", append(inside, beat...)...)
	h.Run("", "nsenter", append(append(inside, "cove"), beats...)...)
	orphan := strings.TrimSpace(h.Run("", "nsenter", append(inside, "sh", "-c", "sleep 100000 >/dev/null 2>&1 & echo $!")...))
	h.Run("", "nsenter", append(inside, "kill", "-KILL", orphan)...)
	e2e.Await(t, "the end of a process without a parent, which the first one takes in", func() bool {
		_, code := h.Try("", "nsenter", append(inside, "test", "!", "-e", "/proc/"+orphan)...)
		return code == 0
	})
	said, code := h.Try("", "nsenter", append(inside, "cove", "server", "restart")...)
	if code != 1 || !strings.Contains(said, "docker restart CONTAINER") {
		t.Errorf("cove server restart in the container: %d, %s", code, said)
	}
	h.Run("", "kill", "-TERM", init)
	_ = server.Wait() // unshare's code is its child's
	if out, code := h.Try("", "cove", beats...); code != 0 || strings.Contains(out, "began anew") {
		t.Fatalf("after the container's end: %d, %s", code, out)
	}

	h.Run("", "cove", "server", "stop")
	server, init = begin() // it takes up another server's sandbox, which does not end with it
	h.Run("", "nsenter", "--target", init, "--mount", "--pid", "cove", "suspend", "paint")
	h.Run("", "nsenter", "--target", init, "--mount", "--pid", "cove", "exec", "-s", "paint", "true")
	h.Run("", "kill", "-KILL", init)
	_ = server.Wait() // its child was killed
	out, code := h.Try("", "cove", "exec", "-s", "paint", "true")
	if code != 0 || !strings.Contains(out, "the sprite began anew: its sandbox ended while no server was running") {
		t.Errorf("the first command after the container was killed: %d, %s", code, out)
	}
	if out, code := h.Try("", "cove", "exec", "-s", "paint", "true"); code != 0 || out != "" {
		t.Errorf("the second one: %d, %s", code, out)
	}
	if out := h.Run("", "cove", "info", "-s", "paint"); !strings.Contains(out, "it began anew: its sandbox ended") {
		t.Errorf("cove info: %s", out)
	}

	h.Run("", "cove", "server", "stop")
	server, init = begin()
	said, _ = h.Try("", "nsenter", "--target", init, "--mount", "--pid", "cove", "server", "stop")
	if !strings.Contains(said, "the container ends with it, and this command too") {
		t.Errorf("cove server stop in the container: %s", said)
	}
	_ = server.Wait()
}

// belowInit is the first process of a container, as with docker run --init. It starts the
// server, passes TERM on to it, and ends with it.
const belowInit = `trap 'kill -TERM $!' TERM
cove serve --addr 127.0.0.1:0 &
while kill -0 $!; do wait $!; done
`

// newContainer starts a PID namespace with a script as its first process. The arguments
// inside make nsenter enter it; inside[1] is the first process's number here.
func newContainer(h *e2e.Host, script string) (cmd *exec.Cmd, inside []string) {
	h.T.Helper()
	cmd = h.Command("", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script)
	if err := cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	e2e.Await(h.T, "the container", func() bool {
		out, err := exec.Command("pgrep", "--parent", strconv.Itoa(cmd.Process.Pid)).Output()
		init := strings.TrimSpace(string(out))
		inside = []string{"--target", init, "--mount", "--pid"}
		// Until the process runs the script, its /proc is that of this namespace.
		name, nameErr := os.ReadFile("/proc/" + init + "/comm")
		return err == nil && nameErr == nil && strings.TrimSpace(string(name)) != "unshare"
	})
	return cmd, inside
}

// TestServerBelowInit: a server started by a container's first process puts the memory of all
// sprites on disk at its end. A server that another command starts there leaves them running.
func TestServerBelowInit(t *testing.T) {
	h := e2e.NewRootHost(t)
	end := func(cmd *exec.Cmd, inside []string, signal string) {
		t.Helper()
		h.Run("", "kill", signal, inside[1])
		_ = cmd.Wait() // unshare's code is its child's
	}
	container, inside := newContainer(h, belowInit)
	e2e.Await(t, "the server", func() bool {
		_, code := h.Try("", "nsenter", append(inside, "cove", "server", "status")...)
		return code == 0
	})
	h.Run("", "nsenter", append(inside, "cove", "create", "paint")...)
	h.Run("", "nsenter", append(inside, "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", "echo $$ >~/pid; exec sleep 100000")...)
	lives := []string{"cove", "exec", "-s", "paint", "--", "sh", "-c", "until test -s ~/pid; do sleep 0.1; done; kill -0 $(cat ~/pid)"}
	h.Run("", "nsenter", append(inside, lives...)...)
	end(container, inside, "-TERM")

	container, inside = newContainer(h, "sleep 100000 & wait")
	defer end(container, inside, "-KILL")
	if out, code := h.Try("", "nsenter", append(inside, lives...)...); code != 0 || strings.Contains(out, "began anew") {
		t.Fatalf("after the container's end: %d, %s", code, out)
	}
	h.Run("", "nsenter", append(inside, "cove", "server", "stop")...)
	log, err := os.ReadFile(filepath.Join(h.Data, "serve.log"))
	if err != nil || strings.Contains(string(log), "memory goes to disk") {
		t.Errorf("a server that a command started in a container ends with: %v\n%s", err, log)
	}
}

// TestDoctorOfInit: doctor warns of a container whose first process does not reap orphans,
// and not of one that does.
func TestDoctorOfInit(t *testing.T) {
	h := e2e.NewRootHost(t)
	for script, warns := range map[string]bool{"sleep 100000 & wait": false, "exec sleep 100000": true} {
		container, inside := newContainer(h, script)
		// It ends after its parent, which would reap it otherwise.
		orphan := strings.TrimSpace(h.Run("", "nsenter", append(inside, "sh", "-c", "sleep 100000 >/dev/null 2>&1 & echo $!")...))
		h.Run("", "nsenter", append(inside, "kill", orphan)...)
		e2e.Await(t, "the end of a process without a parent", func() bool {
			_, code := h.Try("", "nsenter", append(inside, "sh", "-c", "! test -e /proc/"+orphan+" || grep -q '^State:.Z' /proc/"+orphan+"/status")...)
			return code == 0
		})
		out, _ := h.Try("", "nsenter", append(inside, "cove", "doctor")...)
		if got := strings.Contains(out, "process 1 of this container does not reap orphans"); got != warns {
			t.Errorf("%s: doctor says:\n%s", script, out)
		}
		h.Run("", "kill", "-KILL", inside[1])
		_ = container.Wait() // unshare's code is its child's
	}
}
