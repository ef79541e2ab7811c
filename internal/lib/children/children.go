// Package children starts programs that end when this process ends, even if it is killed.
//
// On Linux the kernel kills the program itself (PR_SET_PDEATHSIG). A shell kills the rest. It
// reads a pipe from this process, and kills the process groups named there when the pipe ends.
package children

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts cmd, which will not outlive this process. If cmd.SysProcAttr asks for a process
// group or a session of its own, the whole group ends with this process. The caller calls
// ended after cmd.Wait has returned. If err is not nil, ended is nil.
func Start(cmd *exec.Cmd) (ended func(), err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	killWithParent(cmd.SysProcAttr)
	w, who := watcher(), ""
	start := cmd.Start
	if cmd.SysProcAttr.Setpgid && cmd.SysProcAttr.Pgid == 0 || cmd.SysProcAttr.Setsid {
		start, who = func() error { return w.startGroup(cmd) }, "-"
	}
	if err := onLastingThread(start); err != nil {
		return nil, err
	}
	who += strconv.Itoa(cmd.Process.Pid)
	w.tell("+ " + who) // of a group it knows already
	return func() { w.tell("- " + who) }, nil
}

// Run is cmd.Run for a program that must not outlive this process.
func Run(cmd *exec.Cmd) error {
	ended, err := Start(cmd)
	if err != nil {
		return err
	}
	defer ended()
	return cmd.Wait()
}

// Output is Run that returns the standard output.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	err := Run(cmd)
	return out.Bytes(), err
}

// CombinedOutput is Run that returns the standard output and the standard error.
func CombinedOutput(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := Run(cmd)
	return out.Bytes(), err
}

// Interrupted reports whether err is of a program that SIGINT ended. A terminal's Ctrl-C goes to
// this process, too, which may not have seen it yet.
func Interrupted(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGINT
}

// starts takes what onLastingThread runs.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread() // never unlocked
		for f := range c {
			f()
		}
	}()
	return c
})

// onLastingThread runs f on a thread that ends only with this process. The kernel kills a
// program when the thread that started it ends, as if its parent had ended.
func onLastingThread(f func() error) error {
	done := make(chan error)
	starts() <- func() { done <- f() }
	return <-done
}

// watch is the script of the shell. It reads "+ ID" and "- ID", with an ID as kill has it.
const watch = `trap '' HUP INT QUIT TERM
all=
while read -r what who; do
	case $what in
	+) all="$all $who" ;;
	-)
		left=
		for id in $all; do [ "$id" = "$who" ] || left="$left $id"; done
		all=$left
		;;
	esac
done
for id in $all; do kill -s KILL -- "$id"; done
`

// A shell runs watch, and reads its orders from lines. If lines is nil, no shell could be
// started, and orders are dropped.
type shell struct {
	one   sync.Mutex
	lines *os.File
}

// watcher starts the shell when it is first needed.
var watcher = sync.OnceValue(func() *shell {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return &shell{}
	}
	defer theirs.Close()
	cmd := exec.Command("/bin/sh", "-c", watch)
	cmd.Stdin = theirs
	cmd.Dir = "/"                                        // it keeps no folder in use
	cmd.Env = []string{}                                 // nor anybody's secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this process's group does not end it
	if err := cmd.Start(); err != nil {
		ours.Close()
		return &shell{}
	}
	go func() { _ = cmd.Wait() }()
	return &shell{lines: ours}
})

// tell writes a line to the shell. It ends before this process only if somebody kills it.
func (w *shell) tell(line string) {
	w.one.Lock()
	defer w.one.Unlock()
	if w.lines != nil {
		_, _ = io.WriteString(w.lines, line+"\n")
	}
}

// enter is the script of the shell that becomes a program. It first reports its own process
// group to the watching shell. This process could report only after the program has begun, and
// may be killed before that. %[1]d is the pipe's descriptor.
const enter = `trap '' PIPE; echo "+ -$$" 2>/dev/null >&%[1]d; trap - PIPE; exec "$@" %[1]d>&-`

// startGroup starts cmd as the leader of a process group that the watching shell knows
// before the program begins.
func (w *shell) startGroup(cmd *exec.Cmd) error {
	fd := 3 + len(cmd.ExtraFiles)
	// In a PID namespace of its own the shell would report a number that means another process
	// here.
	if w.lines == nil || cmd.Err != nil || len(cmd.Args) == 0 || inNamespace(cmd.SysProcAttr) || fd > 9 { // a shell's redirection takes one digit
		return cmd.Start()
	}
	absolute := cmd.Path
	if !filepath.IsAbs(absolute) { // as the kernel has it: from cmd.Dir on
		var err error
		if absolute, err = filepath.Abs(filepath.Join(cmd.Dir, cmd.Path)); err != nil {
			return err
		}
	}
	if err := unix.Access(absolute, unix.X_OK); err != nil {
		return &fs.PathError{Op: "fork/exec", Path: cmd.Path, Err: err}
	}
	program, args, files := cmd.Path, cmd.Args, cmd.ExtraFiles
	cmd.Path, cmd.ExtraFiles = "/bin/sh", append(slices.Clip(files), w.lines)
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(enter, fd), "sh", absolute}, args[1:]...)
	err := cmd.Start()
	cmd.Path, cmd.Args, cmd.ExtraFiles = program, args, files
	return err
}
