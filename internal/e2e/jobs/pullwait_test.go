package jobs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// screen keeps a program's output.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// onTerminal starts a command on a terminal. wait returns its output, and how it ended.
func onTerminal(t *testing.T, h *e2e.Host, repo string, args ...string) (terminal *os.File, shown *screen, wait func() error) {
	cmd := h.Command(repo, "cove", args...)
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	shown = new(screen)
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(shown, terminal) }) // its end is an error
	return terminal, shown, func() error {
		err := cmd.Wait()
		reading.Wait()
		return err
	}
}

// TestPullWaitsOnTerminal: on a terminal a pull waits for a job that is at work. It shows the
// job's state until then, and then clears that line. Ctrl-C leaves the job as it is.
// Elsewhere a pull does not wait unless it is told to.
func TestPullWaitsOnTerminal(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.UntilStep(job)
	for _, args := range []string{"--json", "--no-wait", "--wait=0"} {
		_, shown, wait := onTerminal(t, h, repo, "pull", job, args)
		if err := wait(); exitCode(err) != 1 || !strings.Contains(shown.String(), "is not finished (running)") {
			t.Errorf("%s: %v, %s", args, err, shown)
		}
	}
	if out, code := h.Try(repo, "cove", "pull", job); code != 1 || !strings.Contains(out, "cove pull "+job+" --wait") {
		t.Errorf("without a terminal: %d, %s", code, out)
	}
	if out, code := h.Try(repo, "cove", "pull", job, "--no-wait", "--wait"); code != 2 {
		t.Errorf("with both flags: %d, %s", code, out)
	}
	other := h.Repository("other", map[string]string{"file": "another\n"})
	if out, code := h.Try(other, "cove", "pull", job, "--wait"); code != 1 || !strings.Contains(out, "from another repository") {
		t.Errorf("in another repository: %d, %s", code, out)
	}

	waits := "\rwaiting for job " + job + ": running, began "
	terminal, shown, wait := onTerminal(t, h, repo, "pull", job)
	e2e.Await(t, "the line", func() bool { return strings.Contains(shown.String(), waits) })
	if _, err := terminal.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := wait(); exitCode(err) != 130 || !strings.Contains(shown.String(), "cove pull "+job+" --wait") || !strings.Contains(shown.String(), "cove job stop "+job) {
		t.Errorf("after Ctrl-C: %v, %s", err, shown)
	}
	if state := h.Job(job).State; state != cove.JobRunning {
		t.Errorf("after Ctrl-C the job is %s", state)
	}

	_, shown, wait = onTerminal(t, h, repo, "pull", job)
	e2e.Await(t, "the line", func() bool { return strings.Contains(shown.String(), waits) })
	h.Run("", "cove", "exec", "-s", sprite, "sh", "-c", "touch ~/go-on")
	if err := wait(); err != nil {
		t.Errorf("%v: %s", err, shown)
	}
	if _, after, _ := strings.Cut(shown.String(), "\r\x1b[K"); !strings.Contains(after, "Fast-forwarded") || strings.Contains(after, "waiting") {
		t.Errorf("it shows %q", shown)
	}
}

// exitCode returns a command's exit code; -1 if it did not exit by itself.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}
