package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// MCPClient returns the official SDK's client of `cove mcp` with arguments.
func MCPClient(h *Host, progress func(string), args ...string) *mcp.ClientSession {
	h.T.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			if progress != nil {
				progress(req.Params.Message)
			}
		},
	})
	cmd := h.Command("", "cove", append([]string{"mcp"}, args...)...)
	cmd.Stderr = h.T.Output()
	s, err := client.Connect(h.T.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() {
		if err := s.Close(); err != nil {
			h.T.Errorf("cove mcp ends with %v", err)
		}
	})
	return s
}

// withToken adds a token to requests.
type withToken string

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(w))
	return http.DefaultTransport.RoundTrip(r)
}

// Token makes a token, and returns its id and its secret.
func (h *Host) Token(args ...string) (id, secret string) {
	h.T.Helper()
	out := h.Run("", "cove", append([]string{"token", "create", "--json"}, args...)...)
	return JSONField(h.T, out, "id"), JSONField(h.T, out, "token")
}

// MCPOverHTTP returns the official SDK's client of the server, at the URL that cove mcp
// config prints.
func MCPOverHTTP(h *Host, secret string, progress func(string), args ...string) *mcp.ClientSession {
	h.T.Helper()
	var config struct {
		Servers map[string]struct{ URL string } `json:"mcpServers"`
	}
	out := h.Run("", "cove", append([]string{"mcp", "config", "--http", "-q"}, args...)...)
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		h.T.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			if progress != nil {
				progress(req.Params.Message)
			}
		},
	})
	s, err := client.Connect(h.T.Context(), &mcp.StreamableClientTransport{
		Endpoint: config.Servers["cove"].URL, HTTPClient: &http.Client{Transport: withToken(secret)}, MaxRetries: -1,
	}, nil)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = s.Close() }) // its token may have ended
	return s
}

// ToolSession opens the tools in a sprite of the host's.
func (h *Host) ToolSession(ctx context.Context, sprite, dir string, roles ...string) *tools.Session {
	h.T.Helper()
	s, err := tools.Open(ctx, h.Client().Sprite(sprite), dir, roles...)
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = s.Close() }) // a test that cares closes it itself
	return s
}

// BashIn runs a command with the tool Bash.
func BashIn(t testing.TB, s *tools.Session, input string) tools.BashResult {
	t.Helper()
	r, err := s.Call(t.Context(), "Bash", json.RawMessage(input))
	if err != nil {
		t.Fatalf("Bash %s: %v", input, err)
	}
	var out tools.BashResult
	if err := json.Unmarshal(r.Data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// On returns the host for a part of a test.
func (h *Host) On(t testing.TB) *Host {
	other := *h
	other.T = t
	return &other
}
