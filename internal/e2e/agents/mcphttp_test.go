package agents

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestMCPOverHTTP uses the server's /mcp with real sandboxes and the official SDK's
// client. It tries all that a client of a prefix may do, roles, progress and
// cancellation, and then ends the token and the sandbox.
func TestMCPOverHTTP(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "gallery")
	id, secret := h.Token("agents", "--prefix", "agent-")
	lines := make(chan string, 100)
	s := e2e.MCPOverHTTP(h, secret, func(line string) { lines <- line }, "--prefix", "agent-")
	managed(h, s)
	mcpReader(t, e2e.MCPOverHTTP(h, secret, nil, "--prefix", "agent-", "--role", "read-only"), map[string]any{"sprite": "agent-1"})
	one := map[string]any{"sprite": "agent-1"}
	for len(lines) > 0 {
		<-lines
	}
	runs := func() bool {
		out, _ := h.Try("", "cove", "exec", "-s", "agent-1", "pgrep", "-f", "5[1]51")
		return out != ""
	}
	mcpCancel(t, s, lines, one, runs)

	// The token ends in the middle of a call, which ends the call and its command.
	ended := make(chan error, 1)
	params := &mcp.CallToolParams{Name: "Bash", Arguments: map[string]any{"sprite": "agent-1", "command": "echo begun; sleep 5151"}}
	params.SetProgressToken("p2")
	go func() {
		res, err := s.CallTool(t.Context(), params)
		if err == nil && res.IsError { // the command was ended before the connection was
			err = errors.New("the tool failed")
		}
		ended <- err
	}()
	select {
	case <-lines:
	case <-time.After(e2e.LastResort):
		t.Fatal("no progress")
	}
	h.Run("", "cove", "token", "rm", id)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a call outlived its token")
		}
	case <-time.After(e2e.LastResort):
		t.Fatal("a call goes on without a token")
	}
	e2e.Await(t, "the end of what it had begun", func() bool { return !runs() })
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "list", Arguments: map[string]any{}}); err == nil {
		t.Error("a call without a token succeeded")
	}

	// The sandbox ends, and nothing is done here instead.
	canary := filepath.Join(h.Home, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, secret = h.Token("one", "-s", "agent-1")
	s = e2e.MCPOverHTTP(h, secret, nil, "-s", "agent-1", "--role", "edit", "--dir", "/tmp")
	if names := mcpTools(t, s); slices.Contains(names, "Bash") || slices.Contains(names, "list") || !slices.Contains(names, "Write") {
		t.Errorf("the tools are %v", names)
	}
	if text, failed := mcpCall(t.Context(), t, s, "Write", map[string]any{"file_path": "f", "content": "x"}); failed {
		t.Error(text)
	}
	h.Run("", "cove", "rm", "--force", "agent-1")
	for range 2 {
		if text, failed := mcpCall(t.Context(), t, s, "Write", map[string]any{"file_path": canary, "content": "no"}); !failed || !strings.Contains(text, "sandbox_gone") {
			t.Errorf("got %q, failed: %v", text, failed)
		}
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}
