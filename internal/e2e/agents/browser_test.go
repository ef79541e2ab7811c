package agents

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestBrowserInside: Playwright drives a Chromium in a sprite, with Chromium's own sandbox, and
// an agent sees a screenshot over MCP. Reading a file that is too large for MCP is an error.
func TestBrowserInside(t *testing.T) {
	need.Program(t, "chromium", "chromium")
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "--include", e2e.JSModules(t))
	if sandbox := e2e.Browse(h, "paint", `{"executablePath": "/usr/bin/chromium", "chromiumSandbox": true}`); !strings.Contains(sandbox, "You are adequately sandboxed.") {
		t.Errorf("the browser says of its sandbox: %s", sandbox)
	}

	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "cp pressed large; head -c 4000000 /dev/zero >>large")
	s := e2e.MCPClient(h, nil, "-s", "paint", "--role", "read-only")
	text, failed := mcpCall(t.Context(), t, s, "Read", map[string]any{"file_path": "large"})
	if !failed || !strings.HasPrefix(text, "Error (too_large): large is an image of ") {
		t.Errorf("an image of 4 MB: %q, failed: %v", text, failed)
	}
	if r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "Read", Arguments: map[string]any{"file_path": "pressed.jpg"}}); err != nil || len(r.Content) != 2 {
		t.Errorf("after that: %+v, %v", r, err)
	}
}
