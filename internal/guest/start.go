package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/users"
)

// startError says why a command could not be started, and its exit code.
type startError struct {
	code int
	err  error
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// streams are the guest's ends of a command's standard streams. With a terminal, out and in
// are its master, and there is no err.
type streams struct {
	in, out, err *os.File
	child        []int    // the command's ends, to close after the fork
	shared       *os.File // /dev/null for in, not to be closed
}

func (st *streams) close() {
	for _, f := range []*os.File{st.in, st.out, st.err} {
		if f != nil {
			_ = f.Close()
		}
	}
	st.closeChild()
}

func (st *streams) closeChild() {
	for _, fd := range st.child {
		_ = syscall.Close(fd)
	}
	st.child = nil
}

// files are the command's descriptors 0, 1 and 2.
func (st *streams) files() []uintptr {
	if len(st.child) == 1 { // terminal
		fd := uintptr(st.child[0])
		return []uintptr{fd, fd, fd}
	}
	var in uintptr
	if st.shared != nil {
		in = st.shared.Fd()
	} else {
		in = uintptr(st.child[2])
	}
	return []uintptr{in, uintptr(st.child[0]), uintptr(st.child[1])}
}

// runner starts the processes of sessions, and waits for their ends. Close it when all
// have ended.
type runner struct {
	cgroups cgroups
	reaper  *reaper

	mu      sync.Mutex
	devnull *os.File // guarded by mu
}

func (r *runner) close() error {
	r.reaper.close()
	if r.devnull != nil {
		_ = r.devnull.Close()
	}
	return r.cgroups.close()
}

// null returns the open /dev/null that commands without input share.
func (r *runner) null() (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.devnull == nil {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		r.devnull = f
	}
	return r.devnull, nil
}

func (r *runner) openStreams(c *command) (*streams, error) {
	if c.tty {
		return openTerminal(c)
	}
	st := &streams{}
	for _, end := range []**os.File{&st.out, &st.err} {
		out, w, err := pipe(0)
		if err != nil {
			st.close()
			return nil, err
		}
		*end, st.child = out, append(st.child, w)
	}
	var err error
	if !c.stdin {
		if st.shared, err = r.null(); err != nil {
			st.close()
			return nil, err
		}
		return st, nil
	}
	w, in, err := pipe(1)
	if err != nil {
		st.close()
		return nil, err
	}
	st.in, st.child = w, append(st.child, in)
	return st, nil
}

// pipe makes a pipe. Its end ours (0 to read, 1 to write) does not block; the other does, as
// programs expect. os.Pipe would hand both to the poller.
func pipe(ours int) (our *os.File, other int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil, -1, fmt.Errorf("make a pipe: %w", err)
	}
	other = fds[1-ours]
	if _, err := unix.FcntlInt(uintptr(other), unix.F_SETFL, 0); err != nil {
		return nil, -1, errors.Join(err, syscall.Close(fds[0]), syscall.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[ours]), "pipe"), other, nil
}

// openTerminal makes a terminal of the requested size that belongs to the user. Our end does
// not block: its reader must notice when the command has ended.
func openTerminal(c *command) (*streams, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	file := os.NewFile(uintptr(master), "/dev/ptmx")
	st := &streams{in: file, out: file}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: c.rows, Col: c.cols})
	}
	slave := -1
	if err == nil {
		slave, err = unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		st.close()
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	st.child = []int{slave}
	if c.user.UID != 0 {
		// So that programs may open it again by its name; not all kernels can.
		_ = unix.Fchown(slave, int(c.user.UID), -1)
	}
	return st, nil
}

// start starts the command in a new cgroup, kernel session and process group.
// The error is a *startError when the command itself is to blame.
func (r *runner) start(c *command, id string) (*process, *group, *streams, error) {
	path, err := c.find()
	if err != nil {
		return nil, nil, nil, notStarted(c, err)
	}
	st, err := r.openStreams(c)
	if err != nil {
		return nil, nil, nil, err
	}
	g, dir, err := r.cgroups.make(id)
	if err != nil {
		st.close()
		return nil, nil, nil, err
	}
	attr := &syscall.ProcAttr{
		Dir:   c.dir,
		Env:   c.env,
		Files: st.files(),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: c.tty, Credential: credential(c.user)},
	}
	if dir >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, dir
	}
	p, err := r.reaper.start(func() (int, error) {
		pid, err := syscall.ForkExec(path, c.argv, attr)
		if errors.Is(err, syscall.ENOEXEC) {
			// A script without an interpreter line: the shell runs it, as usual.
			return syscall.ForkExec(shell, append([]string{"sh", path}, c.argv[1:]...), attr)
		}
		return pid, err
	})
	if dir >= 0 {
		_ = syscall.Close(dir)
	}
	st.closeChild()
	if err != nil {
		st.close()
		g.remove()
		return nil, nil, nil, notStarted(c, err)
	}
	g.leader = p.pid
	return p, g, st, nil
}

// shell runs scripts and starts consoles. Not all images have one.
const shell = "/bin/sh"

// credential is nil when nothing has to change.
func credential(u users.User) *syscall.Credential {
	if os.Geteuid() != 0 && int(u.UID) == os.Geteuid() {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// notStarted gives an error of exec its exit code: 127 not found, 126 not
// runnable.
func notStarted(c *command, err error) error {
	if st, dirErr := os.Stat(c.dir); dirErr != nil || !st.IsDir() {
		if dirErr == nil {
			dirErr = syscall.ENOTDIR
		}
		return &startError{126, fmt.Errorf("working directory %s: %w", c.dir, plain(dirErr))}
	}
	if errors.Is(err, syscall.EACCES) && errors.Is(c.user.Do(func() error { return enter(c.dir) }), syscall.EACCES) {
		return &startError{126, fmt.Errorf("working directory %s: %w for %s; start it in another one, or as root", c.dir, syscall.EACCES, c.user.Name)}
	}
	code := 126
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		code = 127
		if !strings.Contains(c.path, "/") {
			return &startError{code, fmt.Errorf("%s: command not found", c.path)}
		}
		if c.path == shell {
			return &startError{code, fmt.Errorf("there is no shell here (%s): only programs by their paths can be run", c.path)}
		}
	}
	if errors.Is(err, syscall.EAGAIN) {
		return &startError{code, fmt.Errorf("%s: the limit of processes is reached; end some first", c.path)}
	}
	return &startError{code, fmt.Errorf("%s: %w", c.path, plain(err))}
}

// enter checks that this thread's user may use a folder as the working directory.
func enter(dir string) error {
	var st syscall.Stat_t
	return syscall.Stat(dir+"/.", &st)
}

// plain removes the path from an error that will be shown with one.
func plain(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
