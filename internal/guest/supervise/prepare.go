package supervise

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

// preparation makes the sprite and the clone ready for a job's agent. The log has the
// beginning and the end of each step.
type preparation struct {
	folder folder
	spec   *cove.JobSpec
	repo   *repository
	log    *journal

	ran bool // something that may have changed the clone
	out tail // of what the commands of a step have printed
}

// run receives the clone, and runs the setup script and the commands in it.
func (p *preparation) run(ctx context.Context) error {
	if len(p.spec.Argv) == 0 {
		return errors.New("the job names no program")
	}
	// A command's orphans, also those of double forks, become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		p.log.notice("no subreaper: " + err.Error())
	}
	for _, step := range []struct {
		key cove.StepKey
		do  func(context.Context) (stepEnd, error)
	}{
		{cove.StepInstallDeps, p.deps},
		{cove.StepClone, p.clone},
		{cove.StepSetupScript, p.script},
		{cove.StepInstallAgent, p.install},
		{cove.StepConfigureAgent, p.configure},
		{cove.StepVerifyCommit, p.verify},
	} {
		if err := p.step(ctx, step.key, step.do); err != nil {
			return err
		}
	}
	return nil
}

// stepEnd describes a step that succeeded.
type stepEnd struct {
	skipped bool
	detail  string // what was done, or why nothing was; may be empty
	warning string // empty: all is as it was meant to be
}

// skipped is the end of a step that is not needed.
func skipped(why string) stepEnd { return stepEnd{skipped: true, detail: why} }

// step tells of a step while it is done.
func (p *preparation) step(ctx context.Context, key cove.StepKey, do func(context.Context) (stepEnd, error)) error {
	p.log.step(cove.StepTurn{Key: key, State: cove.StepRunning})
	p.out = tail{}
	end, err := p.limited(ctx, key, do)
	turn := cove.StepTurn{Key: key, State: cove.StepCompleted, Detail: end.detail, Warning: end.warning}
	switch {
	case err != nil && ctx.Err() != nil:
		reason, detail := endedBy(ctx)
		turn.State, turn.Error = cove.StepFailed, strings.TrimSpace(reason+" "+detail)
	case err != nil:
		_, turn.TimedOut = errors.AsType[overtime](err)
		turn.State, turn.Error = cove.StepFailed, err.Error()
	case end.skipped:
		turn.State = cove.StepSkipped
	}
	p.log.step(turn)
	return err
}

// limited runs a step within its limit. The setup script's limit begins when the script
// starts, since it may have to wait for another job's.
func (p *preparation) limited(ctx context.Context, key cove.StepKey, do func(context.Context) (stepEnd, error)) (stepEnd, error) {
	limit := cove.StepLimit(p.spec.StepLimits, key)
	if key == cove.StepSetupScript || limit == 0 {
		return do(ctx)
	}
	within, stop := limitRunning(ctx, limit)
	defer stop()
	end, err := do(within)
	late, ok := errors.AsType[overtime](context.Cause(within))
	if err == nil || !ok || ctx.Err() != nil {
		return end, err
	}
	said := p.out.String()
	if said == "" {
		said = err.Error()
	}
	return end, fmt.Errorf("%s %w:\n%s", key, late, lastLines(said))
}

// clone receives the repository.
func (p *preparation) clone(ctx context.Context) (stepEnd, error) {
	if p.spec.Earlier != "" {
		return skipped("the job continues in an existing clone"), p.repo.receive(ctx)
	}
	if p.spec.Remote != "" {
		return (&remote{folder: p.folder, spec: p.spec, repo: p.repo, log: p.log}).clone(ctx)
	}
	return stepEnd{detail: p.spec.Workdir}, p.repo.receive(ctx)
}

// script runs the job's setup script, if it has one that is not done yet. Its
// output is in the job's log.
func (p *preparation) script(ctx context.Context) (stepEnd, error) {
	s, err := newSetup(p.folder, p.spec)
	if err != nil {
		return stepEnd{}, err
	}
	if s == nil {
		return skipped("there is none"), nil
	}
	again, err := s.run(ctx, p.folder.file("setup.sh"), p.log.notice, func(r io.Reader) { p.log.output(r, "setup") })
	if !again {
		p.ran = true
		return stepEnd{detail: s.Name}, err
	}
	end := skipped(s.Name + " has been run in this sprite before")
	p.log.notice(end.detail)
	return end, err
}

