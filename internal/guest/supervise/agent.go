package supervise

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

// defaultGrace is how long an agent that is told to stop may take.
const defaultGrace = 10 * time.Second

// exit is how the agent's process ended.
type exit struct {
	code   int    // its own, or 128 + the signal's number
	reason string // "", as of endedBy, "signal:KILL", or why it did not start
	detail string
}

// agent is a job's agent, which runs once.
type agent struct {
	folder folder
	spec   *cove.JobSpec
	log    *journal
	own    *slog.Logger
	guards *guards
}

// run runs the agent until it ends, or is stopped by ctx. No process of it is
// left when run returns.
func (a *agent) run(ctx context.Context) exit {
	// Processes that the agent leaves behind, also by double forks, become our children.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		a.log.notice("no subreaper: " + err.Error())
	}
	env := append(a.folder.environ(), a.spec.Env...)
	file := program(a.spec.Argv[0], env)
	if self, err := os.Executable(); a.spec.Argv[0] == cove.Guest && err == nil {
		file = self // wherever it is, and whatever else has its name
	}
	cmd := exec.Command(file, a.spec.Argv[1:]...)
	cmd.Args[0], cmd.Dir, cmd.Env = a.spec.Argv[0], a.spec.Workdir, env
	streams, err := a.connect(cmd)
	if err == nil && a.spec.Input != nil {
		err = streams.open(cmd, a.listen)
	}
	if err != nil {
		return exit{code: 126, reason: err.Error()}
	}
	if err := cmd.Start(); err != nil {
		streams.close()
		a.log.notice("start the agent: " + err.Error())
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = 127
		}
		return exit{code: code, reason: "the agent does not start: " + err.Error()}
	}
	began := time.Now()
	a.guards.agentStarts(ctx)
	a.own.Info("agent started", "pid", cmd.Process.Pid, "argv0", a.spec.Argv[0])
	if a.spec.TTY {
		// Not before: the agent would inherit it.
		signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN)
	}
	streams.started()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has what matters
		close(ended)
	}()
	reason, detail := a.await(ctx, cmd.Process.Pid, ended)
	killDescendants()
	streams.drain()
	if a.spec.TTY {
		takeTerminal()
	}
	code, signalled := exitCode(cmd.ProcessState)
	if reason == "" {
		reason = signalled
		if kill, ok := outOfMemory(ctx, code, began); ok {
			reason, detail = "oom", kill
			a.log.notice("out of memory: " + kill)
		}
	}
	return exit{code, reason, detail}
}

// program finds a program in the PATH of its own environment. If the program is missing, its
// start gives the error.
func program(name string, env []string) string {
	if strings.Contains(name, "/") {
		return name
	}
	path := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value // the last one holds
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(dir) {
			return found
		}
	}
	return name
}

// await waits for the agent's end, and stops the agent when ctx ends. It returns why it
// stopped the agent, or "".
func (a *agent) await(ctx context.Context, pid int, ended <-chan struct{}) (reason, detail string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for reason == "" {
		select {
		case <-ended:
			return "", ""
		case <-ctx.Done():
			if reason, detail = endedBy(ctx); detail != "" {
				a.log.notice("the agent is ended: " + detail)
			}
		case <-tick.C:
			reapOrphans(pid)
		}
	}
	a.own.Info("the agent is told to end", "reason", reason, "detail", detail)
	grace := time.Duration(a.spec.GraceSec) * time.Second
	if grace == 0 {
		grace = defaultGrace
	}
	_ = syscall.Kill(-pid, syscall.SIGTERM) // gone already, at worst
	select {
	case <-ended:
	case <-time.After(grace):
		a.own.Warn("the agent is killed", "grace", grace)
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have left its group
		<-ended
	}
	return reason, detail
}

// exitCode is a process's exit code as a shell has it, and the signal that ended
// it, such as "signal:KILL".
func exitCode(st *os.ProcessState) (int, string) {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		name := unix.SignalName(ws.Signal())
		if len(name) > 3 {
			name = name[3:] // without SIG
		}
		return 128 + int(ws.Signal()), "signal:" + name
	}
	return st.ExitCode(), ""
}

// connect gives cmd its streams: pipes into the log for its output and nothing to read, or
// else the supervisor's own terminal. cmd also gets a pipe for its events.
func (a *agent) connect(cmd *exec.Cmd) (*streams, error) {
	s := &streams{}
	if a.spec.TTY {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		s.ours, s.theirs = []*os.File{r}, []*os.File{w}
		s.run = append(s.run, func() { a.log.output(r, eventStream) })
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{w}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: int(os.Stdin.Fd())}
		return s, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	raw, err := os.OpenFile(a.folder.file("output.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s.ours = append(s.ours, raw)
	for _, name := range []string{"stdout", "stderr", eventStream} {
		r, w, err := os.Pipe()
		if err != nil {
			s.close()
			return nil, err
		}
		s.ours, s.theirs = append(s.ours, r), append(s.theirs, w)
		var from io.Reader = r
		if name != eventStream {
			from = io.TeeReader(r, quietWriter{raw})
		}
		s.run = append(s.run, func() { a.log.output(from, name) })
	}
	cmd.Stdout, cmd.Stderr = s.theirs[0], s.theirs[1]
	cmd.ExtraFiles = []*os.File{s.theirs[2]}
	return s, nil
}

// takeTerminal makes this process the terminal's foreground again.
func takeTerminal() {
	pgrp := unix.Getpgrp()
	_ = unix.IoctlSetPointerInt(int(os.Stdin.Fd()), unix.TIOCSPGRP, pgrp)
}
