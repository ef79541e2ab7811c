package jobs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// preview returns the result of a dry run.
func preview(h *e2e.Host, repo string, args ...string) push.Preview {
	h.T.Helper()
	var p push.Preview
	out := h.Run(repo, "cove", append(args, "--dry-run", "--json")...)
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		h.T.Fatalf("%v: %s", err, out)
	}
	return p
}

// nothingMade checks that a dry run has left nothing in the repository.
func nothingMade(h *e2e.Host, repo string) {
	h.T.Helper()
	if out := h.Run(repo, "git", "for-each-ref", "refs/cove"); out != "" {
		h.T.Errorf("there are refs: %s", out)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(h.Home), repo, ".git/cove/tmp/*"))
	if err != nil || len(left) > 0 {
		h.T.Errorf("left are %v, %v", left, err)
	}
}

// TestDryRun: A9: a dry run fails where the real run would. It says what the real run
// would send, and with which settings, and makes nothing. That holds with a server and
// without one.
func TestDryRun(t *testing.T) {
	h := e2e.NewHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": "# Nothing\n```sh\ntrue\n```\n", "note.txt": "1\n"})
	h.Write("repo/note.txt", "2\n")
	h.Run(repo, "git", "commit", "-qam", "second")
	base := strings.TrimSpace(h.Run(repo, "git", "rev-parse", "HEAD"))

	alone := preview(h, repo, "push", "plan.md", "--agent", "shell", "--env", "COLOUR=red", "--max-turns", "9")
	if alone.Asked || alone.Agent != "shell" || alone.Commits != 2 || alone.Bytes < 100 || alone.Base != base || alone.Branch != "main" || alone.Guards.Turns != 9 || !slices.Contains(alone.EnvNames, "COLOUR") || alone.NetworkPolicy == nil {
		t.Errorf("without a server: %+v", alone)
	}
	for _, test := range []struct{ says, args string }{
		{"no such plan", "push none.md --agent shell"},
		{"no agent", "push plan.md --agent nobody"},
		{"no model", "push plan.md --agent cove --model other/x"},
		{"--network", "push plan.md --agent shell --network nowhere"},
		{"negative", "run plan.md --agent shell --depth=-1"},
	} {
		args := strings.Fields(test.args)
		dry, code := h.Try(repo, "cove", append(args, "--dry-run")...)
		if code == 0 || !strings.Contains(dry, test.says) {
			t.Errorf("%s: code %d, %s", test.args, code, dry)
		}
	}
	h.Write("repo/note.txt", "3\n")
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell", "--dry-run"); code != 1 || !strings.Contains(out, "note.txt") {
		t.Errorf("with changes: %d, %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(h.Data, "server.json")); err == nil {
		t.Error("a server was started")
	}
	nothingMade(h, repo)

	h.Serve(nil)
	if out, code := h.Try(repo, "cove", "run", "plan.md", "--agent", "cove", "--dirty", "ignore", "--dry-run"); code != 1 || !strings.Contains(out, "cove secret set anthropic") {
		t.Errorf("without a key: %d, %s", code, out)
	}
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(e2e.ConnectorKey)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "tracker", "--upstream", "http://127.0.0.1:1", "--header", "Authorization: Bearer {secret}")
	tracked := []string{"run", "-p", "Do it.", "--agent", "cove", "--dirty", "include", "--mcp", "host:tracker=list"}
	if out, code := h.Try(repo, "cove", append(tracked, "--dry-run")...); code != 1 || !strings.Contains(out, "hint: cove secret set tracker") {
		t.Errorf("without the key of an MCP server: %d, %s", code, out)
	}
	h.Run("", "cove", "connector", "put", "tracker", "--upstream", "http://127.0.0.1:1")
	p := preview(h, repo, tracked...)
	want := []cove.JobConnector{{Name: "anthropic", Upstream: "https://api.anthropic.com", SecretSet: true}, {Name: "tracker", Upstream: "http://127.0.0.1:1", SecretSet: true}}
	if !p.Asked || !strings.HasPrefix(p.Model, "anthropic/") || p.Sprite != "" || p.Commits != 3 || !slices.Equal(p.Connectors, want) {
		t.Errorf("with a server: %+v", p)
	}
	if out := h.Run(repo, "cove", "push", "plan.md", "--agent", "claude", "--dirty", "ignore", "--dry-run"); !strings.Contains(out, "a new one") || !strings.Contains(out, "anthropic (https://api.anthropic.com)") || !strings.Contains(out, "claude 2.") {
		t.Errorf("for people: %s", out)
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell", "--dirty", "ignore", "-s", "nobody", "--dry-run"); code != 1 || !strings.Contains(out, "nobody") {
		t.Errorf("a sprite that there is not: %d, %s", code, out)
	}
	if out := h.Run("", "cove", "connector", "list", "--json"); strings.Contains(out, `"anthropic"`) {
		t.Errorf("a connector was made: %s", out)
	}
	jobs, err := h.Client().Jobs(t.Context())
	if list := h.Run("", "cove", "list", "--json"); err != nil || len(jobs) > 0 || !strings.Contains(list, `"sprites": []`) {
		t.Errorf("made were %v, %s, %v", jobs, list, err)
	}
	nothingMade(h, repo)

	// The real push does what the dry run said. A second push into its sprite has less to
	// send.
	earnest := h.Run(repo, "cove", "push", "plan.md", "--agent", "shell", "--dirty", "ignore", "--json")
	var sent push.Result
	if err := json.Unmarshal([]byte(earnest), &sent); err != nil || sent.Sent != alone.Bytes || sent.Base != alone.Base {
		t.Errorf("sent were %d bytes, not %d: %s, %v", sent.Sent, alone.Bytes, earnest, err)
	}
	h.Run("", "cove", "job", "wait", sent.Job)
	again := preview(h, repo, "push", "plan.md", "--agent", "shell", "--dirty", "ignore", "-s", sent.Sprite)
	if again.Commits != 0 || again.Sprite != sent.Sprite || again.Bytes >= alone.Bytes {
		t.Errorf("into the same sprite: %+v", again)
	}
}

// TestBackendDryRun: A9 at a backend that knows only the protocol, with and without this
// machine's server.
func TestBackendDryRun(t *testing.T) {
	h := newFarHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": "# Nothing\n```sh\ntrue\n```\n"})
	for _, asked := range []bool{false, true} {
		if p := preview(h, repo, "push", "plan.md", "--agent", "shell"); p.Asked != asked || p.Backend != "far" || p.Commits != 1 || len(p.Connectors) > 0 {
			t.Errorf("asked: %v: %+v", asked, p)
		}
		if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell", "-s", "nobody", "--dry-run"); code != 1 || !strings.Contains(out, "nobody") {
			t.Errorf("a sprite that there is not: %d, %s", code, out)
		}
		if !asked {
			h.Serve(nil)
		}
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "claude", "--dry-run"); code != 1 || !strings.Contains(out, "--env ANTHROPIC_API_KEY=") {
		t.Errorf("without a key: %d, %s", code, out)
	}
	if list, err := h.Far.Client().List(t.Context(), sprites.ListOptions{}); err != nil || len(list.Sprites) > 0 {
		t.Errorf("there are %v, %v", list, err)
	}
}
