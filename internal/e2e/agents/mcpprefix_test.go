package agents

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestMCPPrefix uses cove mcp for the sprites of a prefix, with the official SDK's
// client.
func TestMCPPrefix(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "gallery")
	s := e2e.MCPClient(h, nil, "--prefix", "agent-", "--dir", "/home/sprite")
	managed(h, s)
	managedJobs(h, s)
	reader := e2e.MCPClient(h, nil, "--prefix", "agent-", "--role", "read-only")
	mcpReader(t, reader, map[string]any{"sprite": "agent-1"})
	listed := e2e.MCPClient(h, nil, "--prefix", "agent-", "--role", "list,Read")
	if names := mcpTools(t, listed); !slices.Equal(names, []string{"Read", "list"}) {
		t.Errorf("the tools are %v", names)
	}
	if out := h.Run("", "cove", "list", "-q"); !strings.Contains(out, "gallery") || strings.Contains(out, "agent-2") {
		t.Errorf("the sprites are now %q", out)
	}
	for _, test := range []struct{ args, says string }{
		{"--role writer", "the role \"writer\" is unknown"}, {"--prefix agent- -s gallery", "one of -s and --prefix"}, {"--prefix Agent", "no sprite's name begins so"},
	} {
		if out, code := h.Try("", "cove", append([]string{"mcp"}, strings.Fields(test.args)...)...); code != 2 || !strings.Contains(out, test.says) {
			t.Errorf("%s: %d, %s", test.args, code, out)
		}
	}
}

// mcpData calls a tool that must succeed, and returns its data.
func mcpData[T any](t testing.TB, s *mcp.ClientSession, tool string, args map[string]any) (data T) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	if r.IsError || r.StructuredContent == nil {
		text, _ := json.Marshal(r)
		t.Fatalf("%s %v: %s", tool, args, text)
	}
	text, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type (
	named   struct{ Name, Status, URL string }
	listing struct{ Sprites []named }
)

// managed does all that a client of the prefix agent- may do. It leaves the sprite
// agent-1.
func managed(h *e2e.Host, s *mcp.ClientSession) {
	t := h.T
	t.Helper()
	if names := mcpTools(t, s); !slices.Equal(names, []string{
		"Bash", "Edit", "Glob", "Grep", "Read", "Write", "checkpoint_create", "checkpoint_list", "checkpoint_restore",
		"create", "exec", "fork", "job_list", "job_logs", "job_show", "job_stop", "job_wait", "list", "ports", "rm",
	}) {
		t.Errorf("the tools are %v", names)
	}
	if made := mcpData[named](t, s, "create", map[string]any{"name": "agent-1", "network": "none", "memory_mb": 512}); made.Name != "agent-1" || made.URL == "" {
		t.Errorf("made %+v", made)
	}
	if list := mcpData[listing](t, s, "list", nil); len(list.Sprites) != 1 || list.Sprites[0].Name != "agent-1" {
		t.Errorf("listed %+v", list)
	}
	one := func(more map[string]any) map[string]any {
		args := map[string]any{"sprite": "agent-1"}
		maps.Copy(args, more)
		return args
	}
	mcpDenied(t, s)
	for _, test := range []struct {
		tool string
		args map[string]any
		says string
	}{
		{"Write", one(map[string]any{"file_path": "f", "content": "one\n"}), "[created f: 4 bytes"},
		{"Bash", one(map[string]any{"command": "hostname; pwd"}), "agent-1\n/home/sprite\n"},
	} {
		if text, failed := mcpCall(t.Context(), t, s, test.tool, test.args); failed || !strings.Contains(text, test.says) {
			t.Errorf("%s %v: %q, failed: %v", test.tool, test.args, text, failed)
		}
	}

	made := mcpData[struct{ ID string }](t, s, "checkpoint_create", one(map[string]any{"comment": "with f"}))
	mcpCall(t.Context(), t, s, "Bash", one(map[string]any{"command": "rm f"}))
	mcpData[named](t, s, "fork", one(map[string]any{"name": "agent-2", "checkpoint": made.ID}))
	if text, failed := mcpCall(t.Context(), t, s, "Read", map[string]any{"sprite": "agent-2", "file_path": "f"}); failed || !strings.Contains(text, "one") {
		t.Errorf("the fork's file: %q, failed: %v", text, failed)
	}
	if back := mcpData[struct{ Checkpoint, Replaced string }](t, s, "checkpoint_restore", one(map[string]any{"checkpoint": made.ID})); back.Replaced == "" {
		t.Errorf("restored %+v", back)
	}
	list := mcpData[struct {
		Checkpoints []struct{ ID, Comment string }
	}](t, s, "checkpoint_list", one(nil))
	if !slices.Contains(list.Checkpoints, struct{ ID, Comment string }{made.ID, "with f"}) {
		t.Errorf("the checkpoints are %+v", list)
	}
	managedPorts(h, s, one)
	mcpData[struct{ Removed string }](t, s, "rm", map[string]any{"sprite": "agent-2"})
	if text, failed := mcpCall(t.Context(), t, s, "Read", map[string]any{"sprite": "agent-2", "file_path": "f"}); !failed || !strings.Contains(text, "sandbox_gone") {
		t.Errorf("a file of what was removed: %q, failed: %v", text, failed)
	}
}

