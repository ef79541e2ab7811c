package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// A floor is bare runsc with a sprite's flags, over a disk made just as a sprite's (the
// same base and overlays). None of cove's programs is around it. It is a process of its
// own, this test binary again, because its mounts are in a namespace of their own.
type floor struct {
	dir string
	in  *json.Encoder
	out *json.Decoder
}

// floorCall is one thing to time: a call of runsc, N times, Parallel at once.
type floorCall struct {
	Args     []string // of runsc, after the flags; {} is the number of the call, of two digits
	Argv     []string // if set, the bundle's program
	N        int
	Parallel int
	Stdin    string // files; empty: none
	Stdout   string
}

// floorAnswer has a duration in nanoseconds for each call, in no order.
type floorAnswer struct {
	Took []time.Duration
	Err  string
}

// floorEnv holds the floor's folder, in its own process only.
const floorEnv = "COVE_BENCH_FLOOR"

// floorID names the floor's only container.
const floorID = "ffffffffffffffff"

func startFloor(tb testing.TB) *floor {
	tb.Helper()
	dir := tb.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), floorEnv+"="+dir, "COVE_BIN="+e2e.BinDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	f := &floor{dir: dir, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
	tb.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			tb.Error(err)
		}
	})
	f.run(tb, floorCall{}) // answered once it is ready
	return f
}

// run times a call.
func (f *floor) run(tb testing.TB, call floorCall) []time.Duration {
	tb.Helper()
	var answer floorAnswer
	if err := errors.Join(f.in.Encode(call), f.out.Decode(&answer)); err != nil {
		tb.Fatal(err)
	}
	if answer.Err != "" {
		tb.Fatal(answer.Err)
	}
	return answer.Took
}

// runProgram times a whole sandbox that runs one program.
func (f *floor) runProgram(tb testing.TB, n int, argv ...string) []time.Duration {
	tb.Helper()
	return f.run(tb, floorCall{N: n, Argv: argv, Args: []string{"run", "--bundle=" + filepath.Join(f.dir, "bundle"), floorID}})
}

// keepRunning starts a sandbox that does nothing until the test ends.
func (f *floor) keepRunning(tb testing.TB) {
	tb.Helper()
	f.run(tb, floorCall{N: 1, Argv: []string{"sleep", "100000"}, Args: []string{"run", "--detach", "--bundle=" + filepath.Join(f.dir, "bundle"), floorID}})
	tb.Cleanup(func() { f.run(tb, floorCall{N: 1, Args: []string{"delete", "--force", floorID}}) })
}

// floorMain is the floor's process.
func floorMain(dir string) (err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	files := base.Files{User: base.User{Name: boot.User, UID: boot.UID, GID: boot.GID, Home: boot.Home}}
	b, err := files.Prepare(filepath.Join(dir, "base"))
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layers.Unmount(filepath.Join(dir, "state", "null-netns"))) }()
	for _, m := range append([]string{""}, b.Mounts...) {
		lower := b.Dir
		if m != "" {
			lower = "/" + m
		}
		disk := filepath.Join(dir, "disk", "root"+m)
		o := layers.Overlay{Lowers: []string{lower}, Upper: filepath.Join(disk, "upper"), Work: filepath.Join(disk, "work")}
		if err := o.Create(); err != nil {
			return err
		}
		if err := o.Mount(filepath.Join(root, m)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, layers.Unmount(filepath.Join(root, m))) }()
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var call floorCall
		if err := in.Decode(&call); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		took, err := call.time(dir)
		answer := floorAnswer{Took: took}
		if err != nil {
			answer.Err = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

// time makes the calls.
func (c floorCall) time(dir string) ([]time.Duration, error) {
	if c.Argv != nil {
		if err := writeFloorBundle(dir, c.Argv); err != nil {
			return nil, err
		}
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration // guarded by mu
		errs []error         // guarded by mu
	)
	slots := make(chan struct{}, max(c.Parallel, 1))
	for n := range c.N {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d, err := c.once(dir, n)
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, d), append(errs, err)
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

func (c floorCall) once(dir string, n int) (time.Duration, error) {
	args := []string{
		"--root=" + filepath.Join(dir, "state"), "--log=" + filepath.Join(dir, "runsc.log"), "--platform=systrap", "--network=sandbox", "--overlay2=none",
		"--allow-connected-on-save", "--allow-suid", "--in-sandbox-cgroup=v2", "--cpu-num-from-quota",
	}
	for _, arg := range c.Args {
		args = append(args, strings.ReplaceAll(arg, "{}", fmt.Sprintf("%02d", n)))
	}
	cmd := exec.Command(filepath.Join(e2e.BinDir, "cove-runsc"), args...)
	// Files, not pipes: a detached sandbox would hold a pipe open.
	said, err := os.CreateTemp(dir, "said-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(said.Name())
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if c.Stdin != "" {
		f, err := os.Open(c.Stdin)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		cmd.Stdin = f
	}
	if c.Stdout != "" {
		f, err := os.Create(c.Stdout)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		cmd.Stdout = f
	}
	start := time.Now()
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return 0, fmt.Errorf("runsc %v: %w: %s", c.Args, err, text)
	}
	return time.Since(start), nil
}

func writeFloorBundle(dir string, argv []string) error {
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_ADMIN"}
	spec := specs.Spec{
		Version: "1.1.0", Root: &specs.Root{Path: filepath.Join(dir, "rootfs")},
		Process: &specs.Process{
			Cwd: "/", Args: argv, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"rw"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/cove-" + floorID,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bundle"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bundle", "config.json"), data, 0o600)
}
