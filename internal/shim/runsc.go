package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/lib/openfiles"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// runsc calls gVisor's command line for one sandbox.
type runsc struct {
	path      string
	dir       string // the sandbox's folder
	container string
	cgroups   bool
	group     string // the folder of the cgroup that it starts in; empty: it makes one
	paused    bool   // a restored sandbox is paused before any of its programs runs
}

// flags are the flags of every call. Writes go to the host's overlay and not to memory, so
// that a crash does not lose them. Connections survive a checkpoint, and sudo works.
func (r runsc) flags() []string {
	f := []string{
		rootFlag(r.dir),
		"--log=" + filepath.Join(r.dir, "runsc.log"),
		"--platform=" + r.platform(),
		"--network=sandbox",
		"--overlay2=none",
		"--allow-connected-on-save",
		"--allow-suid",
		"--in-sandbox-cgroup=v2",
		"--cpu-num-from-quota",
	}
	f = append(f, kernel.Flags(r.dir)...)
	if !r.cgroups {
		f = append(f, "--ignore-cgroups")
	}
	return f
}

// platform is gVisor's systrap, or cove-runsc's kind of it.
func (r runsc) platform() string {
	if r.paused {
		return "systrap-paused"
	}
	return "systrap"
}

// rootFlag is an argument that all of a sandbox's processes have, and no other's.
func rootFlag(dir string) string { return "--root=" + filepath.Join(dir, "runsc") }

// command makes a call of runsc without pipes of this process. A sandbox inherits the
// standard streams of the call that starts it, and would hold on to the pipes.
func (r runsc) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.path, append(r.flags(), args...)...)
	cmd.Env = runscEnv()
	return cmd
}

// runscEnv is the environment of runsc, which the gofer keeps. It has nothing of the server's
// environment, which may have keys of the user who started the server.
func runscEnv() []string { return []string{"PATH=" + os.Getenv("PATH")} }

// run starts the sandbox of bundle, handing boot to its first process, and
// returns when it runs.
func (r runsc) run(ctx context.Context, bundle string, cfg boot.Config) error {
	data, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	stdin, err := memoryFile("boot", data)
	if err != nil {
		return fmt.Errorf("hand over the boot configuration: %w", err)
	}
	defer stdin.Close()
	return r.startLogged(ctx, stdin, "run", "--detach", "--bundle="+bundle, r.container)
}

// save writes the memory of the paused sandbox to a folder, and leaves it paused. The output
// of runsc is kept in memory: if the disk is full, it can be written nowhere else.
func (r runsc) save(ctx context.Context, image string) error {
	out, err := memoryFile("said", nil)
	if err != nil {
		return err
	}
	defer out.Close()
	return r.start(ctx, nil, out, "checkpoint", "--leave-running", "--image-path="+image, r.container)
}

// restore starts the sandbox of bundle from memory that was saved.
func (r runsc) restore(ctx context.Context, bundle, image string) error {
	err := r.startLogged(ctx, nil, "restore", "--detach", "--bundle="+bundle, "--image-path="+image, r.container)
	if err != nil && ctx.Err() == nil && refusesImage(err.Error()) {
		return unfitError{err}
	}
	return err
}

// refusesImage reports whether the output of runsc says that the sandbox's kernel can't go on
// from an image. A file that the image needs may be another one, say. If the kernel ended, or
// met a limit of the machine, that says nothing of the image.
func refusesImage(said string) bool {
	if !strings.Contains(said, "restoring container ") || strings.Contains(said, "urpc method ") {
		return false
	}
	return !slices.ContainsFunc([]unix.Errno{unix.ENOMEM, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EDQUOT, unix.EIO}, func(e unix.Errno) bool { return strings.Contains(said, e.Error()) })
}

// openLog opens the log for the output of runsc and the guest, which outlives the call. This
// log and runsc's own log are held open, so they are begun anew when they have grown.
func (r runsc) openLog() (*os.File, error) {
	name := filepath.Join(r.dir, "guest.log")
	err := errors.Join(logfile.Trim(name, logfile.DefaultMax), logfile.Trim(filepath.Join(r.dir, "runsc.log"), logfile.DefaultMax))
	if err != nil {
		return nil, fmt.Errorf("start new logs of runsc: %w", err)
	}
	out, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the guest's log: %w", err)
	}
	return out, nil
}

// startLogged is start with the log as output, for a sandbox that goes on writing to it.
func (r runsc) startLogged(ctx context.Context, stdin *os.File, args ...string) error {
	out, err := r.openLog()
	if err != nil {
		return err
	}
	defer out.Close()
	return r.start(ctx, stdin, out, args...)
}

// start makes a call whose children outlive it, so these may not hold pipes of this process.
// The error has the text that the call wrote to out.
func (r runsc) start(ctx context.Context, stdin, out *os.File, args ...string) error {
	before, err := out.Seek(0, 2)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, r.path, append(r.flags(), args...)...)
	cmd.Env = runscEnv()
	if args[0] != "checkpoint" {
		group, err := r.enter(cmd)
		if err != nil {
			return err
		}
		defer group.Close()
	}
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = out, out
	reported := kernel.Size(r.dir)
	if err := cmd.Run(); err != nil {
		said, _ := io.ReadAll(io.NewSectionReader(out, before, logfile.DefaultMax))
		text := lastLines(string(said))
		if strings.Contains(string(said), unix.ENOSPC.Error()) { // the call gives only text, and its end may be stacks
			err = errors.Join(err, unix.ENOSPC)
		}
		err = fmt.Errorf("runsc %s: %w\n%s", args[0], err, text)
		if report := kernel.Report(r.dir, reported); report != "" {
			err = fmt.Errorf("%s: %w", crashed(report), err)
		}
		return err
	}
	return nil
}