// mcpDenied: each tool denies sprites outside the prefix agent-.
func mcpDenied(t testing.TB, s *mcp.ClientSession) {
	t.Helper()
	for _, test := range []struct {
		tool string
		args map[string]any
		code string
	}{
		{"create", map[string]any{"name": "other"}, "denied"},
		{"rm", map[string]any{"sprite": "gallery"}, "denied"},
		{"Read", map[string]any{"sprite": "gallery", "file_path": "/etc/passwd"}, "denied"},
		{"Bash", map[string]any{"sprite": "../gallery", "command": "true"}, "denied"},
		{"exec", map[string]any{"sprite": "gallery", "argv": []string{"true"}}, "denied"},
		{"fork", map[string]any{"sprite": "agent-1", "name": "gallery-2"}, "denied"},
		{"fork", map[string]any{"sprite": "gallery", "name": "agent-2"}, "denied"},
		{"checkpoint_create", map[string]any{"sprite": "gallery"}, "denied"},
		{"checkpoint_restore", map[string]any{"sprite": "gallery", "checkpoint": "v1"}, "denied"},
		{"checkpoint_list", map[string]any{"sprite": "gallery"}, "denied"},
		{"ports", map[string]any{"sprite": "agen"}, "denied"},
		{"Read", map[string]any{"sprite": "agent-/../gallery", "file_path": "/etc/passwd"}, ""},
		{"Read", map[string]any{"file_path": "/etc/passwd"}, "bad_input"},
		{"Read", map[string]any{"sprite": "", "file_path": "/etc/passwd"}, "bad_input"},
		{"Read", map[string]any{"sprite": []string{"agent-1"}, "file_path": "/etc/passwd"}, "bad_input"},
		{"create", map[string]any{"name": "agent-3", "labels": []string{"team"}}, "bad_input"},
		{"job_show", map[string]any{"job": "abcdef"}, "not_found"},
	} {
		if text, failed := mcpCall(t.Context(), t, s, test.tool, test.args); !failed || !strings.HasPrefix(text, "Error ("+test.code) {
			t.Errorf("%s %v: %q, failed: %v", test.tool, test.args, text, failed)
		}
	}
}

func managedPorts(h *e2e.Host, s *mcp.ClientSession, one func(map[string]any) map[string]any) {
	t := h.T
	t.Helper()
	background := `python3 -c 'import socket, time; s = socket.create_server(("127.0.0.1", 3111)); print("open", flush=True); time.sleep(6000)'`
	if text, failed := mcpCall(t.Context(), t, s, "Bash", one(map[string]any{"command": background, "run_in_background": true})); failed {
		t.Fatal(text)
	}
	type port struct {
		Port    int
		Address string
		Forward string
	}
	var got struct {
		URL   string
		Ports []port
	}
	e2e.Await(t, "the port", func() bool {
		got = mcpData[struct {
			URL   string
			Ports []port
		}](t, s, "ports", one(nil))
		return slices.Contains(got.Ports, port{3111, "127.0.0.1", "cove proxy -s agent-1 3111"})
	})
	if !strings.Contains(got.URL, "agent-1.") {
		t.Errorf("the ports are %+v", got)
	}
}

// managedJobs has a job that the person began in agent-1, and one elsewhere.
func managedJobs(h *e2e.Host, s *mcp.ClientSession) {
	t := h.T
	t.Helper()
	repo := h.Repository("repo", map[string]string{"plan.md": "```sh\necho painted; sleep 6000\n```\n", "quick.md": "```sh\necho quick\n```\n"})
	job, _ := h.Push(repo, "plan.md", "--agent", "shell", "-s", "agent-1")
	other, _ := h.Push(repo, "quick.md", "--agent", "shell", "-s", "gallery")
	type info struct {
		ID, State, Sprite string
		Last              int64 `json:"last_seq"`
	}
	if list := mcpData[struct{ Jobs []info }](t, s, "job_list", nil); len(list.Jobs) != 1 || list.Jobs[0].ID != job || list.Jobs[0].Sprite != "agent-1" {
		t.Errorf("the jobs are %+v", list)
	}
	for _, tool := range []string{"job_show", "job_logs", "job_wait", "job_stop"} {
		if text, failed := mcpCall(t.Context(), t, s, tool, map[string]any{"job": other}); !failed || !strings.HasPrefix(text, "Error (not_found)") {
			t.Errorf("%s of a job outside: %q, failed: %v", tool, text, failed)
		}
	}
	type page struct {
		Lines []struct {
			Seq        int64
			Type, Text string
		}
		Next int64
	}
	e2e.Await(t, "what it says", func() bool {
		log := mcpData[page](t, s, "job_logs", map[string]any{"job": job})
		return slices.ContainsFunc(log.Lines, func(l struct {
			Seq        int64
			Type, Text string
		}) bool {
			return l.Text == "painted"
		})
	})
	if log := mcpData[page](t, s, "job_logs", map[string]any{"job": job, "from": 2, "limit": 1}); len(log.Lines) != 1 || log.Lines[0].Seq != 2 || log.Next != 3 {
		t.Errorf("one line: %+v", log)
	}
	if got := mcpData[info](t, s, "job_wait", map[string]any{"job": job, "seconds": 1}); got.State != "running" {
		t.Errorf("waited for a second: %+v", got)
	}
	mcpData[info](t, s, "job_stop", map[string]any{"job": job})
	if got := mcpData[info](t, s, "job_wait", map[string]any{"job": job, "seconds": 120}); got.State != "cancelled" {
		t.Errorf("stopped: %+v", got)
	}
	if got := mcpData[info](t, s, "job_show", map[string]any{"job": job}); got.State != "cancelled" || got.Last == 0 {
		t.Errorf("shown: %+v", got)
	}
	h.Run(repo, "cove", "job", "wait", other)
}
