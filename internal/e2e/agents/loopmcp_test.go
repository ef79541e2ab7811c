package agents

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// TestLoopMCP: P3: cove's own agent may call the named tools of a server on the host's
// loopback. Its connector is granted to the job only while that runs, adds the key and
// keeps the log. All other tools are denied, and calls to them never reach the server.
func TestLoopMCP(t *testing.T) {
	const trackerKey = "the-real-key-of-the-tracker"
	h := e2e.NewHost(t)
	h.Serve(nil)
	var listed, deleted, strangers atomic.Int32
	tracker := mcp.NewServer(&mcp.Implementation{Name: "tracker", Version: "1"}, nil)
	type in struct {
		State string `json:"state,omitempty"`
	}
	mcp.AddTool(tracker, &mcp.Tool{Name: "list_issues", Description: "Lists issues."}, func(_ context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
		listed.Add(1)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "issue 7 is " + in.State}}}, nil, nil
	})
	mcp.AddTool(tracker, &mcp.Tool{Name: "delete_issue", Description: "Deletes one."}, func(context.Context, *mcp.CallToolRequest, in) (*mcp.CallToolResult, any, error) {
		deleted.Add(1)
		return &mcp.CallToolResult{}, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tracker }, nil)
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+trackerKey {
			strangers.Add(1)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })

	repo := h.Repository("repo", map[string]string{"plan.md": "Note the open issues.\n"})
	during := make(chan string, 1)
	use := func(tool string, input map[string]any) modeltest.Call {
		return modeltest.Call{Tool: tool, Input: input}
	}
	v := vendors([]modeltest.Turn{
		{Calls: []modeltest.Call{use("host__tracker__list_issues", map[string]any{"state": "open"}), use("host__tracker__delete_issue", map[string]any{})}},
		{Calls: []modeltest.Call{use("Bash", map[string]any{"command": "echo 7 >issues && git add -A && git commit -q -m Issues; env"})}},
		{Calls: []modeltest.Call{use("finish", map[string]any{"outcome": "done", "summary": "Noted."})}},
	}, func(turn int) {
		if turn == 1 {
			out, _ := h.Try("", "cove", "connector", "show", "tracker")
			during <- out
		}
	})[1]
	offer(h, v)
	for _, test := range []struct {
		code int
		says string
		args []string
	}{
		{2, "hint: write --mcp host:tracker=list_issues", []string{"--agent", "cove", "--mcp", "tracker=list_issues"}},
		{2, "write --mcp sprite:NAME=COMMAND", []string{"--agent", "cove", "--mcp", "sprite:notes"}},
		{2, "there is no --mcp sprite:notes", []string{"--agent", "cove", "--mcp-env", "notes:TOKEN=x"}},
		{2, "=TOOL,TOOL", []string{"--agent", "cove", "--mcp", "host:tracker"}},
		{1, "use --agent cove", []string{"--agent", "shell", "--mcp", "host:tracker=list_issues"}},
		{1, "cove connector put tracker", []string{"--agent", "cove", "--mcp", "host:tracker=list_issues"}},
		{1, "at most 100 of them, or * alone", []string{"--agent", "cove", "--mcp", "host:tracker=*,list_issues"}},
		{1, "can't be called", []string{"--agent", "cove", "--mcp", "host:tracker=a b"}},
		{1, "can't be a connector's name", []string{"--agent", "cove", "--mcp", "host:a/b=c"}},
	} {
		if out, code := h.Try(repo, "cove", append([]string{"push", "plan.md", "--dirty", "ignore"}, test.args...)...); code != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%v: code %d, %s", test.args, code, out)
		}
	}
	set := h.Command("", "cove", "secret", "set", "tracker")
	set.Stdin = strings.NewReader(trackerKey)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.Run("", "cove", "connector", "put", "tracker", "--upstream", server.URL+"/mcp", "--header", "Authorization: Bearer {secret}")
	job, sprite := h.Push(repo, "plan.md", "--agent", "cove", "--model", v.model, "--mcp", "host:tracker=list_issues")
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	if show := <-during; !strings.Contains(show, "(job "+job+")") {
		t.Errorf("while it ran, the connector was\n%s", show)
	}
	if show := h.Run("", "cove", "connector", "show", "tracker"); !strings.Contains(show, "nobody") {
		t.Errorf("after the job the connector is\n%s", show)
	}
	logs := h.Run("", "cove", "job", "logs", job)
	for _, want := range []string{"-> host:tracker.list_issues", "issue 7 is open", "host__tracker__delete_issue", "denied", "Noted."} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log lacks %q:\n%s", want, logs)
		}
	}
	if listed.Load() != 1 || deleted.Load() != 0 || strangers.Load() != 0 {
		t.Errorf("issues were listed %d times, deleted %d times, and %d requests had no key", listed.Load(), deleted.Load(), strangers.Load())
	}
	if audit := h.Run("", "cove", "connector", "log", "-s", sprite, "tracker"); !strings.Contains(audit, "POST /") || strings.Contains(audit, trackerKey) {
		t.Errorf("the connector's log is\n%s", audit)
	}
	for _, r := range v.requests() {
		if strings.Contains(string(r.Body), trackerKey) {
			t.Error("the tracker's key was seen inside")
		}
	}
	if got := strings.Join(v.requests()[0].Tools, " "); !strings.Contains(got, "host__tracker__list_issues") || strings.Contains(got, "delete") {
		t.Errorf("offered was %s", got)
	}
}
