package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withToken adds a token to requests.
type withToken string

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(w))
	return http.DefaultTransport.RoundTrip(r)
}

// token makes one, and returns its id and its secret.
func (h *host) token(args ...string) (id, secret string) {
	h.t.Helper()
	out := h.run("", "cove", append([]string{"token", "create", "--json"}, args...)...)
	return jsonField(h.t, out, "id"), jsonField(h.t, out, "token")
}

// mcpOverHTTP is the official SDK's client of the server, by the URL that cove mcp
// config prints.
func (h *host) mcpOverHTTP(secret string, progress func(string), args ...string) *mcp.ClientSession {
	h.t.Helper()
	var config struct {
		Servers map[string]struct{ URL string } `json:"mcpServers"`
	}
	out := h.run("", "cove", append([]string{"mcp", "config", "--http", "-q"}, args...)...)
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		h.t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			if progress != nil {
				progress(req.Params.Message)
			}
		},
	})
	s, err := client.Connect(h.t.Context(), &mcp.StreamableClientTransport{
		Endpoint: config.Servers["cove"].URL, HTTPClient: &http.Client{Transport: withToken(secret)}, MaxRetries: -1,
	}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() }) // its token may have ended
	return s
}

// TestMCPOverHTTP is the server's /mcp with real sandboxes and the official SDK's
// client: all that a client of a prefix may do, roles, progress, cancellation, the
// token's end, and the sandbox's.
func TestMCPOverHTTP(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "gallery")
	id, secret := h.token("agents", "--prefix", "agent-")
	lines := make(chan string, 100)
	s := h.mcpOverHTTP(secret, func(line string) { lines <- line }, "--prefix", "agent-")
	h.managed(s)
	mcpReader(t, h.mcpOverHTTP(secret, nil, "--prefix", "agent-", "--role", "read-only"), map[string]any{"sprite": "agent-1"})
	one := map[string]any{"sprite": "agent-1"}
	for len(lines) > 0 {
		<-lines
	}
	runs := func() bool {
		out, _ := h.try("", "cove", "exec", "-s", "agent-1", "pgrep", "-f", "5[1]51")
		return out != ""
	}
	mcpCancel(t, s, lines, one, runs)

	// The token ends in the middle of a call, and with it what the call has begun.
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
	case <-time.After(lastResort):
		t.Fatal("no progress")
	}
	h.run("", "cove", "token", "rm", id)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a call outlived its token")
		}
	case <-time.After(lastResort):
		t.Fatal("a call goes on without a token")
	}
	await(t, "the end of what it had begun", func() bool { return !runs() })
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "list", Arguments: map[string]any{}}); err == nil {
		t.Error("a call without a token succeeded")
	}

	// The sandbox ends, and nothing is done here instead.
	canary := filepath.Join(h.home, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, secret = h.token("one", "-s", "agent-1")
	s = h.mcpOverHTTP(secret, nil, "-s", "agent-1", "--role", "edit", "--dir", "/tmp")
	if names := mcpTools(t, s); slices.Contains(names, "Bash") || slices.Contains(names, "list") || !slices.Contains(names, "Write") {
		t.Errorf("the tools are %v", names)
	}
	if text, failed := mcpCall(t.Context(), t, s, "Write", map[string]any{"file_path": "f", "content": "x"}); failed {
		t.Error(text)
	}
	h.run("", "cove", "rm", "--force", "agent-1")
	for range 2 {
		if text, failed := mcpCall(t.Context(), t, s, "Write", map[string]any{"file_path": canary, "content": "no"}); !failed || !strings.Contains(text, "sandbox_gone") {
			t.Errorf("got %q, failed: %v", text, failed)
		}
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}
