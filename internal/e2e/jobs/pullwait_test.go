package jobs

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// screen keeps what a program shows.
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

// TestPullShowsWhatItWaitsFor: on a terminal the state of the job is shown until it has
// ended, and then taken away.
func TestPullShowsWhatItWaitsFor(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\nuntil test -e /tmp/go; do sleep 0.1; done\necho one >one\n```\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	pull := h.Command(repo, "cove", "pull", job, "--wait=10m")
	terminal, err := pty.Start(pull)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var shown screen
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(&shown, terminal) }) // its end is an error
	e2e.Await(t, "the line", func() bool {
		return strings.Contains(shown.String(), "\rwaiting for job "+job+": running, began ")
	})
	h.Run("", "cove", "exec", "-s", sprite, "touch", "/tmp/go")
	if err := pull.Wait(); err != nil {
		t.Errorf("%v: %s", err, shown.String())
	}
	reading.Wait()
	if _, after, _ := strings.Cut(shown.String(), "\r\x1b[K"); !strings.Contains(after, "Fast-forwarded") || strings.Contains(after, "waiting") {
		t.Errorf("it shows %q", shown.String())
	}
}