// crashed says that a sandbox's kernel did, with the head of its report.
func crashed(report string) string {
	return "the sandbox's kernel (gVisor) crashed: " + report
}

// enter makes a call start in the sandbox's cgroup if runsc itself would not enter one. After
// the start the caller closes the file, which may be nil.
func (r runsc) enter(cmd *exec.Cmd) (*os.File, error) {
	if r.group == "" {
		return nil, nil
	}
	group, err := os.Open(r.group)
	if err != nil {
		return nil, fmt.Errorf("open the sandbox's cgroup: %w", err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	return group, nil
}

// memoryFile returns a file that has data, and no name.
func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// runscState is the part of a container's state, which runsc keeps, that names its processes.
type runscState struct {
	Gofer   int `json:"goferPid"`
	Sandbox struct {
		PID int `json:"pid"`
	} `json:"sandbox"`
}

func (r runsc) state() (st runscState, err error) {
	files, err := filepath.Glob(filepath.Join(r.dir, "runsc", r.container+"*.state"))
	if err != nil || len(files) != 1 {
		return st, fmt.Errorf("find the sandbox's process: %d state files of runsc", len(files))
	}
	data, err := os.ReadFile(files[0])
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	if err != nil {
		return runscState{}, fmt.Errorf("find the sandbox's process: %w", err)
	}
	return st, nil
}

// sandboxProcess returns the number and start time of the running sandbox's
// process, from the state that runsc keeps.
func (r runsc) sandboxProcess() (pid int, startTime uint64, err error) {
	st, err := r.state()
	if err != nil {
		return 0, 0, err
	}
	startTime, err = processStart(st.Sandbox.PID)
	if err != nil {
		return 0, 0, fmt.Errorf("find the sandbox's process: %w", err)
	}
	return st.Sandbox.PID, startTime, nil
}

// delete ends the sandbox and its gofer, if they live, and removes what runsc knows of them.
//
// It is not runsc's delete, which sends SIGKILL to the two numbers in its state, whatever
// processes have them by now. After a restart of the machine, or in another container, these
// are others, and may be this server's or the first one of the container.
func (r runsc) delete() error {
	st, err := r.state()
	if err != nil {
		return r.forget() // there is none, or a part of one
	}
	if err := errors.Join(r.end(st.Sandbox.PID), r.end(st.Gofer)); err != nil {
		return err
	}
	return r.forget()
}

// end ends a process of this container, and returns once it is gone: its mounts and its cgroup
// go with it. It waits for killLimit at most.
func (r runsc) end(pid int) error {
	start, err := processStart(pid)
	switch {
	case pid <= 1 || err != nil:
		return nil
	case slices.Contains(arguments(pid), r.container):
		signalProcess(pid, start, unix.SIGKILL)
	case !ending(pid): // one that ends has no arguments
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	waitProcess(ctx, pid)
	if alive(pid, start) {
		return fmt.Errorf("process %d of the sandbox %s does not end", pid, r.container)
	}
	return nil
}

// forget removes what runsc knows of the sandbox.
func (r runsc) forget() error {
	dir := filepath.Join(r.dir, "runsc")
	files, _ := filepath.Glob(filepath.Join(dir, r.container+"*")) // the pattern is right
	errs := []error{}
	for _, name := range append(files, filepath.Join(dir, "runsc-"+r.container+".sock")) {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r runsc) pause() error  { return r.control("pause") }
func (r runsc) resume() error { return r.control("resume") }

// control makes a call that the sandbox's kernel answers. It has no bound: if runsc were
// killed while it pauses, gVisor would have stopped its tasks, and nobody would know.
func (r runsc) control(verb string) error {
	if pid, _, err := r.sandboxProcess(); err == nil {
		if err := canAnswer(pid); err != nil {
			return fmt.Errorf("runsc %s: %w", verb, err)
		}
	}
	return r.call(verb, r.container)
}

// canAnswer returns an error if the sandbox's kernel, which is that process, can open no more
// files. Then it could accept no call, and would never answer.
func canAnswer(pid int) error {
	if !openfiles.Exhausted(pid) {
		return nil
	}
	return fmt.Errorf("the sandbox has reached its limit of %d open files and can't answer: %w; end it with cove restart, and raise the limit (cove doctor says how)", openfiles.Of(pid), unix.EMFILE)
}

// freeze pauses a sandbox that may be paused already. thaw resumes a sandbox that may run
// already. A shim that died in between may have left the sandbox in either state.
func (r runsc) freeze() error { return unless(r.pause(), "in state paused") }
func (r runsc) thaw() error   { return unless(r.resume(), "in state running") }

// unless is err, or nil if runsc says this in err.
func unless(err error, said string) error {
	if err != nil && strings.Contains(err.Error(), said) {
		return nil
	}
	return err
}

func (r runsc) call(args ...string) error {
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, lastLines(string(out)))
	}
	return nil
}

// lastLines returns the end of what a program said, short enough for an error. If a Go
// program crashed, that is the head of its report: the stack below stays in the log.
func lastLines(s string) string {
	const most = 1500
	s = strings.TrimSpace(s)
	if head := kernel.Reason(s); head != "" {
		s = head
	}
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}

// tail returns the end of a log file, or nothing.
func tail(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return lastLines(string(data))
}
