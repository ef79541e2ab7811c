package jobs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestInteractive starts a job's agent in a terminal, leaves it, joins it again,
// and has its work collected when it ends.
func TestInteractive(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\nread word\necho $word > one.txt\n```\n"})
	socket := filepath.Join(filepath.Dir(h.Home), "tmux.sock")
	tmux := func(args ...string) string {
		return h.Run(repo, "tmux", append([]string{"-S", socket}, args...)...)
	}
	tmux("new-session", "-d", "-x", "90", "-y", "25", "sh")
	defer tmux("kill-server")
	keys := func(text string) { tmux("send-keys", text, "Enter") }
	var job string
	keys("cove push plan.md --agent shell --interactive")
	e2e.Await(t, "the job runs", func() bool {
		out := h.Run("", "cove", "job", "list", "--json")
		if i := strings.Index(out, `"id": "`); i >= 0 {
			job = out[i+7:][:6]
		}
		return strings.Contains(out, `"running"`)
	})
	tmux("send-keys", "C-\\") // leave
	e2e.Await(t, "the terminal is back", func() bool {
		keys("echo out-$((1+1))side")
		return strings.Contains(tmux("capture-pane", "-p"), "out-2side")
	})
	if show := h.Run("", "cove", "job", "show", job); !strings.Contains(show, "running") {
		t.Fatalf("leaving ended the job: %s", show)
	}
	keys("clear; cove job attach " + job)
	keys("typed")
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull: %d, %s", code, out)
	}
	if got := h.Run(repo, "git", "show", "HEAD:one.txt"); got != "typed\n" {
		t.Errorf("one.txt: got %q", got)
	}
}
