package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpClient is the official SDK's client of `cove mcp` with arguments.
func (h *host) mcpClient(progress func(string), args ...string) *mcp.ClientSession {
	h.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			if progress != nil {
				progress(req.Params.Message)
			}
		},
	})
	cmd := h.command("", "cove", append([]string{"mcp"}, args...)...)
	cmd.Stderr = h.t.Output()
	s, err := client.Connect(h.t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			h.t.Errorf("cove mcp ends with %v", err)
		}
	})
	return s
}

// mcpCall calls a tool, and returns what a model is told.
func mcpCall(ctx context.Context, t testing.TB, s *mcp.ClientSession, tool string, args map[string]any) (text string, failed bool) {
	t.Helper()
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	return text, r.IsError
}

// mcp is cove mcp, with the official SDK's client: P3, F9. It has a sprite of its
// own.
func (h *host) mcp() {
	t := h.t
	h.run("", "cove", "create", "gallery")
	lines := make(chan string, 100)
	s := h.mcpClient(func(line string) { lines <- line }, "-s", "gallery", "--dir", "/tmp")

	var names []string
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
		if reading := slices.Contains([]string{"Read", "Glob", "Grep"}, tool.Name); tool.Annotations == nil || tool.Annotations.ReadOnlyHint != reading {
			t.Errorf("%s: annotations %+v", tool.Name, tool.Annotations)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"Bash", "Edit", "Glob", "Grep", "Read", "Write", "exec"}) {
		t.Errorf("the tools are %v", names)
	}
	for _, test := range []struct {
		tool   string
		args   map[string]any
		says   string
		failed bool
	}{
		{"Write", map[string]any{"file_path": "f", "content": "one\ntwo\n"}, "[created f: 8 bytes", false},
		{"Edit", map[string]any{"file_path": "f", "old_string": "two", "new_string": "$&"}, "in 1 place, line 2", false},
		{"Read", map[string]any{"file_path": "f"}, "     2\t$&\n", false},
		{"Bash", map[string]any{"command": "hostname; exit 3"}, "gallery\n[exit code 3", false},
		{"exec", map[string]any{"argv": []string{"printf", "%s|", "$(id)", "a'b", "", "-x"}}, "$(id)|a'b||-x|", false},
		{"exec", map[string]any{"argv": []string{}}, "Error (bad_input)", true},
		{"Read", map[string]any{"file_path": "none"}, "Error (not_found)", true},
		{"Read", map[string]any{"path": "f"}, "Error (bad_input)", true},
	} {
		if text, failed := mcpCall(t.Context(), t, s, test.tool, test.args); !strings.Contains(text, test.says) || failed != test.failed {
			t.Errorf("%s %v: got %q, failed: %v", test.tool, test.args, text, failed)
		}
	}

	reader := h.mcpClient(nil, "-s", "gallery", "--role", "read-only")
	for tool, err := range reader.Tools(t.Context(), nil) {
		if err != nil || slices.Contains([]string{"Bash", "exec", "Write", "Edit"}, tool.Name) {
			t.Errorf("a reader is offered %v, %v", tool, err)
		}
	}
	if r, err := reader.CallTool(t.Context(), &mcp.CallToolParams{Name: "Bash", Arguments: map[string]any{"command": "true"}}); err == nil && !r.IsError {
		t.Errorf("a reader's Bash: %+v", r)
	}

	h.mcpCancel(s, lines)
	h.mcpGone(s)
}

// mcpCancel: progress comes, and a call that the client takes back is ended inside.
func (h *host) mcpCancel(s *mcp.ClientSession, lines <-chan string) {
	t := h.t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	params := &mcp.CallToolParams{Name: "Bash", Arguments: map[string]any{"command": "echo begun; sleep 5151"}}
	params.SetProgressToken("p1")
	go func() {
		_, err := s.CallTool(ctx, params)
		ended <- err
	}()
	select {
	case line := <-lines:
		if !strings.Contains(line, "begun") {
			t.Errorf("progress is %q", line)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no progress")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call succeeded")
	}
	await(t, "the end of the cancelled command", 20*time.Second, func() bool {
		out, _ := h.try("", "cove", "exec", "-s", "gallery", "pgrep", "-f", "5[1]51")
		return out == ""
	})
}

// mcpGone: the sprite is removed; every call says so, and nothing is done here.
func (h *host) mcpGone(s *mcp.ClientSession) {
	t := h.t
	canary := filepath.Join(h.home, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "rm", "--force", "gallery")
	for range 2 {
		if text, failed := mcpCall(t.Context(), t, s, "Write", map[string]any{"file_path": canary, "content": "no"}); !failed || !strings.Contains(text, "sandbox_gone") {
			t.Errorf("got %q, failed: %v", text, failed)
		}
		if text, failed := mcpCall(t.Context(), t, s, "exec", map[string]any{"argv": []string{"rm", canary}}); !failed || !strings.Contains(text, "sandbox_gone") {
			t.Errorf("got %q, failed: %v", text, failed)
		}
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}
