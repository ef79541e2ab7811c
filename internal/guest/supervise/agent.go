package supervise

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

// defaultGrace is how long an agent that is told to stop may take.
const defaultGrace = 10 * time.Second

// drainLimit bounds the wait for output once every process of the agent is gone.
const drainLimit = 5 * time.Second

// exit is how the agent's process ended.
type exit struct {
	code   int    // its own, or 128 + the signal's number
	reason string // "", as of endedBy, "signal:KILL", or why it did not start
	detail string
}

// runAgent runs the agent until it ends, or is stopped by ctx. No process of it is
// left when runAgent returns.
func (j *job) runAgent(ctx context.Context, g *guards) exit {
	// What the agent leaves behind, also by double forks, becomes our child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		j.log.notice("no subreaper: " + err.Error())
	}
	env := append(j.environ(), j.spec.Env...)
	file := program(j.spec.Argv[0], env)
	if self, err := os.Executable(); j.spec.Argv[0] == cove.Guest && err == nil {
		file = self // wherever it is, and whatever else has its name
	}
	cmd := exec.Command(file, j.spec.Argv[1:]...)
	cmd.Args[0], cmd.Dir, cmd.Env = j.spec.Argv[0], j.spec.Workdir, env
	streams, err := j.connect(cmd)
	if err == nil && j.spec.Input != nil {
		err = streams.open(j, g, cmd)
	}
	if err != nil {
		return exit{code: 126, reason: err.Error()}
	}
	if err := cmd.Start(); err != nil {
		streams.close()
		j.log.notice("start the agent: " + err.Error())
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = 127
		}
		return exit{code: code, reason: "the agent does not start: " + err.Error()}
	}
	began := time.Now()
	g.agentStarts(ctx)
	j.own.Info("agent started", "pid", cmd.Process.Pid, "argv0", j.spec.Argv[0])
	if j.spec.TTY {
		// Not before: the agent would inherit it.
		signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN)
	}
	streams.started()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has what matters
		close(ended)
	}()
	reason, detail := j.await(ctx, cmd.Process.Pid, ended)
	killDescendants()
	streams.drain()
	if j.spec.TTY {
		j.takeTerminal()
	}
	code, signalled := exitCode(cmd.ProcessState)
	if reason == "" {
		reason = signalled
		if kill, ok := outOfMemory(ctx, code, began); ok {
			reason, detail = "oom", kill
			j.log.notice("out of memory: " + kill)
		}
	}
	return exit{code, reason, detail}
}

// program finds a program where its own environment has it look. One that is not
// there is left to the error of its start.
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

// await waits for the agent's end, and stops it when ctx ends. It returns why it
// stopped it, or nothing.
func (j *job) await(ctx context.Context, pid int, ended <-chan struct{}) (reason, detail string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for reason == "" {
		select {
		case <-ended:
			return "", ""
		case <-ctx.Done():
			if reason, detail = endedBy(ctx); detail != "" {
				j.log.notice("the agent is ended: " + detail)
			}
		case <-tick.C:
			reapOrphans(pid)
		}
	}
	j.own.Info("the agent is told to end", "reason", reason, "detail", detail)
	grace := time.Duration(j.spec.GraceSec) * time.Second
	if grace == 0 {
		grace = defaultGrace
	}
	_ = syscall.Kill(-pid, syscall.SIGTERM) // gone already, at worst
	select {
	case <-ended:
	case <-time.After(grace):
		j.own.Warn("the agent is made to end", "grace", grace)
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

// streams are the ends of an agent's standard streams that this process holds.
type streams struct {
	theirs []*os.File
	ours   []*os.File
	input  *input // nil: the agent reads nothing
	wg     sync.WaitGroup
	run    []func()
}

// open gives cmd an input that takes messages.
func (s *streams) open(j *job, g *guards, cmd *exec.Cmd) error {
	r, w, err := os.Pipe()
	if err != nil {
		s.close()
		return err
	}
	cmd.Stdin, s.theirs = r, append(s.theirs, r)
	if s.input, err = j.listen(g, w); err != nil {
		_ = w.Close()
		s.close()
	}
	return err
}

// connect gives cmd its streams: nothing to read, and pipes into the log for its
// output, or the supervisor's own terminal; and a pipe for its events.
func (j *job) connect(cmd *exec.Cmd) (*streams, error) {
	s := &streams{}
	if j.spec.TTY {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		s.ours, s.theirs = []*os.File{r}, []*os.File{w}
		s.run = append(s.run, func() { j.log.output(r, eventStream) })
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{w}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: int(os.Stdin.Fd())}
		return s, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	raw, err := os.OpenFile(filepath.Join(j.dir, "output.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
		s.run = append(s.run, func() { j.log.output(from, name) })
	}
	cmd.Stdout, cmd.Stderr = s.theirs[0], s.theirs[1]
	cmd.ExtraFiles = []*os.File{s.theirs[2]}
	return s, nil
}

// quietWriter drops what can't be written, on a full disk say: the agent must
// not stop for want of its raw log.
type quietWriter struct{ w io.Writer }

func (q quietWriter) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}

// started closes the ends that the agent has now, and begins to read.
func (s *streams) started() {
	for _, f := range s.theirs {
		_ = f.Close()
	}
	s.theirs = nil
	for _, f := range s.run {
		s.wg.Go(f)
	}
}

// drain ends the input, and waits for the end of all output.
func (s *streams) drain() {
	if s.input != nil {
		s.input.close()
		s.input = nil
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drainLimit):
	}
	s.close()
	<-done
}

func (s *streams) close() {
	if s.input != nil {
		s.input.close()
	}
	for _, f := range append(s.theirs, s.ours...) {
		_ = f.Close()
	}
}

// takeTerminal makes this process the terminal's foreground again.
func (j *job) takeTerminal() {
	pgrp := unix.Getpgrp()
	_ = unix.IoctlSetPointerInt(int(os.Stdin.Fd()), unix.TIOCSPGRP, pgrp)
}
