package agents

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// TestClaudeMCP has the real Claude Code on the host, with only cove's tools. It writes,
// edits and tests a small project in a sandbox, which is then removed. Its calls fail and
// say why, and the file of the same path here is untouched.
func TestClaudeMCP(t *testing.T) {
	if os.Getenv("COVE_TEST_AGENTS") != "1" {
		t.Skip("make test-agents runs it: it installs the agent from npm")
	}
	h := e2e.NewHost(t)
	agent := filepath.Join(filepath.Dir(h.Home), "agent")
	npm := exec.Command("npm", "install", "--prefix", agent, "--no-audit", "--no-fund", "--loglevel=error", "@anthropic-ai/claude-code@"+claudeVersion)
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	claude := filepath.Join(agent, "node_modules/.bin/claude")
	h.Serve(nil)
	t.Run("stdio", func(t *testing.T) {
		h := h.On(t)
		h.Run("", "cove", "create", "paint")
		claudeMCP(h, claude, "paint", h.Run("", "cove", "mcp", "config", "-q", "-s", "paint"))
	})
	t.Run("http", func(t *testing.T) {
		h := h.On(t)
		h.Run("", "cove", "create", "gallery")
		_, secret := h.Token("claude", "-s", "gallery")
		h.Env = append(h.Env, "COVE_TOKEN="+secret)
		claudeMCP(h, claude, "gallery", h.Run("", "cove", "mcp", "config", "-q", "-s", "gallery", "--http"))
	})
}

// claudeMCP runs Claude Code with the settings that cove mcp config prints.
func claudeMCP(h *e2e.Host, claude, sprite, config string) {
	t := h.T
	t.Helper()
	project := "project-" + sprite
	h.Write(project+"/add.js", "the canary")
	h.Write("home/"+sprite+".json", config)
	root := filepath.Join(filepath.Dir(h.Home), project)
	file := filepath.Join(root, "add.js")
	use := func(tool string, input map[string]any) []modeltest.Call {
		return []modeltest.Call{{Tool: "mcp__cove__" + tool, Input: input}}
	}
	check := use("Bash", map[string]any{"command": "cd " + root + " && node --test; hostname"})
	gone := 6 // the sandbox is removed in the middle of this turn
	model := &modeltest.Anthropic{Turns: []modeltest.Turn{
		{Text: "A module.", Calls: use("Write", map[string]any{"file_path": file, "content": "exports.add = (a, b) => a - b\n", "create_parents": true})},
		{Text: "Its test.", Calls: use("Write", map[string]any{"file_path": filepath.Join(root, "add.test.js"), "content": projectTest})},
		{Text: "Does it pass?", Calls: check},
		{Text: "No.", Calls: use("Edit", map[string]any{"file_path": file, "old_string": "a - b", "new_string": "a + b"})},
		{Text: "And now?", Calls: check},
		{Text: "A look.", Calls: use("exec", map[string]any{"argv": []string{"cat", file}})},
		{Text: "One more edit.", Calls: use("Edit", map[string]any{"file_path": file, "old_string": "canary", "new_string": "gone"})},
		{Text: "Again.", Calls: use("Write", map[string]any{"file_path": file, "content": "gone"})},
		{Text: "By a command.", Calls: use("Bash", map[string]any{"command": "rm " + file})},
		{Text: "It can't be done."},
	}}
	removed := make(chan error, 1)
	model.Hold = func(turn int) {
		if turn == gone {
			removed <- h.Command("", "cove", "rm", "--force", sprite).Run()
		}
	}
	server := httptest.NewServer(model)
	defer server.Close()

	cmd := h.Command(project, claude, "-p", "Make it add, and test it.", "--output-format", "json", "--tools", "", "--allowedTools", "mcp__cove",
		"--strict-mcp-config", "--mcp-config", filepath.Join(h.Home, sprite+".json"))
	cmd.Env = append(cmd.Env, "ANTHROPIC_BASE_URL="+server.URL, "ANTHROPIC_API_KEY=sk-ant-test", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CONFIG_DIR="+h.Home+"/.claude")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("claude: %v\n%s", err, out)
	}
	if len(removed) == 0 {
		t.Fatalf("it did not come so far:\n%s\n%+v", out, model.Requests())
	}
	if err := <-removed; err != nil {
		t.Errorf("remove the sprite: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "the canary" {
		t.Errorf("the canary is %q, %v", text, err)
	}
	claudeSaw(t, model, sprite, gone)
}

const projectTest = `const test = require('node:test'), assert = require('node:assert')
test('adds', () => assert.equal(require('./add.js').add(2, 3), 5))
`

// claudeSaw checks the results that the model was told, turn by turn.
func claudeSaw(t testing.TB, model *modeltest.Anthropic, sprite string, gone int) {
	t.Helper()
	var told []string
	for _, r := range model.Requests() {
		if len(r.Tools) == 0 || strings.HasSuffix(r.Path, "/count_tokens") {
			continue
		}
		for _, tool := range r.Tools {
			if !strings.HasPrefix(tool, "mcp__cove__") && tool != "DeferredToolPlaceholder" { // a tool that does nothing
				t.Errorf("the model has the tool %s", tool)
			}
		}
		told = append(told, r.Last)
	}
	want := []string{"", "[created", "[created", "# fail 1", "in 1 place", "# pass 1", "a + b"}
	if len(told) < len(model.Turns) {
		t.Fatalf("the model was asked %d times: %q", len(told), told)
	}
	for i, text := range want {
		if !strings.Contains(told[i], text) {
			t.Errorf("before turn %d the model was told %q, not %q", i, told[i], text)
		}
	}
	if !strings.Contains(told[5], sprite) {
		t.Errorf("the tests ran elsewhere: %q", told[5])
	}
	for i := gone + 1; i < len(model.Turns); i++ {
		if !strings.Contains(told[i], "sandbox_gone") {
			t.Errorf("before turn %d, without a sandbox, the model was told %q", i, told[i])
		}
	}
}
