// Package children starts programs that end when this process ends, even if it is killed.
//
// On Linux the kernel kills the program itself (PR_SET_PDEATHSIG). A shell kills the rest: it
// reads a pipe from this process, and at the pipe's end kills the process groups that it was
// told of.
package children

import (
	"bytes"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// Start starts cmd, which is not to outlive this process. If cmd.SysProcAttr asks for a
// process group or a session of its own, the whole group ends with this process. The caller
// calls ended after cmd.Wait has returned. If err is not nil, ended is nil.
func Start(cmd *exec.Cmd) (ended func(), err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	killWithParent(cmd.SysProcAttr)
	tell := watcher() // before the program: it takes longer to start than a short program does to start others
	if err := onLastingThread(cmd.Start); err != nil {
		return nil, err
	}
	who := strconv.Itoa(cmd.Process.Pid)
	if cmd.SysProcAttr.Setpgid && cmd.SysProcAttr.Pgid == 0 || cmd.SysProcAttr.Setsid {
		who = "-" + who
	}
	tell("+ " + who)
	return func() { tell("- " + who) }, nil
}

// Run is cmd.Run for a program that is not to outlive this process.
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

// onLastingThread runs f on a thread that ends with this process only: the kernel takes the
// end of the thread that has started a program for the end of its parent.
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

// watcher starts the shell when it is first needed. It returns what tells it a line. Without
// a shell the lines go nowhere.
var watcher = sync.OnceValue(func() func(string) {
	cmd := exec.Command("/bin/sh", "-c", watch)
	cmd.Dir = "/"                                        // it keeps no folder in use
	cmd.Env = []string{}                                 // nor anybody's secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this process's group does not end it
	lines, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return func(string) {}
	}
	go func() { _ = cmd.Wait() }()
	var one sync.Mutex
	return func(line string) {
		one.Lock()
		defer one.Unlock()
		_, _ = io.WriteString(lines, line+"\n")
	}
})
