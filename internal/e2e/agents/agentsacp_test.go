package agents

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/coder/acp-go-sdk"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// Versions of agents that speak ACP.
const (
	openCodeACPVersion = "1.18.33"
	claudeACPVersion   = "0.100.0"
	nodeForACPVersion  = "24.21.0"
	openCodeForACPConf = `{"model":"anthropic/claude-sonnet-4-5","provider":{"anthropic":{"options":{"baseURL":"http://anthropic.connect.internal/v1","apiKey":"none"}}},` +
		`"permission":{"edit":"ask","bash":"ask"},"autoupdate":false,"share":"disabled"}`
)

// acpFromNPM installs packages to be included in sprites, and returns their folder.
func acpFromNPM(h *e2e.Host, packages ...string) string {
	h.T.Helper()
	if os.Getenv("COVE_TEST_AGENTS") != "1" {
		h.T.Skip("make test-agents runs it: it installs the agent from npm")
	}
	dir := h.Path("npm")
	npm := exec.Command("npm", append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error"}, packages...)...)
	if out, err := npm.CombinedOutput(); err != nil {
		h.T.Fatalf("npm install: %v\n%s", err, out)
	}
	return dir
}

// TestAgentOpenCodeACP drives the real OpenCode by ACP. It asks before it edits and
// before it runs a command, and the answers decide how a job ends.
func TestAgentOpenCodeACP(t *testing.T) {
	h := e2e.NewHost(t)
	npm := acpFromNPM(h, "opencode-ai@"+openCodeACPVersion)
	model := &modeltest.Anthropic{Turns: []modeltest.Turn{
		{Text: "A new file.", Calls: []modeltest.Call{{Tool: "write", Input: map[string]any{"filePath": "HELLO.md", "content": "# Hello\n"}}}},
		{Text: "Commit.", Calls: []modeltest.Call{{Tool: "bash", Input: map[string]any{"command": "git add -A && git commit -q -m 'Say hello'", "description": "commit"}}}},
		{Text: "All is done."},
	}}
	server := httptest.NewServer(model)
	defer server.Close()
	h.Serve(nil, "--connector", "anthropic="+server.URL)
	repo := h.Repository("repo", map[string]string{"plan.md": "Say hello.\n"})
	flags := []string{"plan.md", "--agent", "acp", "--agent-command", npm + "/node_modules/.bin/opencode acp", "--include", npm,
		"--env", "OPENCODE_CONFIG_CONTENT=" + openCodeForACPConf}
	job, _ := h.Push(repo, flags...)
	out, code := h.Try(repo, "cove", "pull", job, "--wait=10m")
	logs := h.Run("", "cove", "job", "logs", job)
	if code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, logs)
	}
	t.Logf("%s", logs)
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Say hello\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	for _, want := range []string{"-- OpenCode " + openCodeACPVersion + ", session ses_", "All is done.", "== success"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if u := h.Job(job).Usage; u == nil || u.InputTokens == 0 || u.OutputTokens == 0 {
		t.Errorf("usage %+v", u)
	}

	// A person is asked, and says no.
	job, _ = h.Push(repo, append(flags, "--permissions", "ask")...)
	e2e.Await(t, "the question", func() bool { return h.Job(job).Question != nil || h.Job(job).State.Terminal() })
	if got := h.Job(job); got.State != cove.JobWaiting || got.Question == nil {
		t.Fatalf("it is %s, %+v\n%s", got.State, got.Outcome, h.Run("", "cove", "job", "logs", job))
	}
	t.Logf("%s", h.Run("", "cove", "job", "answer", job))
	h.Run("", "cove", "job", "answer", job, "reject_once")
	h.Try("", "cove", "job", "wait", job)
	if got := h.Job(job); got.Commits != 0 || got.Leftover != "" {
		t.Errorf("it has done what it was denied: %+v", got)
	}

	// A model that hangs: the job is stopped.
	held := make(chan struct{})
	model.Hold = func(int) { <-held }
	job, sprite := h.Push(repo, flags...)
	e2e.Await(t, "its session", func() bool { return strings.Contains(h.Run("", "cove", "job", "logs", job), "session ses_") })
	h.Run("", "cove", "job", "stop", job)
	close(held)
	if got := h.Job(job); got.Outcome == nil || got.Outcome.Kind != "cancelled" {
		t.Errorf("stopped: %s, %+v", got.State, got.Outcome)
	}
	if out, code := h.Try("", "cove", "exec", "-s", sprite, "pgrep", "-f", "opencode"); code != 1 {
		t.Errorf("left: %s", out)
	}
}

