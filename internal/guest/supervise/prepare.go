package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
)

// preparation makes the sprite and the clone ready for a job's agent.
type preparation struct {
	folder folder
	spec   *cove.JobSpec
	repo   *repository
	log    *journal
}

// run receives the clone, and runs the setup script and the commands in it.
func (p *preparation) run(ctx context.Context) error {
	if len(p.spec.Argv) == 0 {
		return errors.New("the job names no program")
	}
	if err := p.repo.receive(ctx); err != nil {
		return err
	}
	if err := p.script(ctx); err != nil {
		return err
	}
	for _, argv := range p.spec.Setup {
		if err := p.command(ctx, argv); err != nil {
			return err
		}
	}
	return nil
}

// script runs the job's setup script, if it has one that is not done yet. Its
// output is in the job's log.
func (p *preparation) script(ctx context.Context) error {
	s, err := newSetup(p.folder, p.spec)
	if s == nil || err != nil {
		return err
	}
	again, err := s.run(ctx, p.folder.file("setup.sh"), p.log.notice, func(r io.Reader) { p.log.output(r, "setup") })
	if again {
		p.log.notice(fmt.Sprintf("%s has been run in this sprite before", s.Name))
	}
	return err
}

// command runs a command that the agent needs before it starts.
func (p *preparation) command(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = p.spec.Workdir
	cmd.Env = append(p.folder.environ(), p.spec.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	text := out.String()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, text)
	}
	if text != "" {
		p.log.notice(text)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	buf []byte
	cut bool
}

const tailSize = 4000

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 16*tailSize {
		t.cut, t.buf = true, append(t.buf[:0], t.buf[len(t.buf)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	text := bytes.TrimSpace(t.buf)
	if len(text) > tailSize {
		t.cut, text = true, text[len(text)-tailSize:]
	}
	if t.cut {
		return "…" + strings.ToValidUTF8(string(text), "")
	}
	return string(text)
}