// install runs the commands that bring the agent.
func (p *preparation) install(ctx context.Context) (stepEnd, error) {
	commands := p.spec.Setup[:p.installs()]
	if len(commands) == 0 {
		return skipped("nothing had to be installed in this sprite"), nil
	}
	for _, argv := range commands {
		if _, err := p.command(ctx, argv); err != nil {
			return stepEnd{}, err
		}
	}
	return stepEnd{detail: "in this sprite, for its jobs alone"}, nil
}

// installs is how many commands of Setup bring the agent.
func (p *preparation) installs() int { return min(max(p.spec.Installs, 0), len(p.spec.Setup)) }

// configure runs the commands that the agent needs before it starts.
func (p *preparation) configure(ctx context.Context) (stepEnd, error) {
	commands := p.spec.Setup[p.installs():]
	if len(commands) == 0 {
		return skipped("the agent needs nothing"), nil
	}
	var said []string
	for _, argv := range commands {
		text, err := p.command(ctx, argv)
		if err != nil {
			return stepEnd{}, err
		}
		if text != "" {
			said = append(said, text)
		}
	}
	return stepEnd{detail: strings.Join(said, "\n")}, nil
}

// maxChanged is how many of the files that differ from the commit are named.
const maxChanged = 5

// verify makes sure that the agent begins with the commit and the branch that were sent. If
// the preparation has added to them, verify gives a warning.
func (p *preparation) verify(ctx context.Context) (stepEnd, error) {
	if p.spec.Earlier != "" {
		return skipped("the clone is as the earlier job left it"), nil
	}
	end := stepEnd{detail: fmt.Sprintf("%.12s on %s", p.spec.Base, p.spec.Branch)}
	if !p.ran {
		return end, nil // the clone was compared when it was made
	}
	head, err := p.repo.git.run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return stepEnd{}, err
	}
	branch, err := p.repo.git.run(ctx, "symbolic-ref", "-q", "--short", "HEAD")
	if err != nil {
		return stepEnd{}, fmt.Errorf("the clone has no branch any more, which the preparation must have changed: %w", err)
	}
	if head != p.spec.Base {
		_, err = p.repo.git.run(ctx, "merge-base", "--is-ancestor", p.spec.Base, head)
	}
	if err != nil || branch != p.spec.Branch {
		return stepEnd{}, fmt.Errorf("the clone is at commit %s of branch %s, not at %s of %s: the preparation must have changed it", head, branch, p.spec.Base, p.spec.Branch)
	}
	if head != p.spec.Base {
		end.warning = fmt.Sprintf("the preparation has made commits, which count as the agent's: the branch is at %.12s", head)
		return end, nil
	}
	status, err := p.repo.git.run(ctx, "status", "--porcelain", "--untracked-files=normal")
	if err != nil || status == "" {
		return end, err
	}
	files := strings.Split(status, "\n")
	more := ""
	if n := len(files) - maxChanged; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	end.warning = fmt.Sprintf("the preparation has left changes in the work tree: %s%s", strings.Join(files[:min(len(files), maxChanged)], ", "), more)
	return end, nil
}

// command runs a command in the clone, and logs its output. It returns the end of the output.
func (p *preparation) command(ctx context.Context, argv []string) (string, error) {
	p.ran = true
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = p.spec.Workdir
	cmd.Env = append(p.folder.environ(), p.spec.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("%s: %w", argv[0], errors.Join(err, r.Close(), w.Close()))
	}
	var out tail
	streams := &streams{theirs: []*os.File{w}, ours: []*os.File{r}, run: []func(){func() {
		kept := io.TeeReader(r, io.MultiWriter(&out, &p.out))
		p.log.output(kept, "setup")
		_, _ = io.Copy(io.Discard, kept)
	}}}
	streams.started()
	var failed error
	over := make(chan struct{})
	go func() {
		failed = cmd.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
		endGroup(cmd.Process.Pid, over)
	}
	if ctx.Err() != nil { // nothing of it may outlive it
		killDescendants()
	}
	streams.drain() // a program that it has left may hold the pipe
	text := out.String()
	if failed = cmp.Or(failed, ctx.Err()); failed != nil {
		return text, fmt.Errorf("%s: %w: %s", argv[0], failed, text)
	}
	return text, nil
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
