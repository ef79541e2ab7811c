package leakcheck

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cove-dev/cove/internal/test/need"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// TestMain is also the child process that some tests leak on purpose, under a name of
// cove's. The child prints that it runs, and then waits for a byte or the end of its
// standard input.
func TestMain(m *testing.M) {
	if os.Getenv("LEAKCHECK_TEST_CHILD") == "1" {
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// leakProcess starts a child. It returns the child's process number, and a function that
// ends it.
func leakProcess(t *testing.T, argv0 string, flags uintptr) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{argv0, "serve"}
	cmd.Env = append(os.Environ(), "LEAKCHECK_TEST_CHILD=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	return cmd.Process.Pid, end
}

func take(t *testing.T, files ...string) Snapshot {
	t.Helper()
	s, err := Take(files...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// find returns the thing of a kind whose name is the prefix or begins with it.
func find(things []Thing, kind Kind, prefix string) (Thing, bool) {
	for _, t := range things {
		if t.Kind == kind && strings.HasPrefix(t.Name, prefix) {
			return t, true
		}
	}
	return Thing{}, false
}

// checkLeak makes a leak, checks that it is named, ends it, and checks that it is gone.
// Other programs may start and end things meanwhile, even of the same name: the kernel
// reuses the number of an ended namespace.
func checkLeak(t *testing.T, kind Kind, leak func() (name string, end func()), files ...string) Thing {
	t.Helper()
	var before Snapshot
	var name string
	var end func()
	for try := 0; ; try++ {
		before = take(t, files...)
		name, end = leak()
		if _, used := find(before.Things, kind, name); !used || try == 5 {
			break
		}
		end()
	}
	left := take(t, files...).Since(before)
	thing, ok := find(left, kind, name)
	if !ok {
		end()
		t.Fatalf("a %s %q was leaked and not found; found %v", kind, name, left)
	}
	if err := Error(left); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("the error does not name the leak: %v", err)
	}
	end()
	// Only this leak has to go.
	if again, ok := find(take(t, files...).Since(before), kind, name); ok && again.Detail == thing.Detail {
		t.Errorf("still there after its end: %v", again)
	}
	return thing
}

func TestProcess(t *testing.T) {
	var pid int
	thing := checkLeak(t, Process, func() (string, func()) {
		var end func()
		pid, end = leakProcess(t, "/somewhere/cove", 0)
		return fmtPID(pid), end
	})
	if thing.Detail != "/somewhere/cove serve" {
		t.Errorf("got detail %q, want the command line", thing.Detail)
	}
}

func fmtPID(pid int) string { return process{pid: pid}.dir()[len("/proc/"):] + " since " }

func TestProcessOfAnotherProgram(t *testing.T) {
	before := take(t)
	pid, _ := leakProcess(t, "covetous", 0)
	if thing, ok := find(take(t).Since(before), Process, fmtPID(pid)); ok {
		t.Errorf("found %v, which is none of cove's", thing)
	}
}

func TestNetworkNamespaceOfProcess(t *testing.T) {
	need.Root(t)
	thing := checkLeak(t, Namespace, func() (string, func()) {
		pid, end := leakProcess(t, "sleeper", syscall.CLONE_NEWNET)
		name, err := os.Readlink(process{pid: pid}.dir() + "/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return name, end
	})
	if !strings.Contains(thing.Detail, "sleeper serve") {
		t.Errorf("got detail %q, want the holder's command line", thing.Detail)
	}
}

func TestNetworkNamespaceOpen(t *testing.T) {
	need.Root(t)
	checkLeak(t, Namespace, func() (string, func()) {
		pid, end := leakProcess(t, "sleeper", syscall.CLONE_NEWNET)
		file := process{pid: pid}.dir() + "/ns/net"
		name, err := os.Readlink(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		end() // from here on, only the open file keeps it
		return name, func() { _ = f.Close() }
	})
}

func TestNetworkNamespaceMounted(t *testing.T) {
	need.Root(t)
	target := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mount := func() (name string, end func()) {
		pid, end := leakProcess(t, "sleeper", syscall.CLONE_NEWNET)
		file := process{pid: pid}.dir() + "/ns/net"
		name, err := os.Readlink(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount(file, target, "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		end()
		return name, func() {
			if err := syscall.Unmount(target, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Run("namespace", func(t *testing.T) { checkLeak(t, Namespace, mount) })
	t.Run("mount", func(t *testing.T) {
		checkLeak(t, Mount, func() (string, func()) {
			_, end := mount()
			return target + " #", end
		})
	})
}

func TestCgroup(t *testing.T) {
	need.Root(t)
	tried := 0
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"} {
		var st syscall.Statfs_t
		if err := syscall.Statfs(root, &st); err != nil || (st.Type != 0x63677270 && st.Type != 0x27e0eb) { // cgroup2, cgroup
			continue
		}
		tried++
		for _, name := range []string{"cove-leakchecktest", "other-leakchecktest/cove-below"} {
			t.Run(filepath.Join(root, name), func(t *testing.T) {
				dir := filepath.Join(root, name)
				checkLeak(t, Cgroup, func() (string, func()) {
					if err := os.MkdirAll(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					return dir, func() {
						for ; dir != root; dir = filepath.Dir(dir) {
							if err := syscall.Rmdir(dir); err != nil {
								t.Error(err)
							}
						}
					}
				})
			})
		}
	}
	if tried == 0 {
		t.Fatal("no cgroup hierarchy is mounted below /sys/fs/cgroup")
	}
}

func TestInterface(t *testing.T) {
	need.Root(t)
	const name = "coveleak0"
	var tun *os.File
	checkLeak(t, Interface, func() (string, func()) {
		tun = openTap(t, name)
		return name + " #", func() {
			if err := tun.Close(); err != nil {
				t.Error(err)
			}
			awaitNoInterface(t, name)
		}
	})
}

// openTap makes a tap device that lives as long as the file.
func openTap(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "/dev/net/tun")
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], name)
	request.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		t.Fatal(errno)
	}
	return f
}

func awaitNoInterface(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(lastResort); ; {
		if _, err := net.InterfaceByName(name); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the interface %s does not go away", name)
		}
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "cove-old")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pattern := filepath.Join(dir, "cove-*")
	before := take(t, pattern)
	for _, name := range []string{"cove-new", "another"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, thing := range take(t, pattern).Since(before) {
		if thing.Kind == File {
			got = append(got, thing.Name)
		}
	}
	if len(got) != 1 || got[0] != filepath.Join(dir, "cove-new") {
		t.Errorf("got %q, want cove-new alone", got)
	}
}

func TestLeftWaits(t *testing.T) {
	dir := t.TempDir()
	pattern := filepath.Join(dir, "*")
	before := take(t, pattern)
	file := filepath.Join(dir, "leak")
	leak := func() {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leak()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	left, err := Left(ctx, before)
	if _, ok := find(left, File, file); err != nil || !ok {
		t.Errorf("with no time to wait: got %v, %v, want %s", left, err, file)
	}

	// Other programs on the machine must not keep this test waiting for longer than another
	// look takes.
	for look := 500 * time.Millisecond; ; look *= 6 {
		leak()
		ctx, cancel = context.WithTimeout(t.Context(), lastResort)
		removed := make(chan struct{})
		time.AfterFunc(200*time.Millisecond, func() {
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
			time.AfterFunc(look, cancel)
			close(removed)
		})
		left, err = Left(ctx, before)
		cancel()
		<-removed
		thing, ok := find(left, File, file)
		if err == nil && !ok {
			break
		}
		if err != nil || look > lastResort/2 {
			t.Fatalf("after the leak ended: got %v, %v", thing, err)
		}
	}
}

func TestErrorOfNothing(t *testing.T) {
	if err := Error(nil); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}