// TestAgentClaudeACP has the real Claude Code, by claude-agent-acp, carry out a plan,
// and work for an editor.
func TestAgentClaudeACP(t *testing.T) {
	h := e2e.NewHost(t)
	npm := acpFromNPM(h, "@agentclientprotocol/claude-agent-acp@"+claudeACPVersion, "node@"+nodeForACPVersion)
	model := &modeltest.Anthropic{Turns: []modeltest.Turn{
		{Text: "A new file.", Calls: []modeltest.Call{{Tool: "Write", Input: map[string]any{"file_path": "HELLO.md", "content": "# Hello\n"}}}},
		{Text: "Commit.", Calls: []modeltest.Call{{Tool: "Bash", Input: map[string]any{"command": "git add -A && git commit -q -m 'Say hello'", "description": "commit"}}}},
		{Text: "All is done."},
	}}
	server := httptest.NewServer(model)
	defer server.Close()
	h.Serve(nil)
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader("sk-ant-the-real-key")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", server.URL)
	repo := h.Repository("repo", map[string]string{"plan.md": "Say hello.\n"})
	path := "PATH=" + npm + "/node_modules/.bin:/.sprite/bin:/usr/local/bin:/usr/bin:/bin"
	job, sprite := h.Push(repo, "plan.md", "--agent", "acp", "--agent-command", "claude-agent-acp", "--include", npm, "--env", path)
	out, code := h.Try(repo, "cove", "pull", job, "--wait=10m")
	logs := h.Run("", "cove", "job", "logs", job)
	if code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, logs)
	}
	t.Logf("%s", logs)
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Say hello\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}

	h.Write("site/greeting.txt", "hello\n")
	h.Run("", "cove", "connector", "grant", "anthropic", "--sprite", sprite)
	h.Run("site", "cove", "sync", "push", "-s", sprite)
	bin := npm + "/node_modules/.bin"
	e := newEditor(h, "site", "-s", sprite, "--agent", "acp", "--agent-command", "PATH="+bin+":$PATH exec claude-agent-acp")
	if _, err := e.Initialize(t.Context(), acp.InitializeRequest{ProtocolVersion: 1}); err != nil {
		t.Fatal(err)
	}
	s, err := e.NewSession(t.Context(), acp.NewSessionRequest{Cwd: h.Path("site"), McpServers: []acp.McpServer{}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Prompt(t.Context(), acp.PromptRequest{SessionId: s.SessionId, Prompt: []acp.ContentBlock{acp.TextBlock("Say hello.")}})
	if err != nil || r.StopReason != acp.StopReasonEndTurn || !strings.Contains(e.text(), "All is done.") {
		t.Errorf("the turn ended with %q, %v:\n%s", r.StopReason, err, e.text())
	}
	t.Logf("permissions: %q", e.permits)
	if got := h.Run("", "cove", "exec", "-s", sprite, "cat", "site/HELLO.md"); got != "# Hello\n" {
		t.Errorf("in the sprite there is %q", got)
	}
	if _, err := os.Stat(h.Path("site/HELLO.md")); err == nil || len(e.asked) > 0 {
		t.Errorf("it has worked on this machine: %v, %v", err, e.asked)
	}
}
