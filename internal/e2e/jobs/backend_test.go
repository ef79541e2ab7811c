package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// place returns the host whose data folder has the sandboxes.
func place(h *e2e.Host) *e2e.Host {
	if h.Far != nil {
		return h.Far
	}
	return h
}

// newFarHost returns a host whose sprites are at a backend.
func newFarHost(t *testing.T) *e2e.Host {
	t.Helper()
	h := e2e.NewHost(t)
	if h.Far == nil {
		e2e.GoFar(h)
	}
	return h
}

const twoSteps = "## One\n```sh\necho one >one; git add one; git commit -q -m one\n```\n" +
	"## Two\n```sh\nwhile ! [ -e /tmp/go ]; do sleep 0.1; done\n```\n"

// TestBackend: at a backend that knows only the protocol, this machine's server looks
// after the job, even if both servers are killed in between. The supervisor is uploaded
// there, and removing the job removes its sprite.
func TestBackend(t *testing.T) {
	h := newFarHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": twoSteps, "note.txt": "1\n"})
	job, sprite := h.Push(repo, "--agent", "shell", "plan.md")
	h.UntilStep(job)
	farTools(h, sprite)
	got := h.Job(job)
	if got.Backend != "far" || got.SpriteID == "" || got.NetworkPolicy == nil {
		t.Fatalf("got %+v", got)
	}
	for _, rule := range got.NetworkPolicy.Rules {
		if rule.Domain == "" || len(rule.Ports) > 0 {
			t.Errorf("among rules of names alone is %+v", rule)
		}
	}
	if out, code := h.Try("", "cove", "backend", "rm", "far"); code == 0 || !strings.Contains(out, "job list") {
		t.Errorf("a backend in use was forgotten: %d, %s", code, out)
	}
	h.EndServer(syscall.SIGKILL)
	h.Far.EndServer(syscall.SIGKILL)
	h.Far.Serve(nil)
	h.Run("", "cove", "exec", "-s", sprite, "touch", "/tmp/go")
	h.Run(repo, "cove", "pull", job, "--wait")
	if got := strings.TrimSpace(h.Run(repo, "git", "log", "-1", "--format=%s")); got != "one" {
		t.Errorf("the branch is at %q", got)
	}
	h.Run("", "cove", "job", "rm", job)
	if _, err := h.Far.Client().Get(t.Context(), sprite); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("sprite %s is left there: %v", sprite, err)
	}
	sealed(h, h.Far.Client().Token)
	h.Run("", "cove", "backend", "rm", "far")
}

// sealed checks that no file of the data folder has a backend's token.
func sealed(h *e2e.Host, token string) {
	h.T.Helper()
	err := filepath.WalkDir(h.Data, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what is removed meanwhile has no token
		}
		if text, _ := os.ReadFile(name); bytes.Contains(text, []byte(token)) {
			h.T.Errorf("%s has the backend's token", name)
		}
		return nil
	})
	if err != nil {
		h.T.Fatal(err)
	}
}

// TestBackendEnds: jobs at a backend end as others do: stopped, or lost with their
// sprite. A job is refused if its agent would have no key.
func TestBackendEnds(t *testing.T) {
	h := newFarHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": twoSteps})
	out, code := h.Try(repo, "cove", "push", "--agent", "claude", "plan.md")
	if code == 0 || !strings.Contains(out, "--env ANTHROPIC_API_KEY=") {
		t.Errorf("without a key: %d, %s", code, out)
	}
	stopped, _ := h.Push(repo, "--agent", "shell", "plan.md")
	h.UntilStep(stopped)
	h.Run("", "cove", "job", "stop", stopped)
	h.Try("", "cove", "job", "wait", stopped)
	if got := h.Job(stopped); got.State != cove.JobCancelled || got.Commits != 1 {
		t.Errorf("stopped: %+v", got)
	}
	lost, sprite := h.Push(repo, "--agent", "shell", "plan.md")
	h.UntilStep(lost)
	h.Run("", "cove", "rm", sprite)
	if out, code := h.Try("", "cove", "job", "wait", lost); code == 0 || !strings.Contains(out, "its sprite was deleted") {
		t.Errorf("lost: %d, %s", code, out)
	}
	h.Env = append(h.Env, "SPRITES_TOKEN=wrong")
	if out, code := h.Try(repo, "cove", "push", "--agent", "shell", "plan.md"); code == 0 || !strings.Contains(out, "token") {
		t.Errorf("with a wrong token: %d, %s", code, out)
	}
	h.Env = append(h.Env, "SPRITES_TOKEN=")
	if out, code := h.Try(repo, "cove", "list"); code == 0 || !strings.Contains(out, "set SPRITES_TOKEN") {
		t.Errorf("without a token: %d, %s", code, out)
	}
	// The token may also be in the settings of the service's own client.
	settings, err := os.ReadFile(filepath.Join(h.Home, ".config/cove/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Split(string(settings), `"`)[1]
	h.Write("home/.sprites/sprites.json", fmt.Sprintf(`{"version":"1","current_selection":{"url":%q,"org":"acme"},"urls":{%q:{"url":%q,"orgs":{"acme":{"name":"acme","api_token":%q}}}}}`,
		at, at, at, h.Far.Client().Token))
	h.Run("", "cove", "list")
}

// TestBackendSuites: the job tests pass at a backend: all of them in make soak, else a
// sample. The test of this name in internal/e2e/trees does so for git and trees.
func TestBackendSuites(t *testing.T) { e2e.AtBackend(t, "^TestJobJ7$", "^TestJob") }

// farTools: P1: the tools are the same at a server that knows only the public protocol.
// There the program that has them is uploaded.
func farTools(h *e2e.Host, sprite string) {
	t := h.T
	for _, test := range []struct {
		code int
		says string
		args []string
	}{
		{0, "[created f: 6 bytes", []string{"Write", `{"file_path":"f","content":"a\r\n$&\n"}`}},
		{0, "[1 match in 1 file", []string{"--role", "read-only", "Grep", `{"pattern":"$&","literal":true,"path":"f","output_mode":"content"}`}},
		{0, "[timed out", []string{"Bash", `{"command":"(setsid sleep 4343 &); sleep 4343","timeout_ms":300}`}},
		{0, "[exit code 1", []string{"Bash", `{"command":"pgrep -f '4[3]43'"}`}},
		{1, "does not allow Bash", []string{"--role", "edit", "Bash", `{"command":"true"}`}},
		{1, "allows no tool", []string{"--role", "none", "Read", `{"file_path":"f"}`}},
	} {
		if out, code := h.Try("", "cove", append([]string{"tool", "call", "-s", sprite}, test.args...)...); code != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%v: code %d, %s", test.args, code, out)
		}
	}
}
