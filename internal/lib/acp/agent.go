package acp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	acp "github.com/coder/acp-go-sdk"
)

const (
	quitGrace  = time.Second      // for an agent whose input has ended
	termGrace  = 10 * time.Second // after TERM: it may write its session
	drainLimit = 10 * time.Second // for what an agent has printed before its end
)

// process is an agent at work.
type process struct {
	cmd   *exec.Cmd
	in    *Writer // its messages
	stdin io.WriteCloser
	out   *os.File // what it prints
	ended chan struct{}
}

// start starts an agent in a session of its own: a signal to this process's group does not
// reach it. Its standard error is this process's.
func start(argv []string, dir string) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, w, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = w.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the agent: %w", err), r.Close())
	}
	p := &process{cmd: cmd, in: &Writer{W: stdin}, stdin: stdin, out: r, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState has what matters
		// Programs that the agent started may hold its output open.
		_ = r.SetReadDeadline(time.Now().Add(drainLimit))
		close(p.ended)
	}()
	return p, nil
}

// quit ends the agent: by the end of its input, then by TERM, then by KILL.
func (p *process) quit() {
	_ = p.stdin.Close()
	for _, step := range []struct {
		grace time.Duration
		then  syscall.Signal
	}{{quitGrace, syscall.SIGTERM}, {termGrace, syscall.SIGKILL}} {
		select {
		case <-p.ended:
			return
		case <-time.After(step.grace):
			_ = syscall.Kill(-p.cmd.Process.Pid, step.then)
		}
	}
	<-p.ended
}

// howEnded is for people; valid once ended is closed.
func (p *process) howEnded() string {
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("was ended by signal %d (%v)", int(ws.Signal()), ws.Signal())
	}
	return fmt.Sprintf("exited with code %d", p.cmd.ProcessState.ExitCode())
}

// lines reads the agent's output to its end. It calls take for each message, and noise for
// lines that are not messages or too long. If a request is too long, it answers the agent with
// an error. If an answer is too long, it calls lost.
func (p *process) lines(take func(m Message, line []byte), noise func(text string), lost func(Message)) {
	r := NewReader(p.out)
	for {
		m, line, err := r.Next()
		switch {
		case err == nil:
			take(m, line)
		case errors.Is(err, ErrGarbage):
			noise(string(line))
		case errors.Is(err, ErrLong):
			noise(fmt.Sprintf("%.80s… (%v, and was left out)", line, err))
			switch {
			case m.Request():
				_ = p.in.Send(m.Refuse(acp.NewInvalidRequest(map[string]any{"error": err.Error()})))
			case m.Answer():
				lost(m)
			}
		default:
			_ = p.out.Close()
			return
		}
	}
}
