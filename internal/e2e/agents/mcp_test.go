package agents

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// mcpCall calls a tool, and returns the text that a model is told.
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

// mcpStdio: P3, F9: cove mcp works with the official SDK's client. The test has a sprite
// of its own.
func mcpStdio(h *e2e.Host) {
	t := h.T
	h.Run("", "cove", "create", "gallery")
	lines := make(chan string, 100)
	s := e2e.MCPClient(h, func(line string) { lines <- line }, "-s", "gallery", "--dir", "/tmp")

	if names := mcpTools(t, s); !slices.Equal(names, []string{
		"Bash", "Edit", "Glob", "Grep", "Read", "Write", "checkpoint_create", "checkpoint_list", "checkpoint_restore",
		"exec", "job_list", "job_logs", "job_show", "job_stop", "job_wait", "ports",
	}) {
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

	mcpReader(t, e2e.MCPClient(h, nil, "-s", "gallery", "--role", "read-only"), map[string]any{})
	mcpCancel(t, s, lines, map[string]any{}, func() bool {
		out, _ := h.Try("", "cove", "exec", "-s", "gallery", "pgrep", "-f", "5[1]51")
		return out != ""
	})
	mcpGone(h, s)
}

// readingTools are the tools that change nothing.
var readingTools = []string{"Read", "Glob", "Grep", "list", "ports", "checkpoint_list", "job_list", "job_show", "job_logs", "job_wait"}

// mcpTools returns the names of a session's tools, sorted. It checks that each tool's
// annotations are right.
func mcpTools(t testing.TB, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
		reading := slices.Contains(readingTools, tool.Name)
		adding := slices.Contains([]string{"create", "fork", "checkpoint_create"}, tool.Name)
		if a := tool.Annotations; a == nil || a.ReadOnlyHint != reading || *a.DestructiveHint == (reading || adding) {
			t.Errorf("%s: annotations %+v", tool.Name, a)
		}
	}
	slices.Sort(names)
	return names
}

// mcpReader: a reader is offered no tool that writes or runs anything. If it calls one
// anyway, it is denied. The arguments args name the sprite.
func mcpReader(t testing.TB, s *mcp.ClientSession, args map[string]any) {
	t.Helper()
	with := func(more map[string]any) map[string]any {
		all := maps.Clone(args)
		maps.Copy(all, more)
		return all
	}
	writing := map[string]map[string]any{
		"Bash": with(map[string]any{"command": "touch /tmp/ran"}), "exec": with(map[string]any{"argv": []string{"touch", "/tmp/ran"}}),
		"Write": with(map[string]any{"file_path": "/tmp/ran", "content": ""}), "Edit": with(map[string]any{"file_path": "/etc/hosts", "old_string": "a", "new_string": "b"}),
		"create": {"name": "agent-new"}, "rm": args, "fork": with(map[string]any{"name": "agent-new"}), "checkpoint_create": args,
		"checkpoint_restore": with(map[string]any{"checkpoint": "v1"}), "job_stop": {"job": "abcdef"}, "Task": {},
	}
	for _, name := range mcpTools(t, s) {
		if !slices.Contains(readingTools, name) {
			t.Errorf("a reader is offered %s", name)
		}
	}
	for tool, args := range writing {
		if text, failed := mcpCall(t.Context(), t, s, tool, args); !failed || !strings.HasPrefix(text, "Error (denied): ") {
			t.Errorf("a reader's %s: %q, failed: %v", tool, text, failed)
		}
	}
	if text, failed := mcpCall(t.Context(), t, s, "Glob", with(map[string]any{"pattern": "/tmp/ran"})); failed || strings.Contains(text, "/tmp/ran\n") {
		t.Errorf("after that: %q, failed: %v", text, failed)
	}
}

// mcpCancel: progress arrives, and a call that the client cancels is ended inside. runs
// says whether its command still runs.
func mcpCancel(t testing.TB, s *mcp.ClientSession, lines <-chan string, args map[string]any, runs func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	args = maps.Clone(args)
	args["command"] = "echo begun; sleep 5151"
	params := &mcp.CallToolParams{Name: "Bash", Arguments: args}
	params.SetProgressToken("p1")
	go func() {
		_, err := s.CallTool(ctx, params)
		ended <- err
	}()
	for last := ""; !strings.Contains(last, "begun"); { // before that, it says that nothing was printed
		select {
		case last = <-lines:
		case <-time.After(e2e.LastResort):
			t.Fatalf("no progress after %q", last)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call succeeded")
	}
	e2e.Await(t, "the end of the cancelled command", func() bool { return !runs() })
}

// mcpGone: the sprite is removed; every call says so, and nothing is done here.
func mcpGone(h *e2e.Host, s *mcp.ClientSession) {
	t := h.T
	canary := filepath.Join(h.Home, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "rm", "--force", "gallery")
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
