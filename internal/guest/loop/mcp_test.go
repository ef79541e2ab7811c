package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// A hosted is an MCP server of the SDK's that can be taken away and come back as
// another one, which knows no session.
type hosted struct {
	url string

	mu    sync.Mutex
	up    http.Handler // nil: connections are cut
	calls []string

	made func(*mcp.Server) // more of it
}

func host(t *testing.T, made func(*mcp.Server)) *hosted {
	t.Helper()
	h := &hosted{made: made}
	h.restart()
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		up := h.up
		h.mu.Unlock()
		if up == nil {
			panic(http.ErrAbortHandler)
		}
		up.ServeHTTP(w, r)
	})
	h.url = serve(t, mux) + "/mcp"
	return h
}

func (h *hosted) restart() {
	server := mcp.NewServer(&mcp.Implementation{Name: "tracker", Version: "1"}, nil)
	add := func(name string, run func(query string) (string, error)) {
		type in struct {
			Query string `json:"query"`
		}
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: "Does " + name + "."}, func(_ context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
			h.mu.Lock()
			h.calls = append(h.calls, name+" "+in.Query)
			h.mu.Unlock()
			text, err := run(in.Query)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
		})
	}
	add("search", func(q string) (string, error) { return "found " + q, nil })
	add("fail", func(string) (string, error) { return "", errors.New("the tracker is full") })
	add("big", func(string) (string, error) { return strings.Repeat("much ", 100_000), nil })
	add("flood", func(string) (string, error) { return strings.Repeat("much ", 4<<20), nil })
	add("destroy", func(string) (string, error) { return "all is gone", nil })
	if h.made != nil {
		h.made(server)
	}
	h.set(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
}

func (h *hosted) set(up http.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.up = up
}

func (h *hosted) called() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.calls, ", ")
}

// serveMCP is a server by standard streams, until their end.
func serveMCP() error {
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	type in struct {
		Query string `json:"query"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "search"}, func(_ context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, any, error) {
		if in.Query == "end" {
			os.Exit(1)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "noted " + in.Query}}}, nil, nil
	})
	return server.Run(context.Background(), &mcp.StdioTransport{})
}

// TestMCPInside: a server in the sprite is a program. The names of its tools say where they
// are. If it ends, the call fails, and the next call starts it again.
func TestMCPInside(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "notes")
	executable.Write(t, program, "#!/bin/sh\nexec '"+self+"' serve-mcp\n")
	query := func(text string) modeltest.Call { return call("sprite__notes__search", object{"query": text}) }
	b := set(t, "anthropic", "read-only", script{turns: []modeltest.Turn{turn("", query("one")), turn("", query("end")), turn("", query("two")), turn("Done.")}})
	b.MCP = []loop.MCPServer{{Name: "notes", Program: program, Tools: []string{loop.AllTools}}}
	b.run(loop.Done)
	var got []string
	for _, e := range b.all() {
		switch e.Type {
		case "tool_result":
			got = append(got, e.Tool+" "+e.Text)
		case "tool_error":
			got = append(got, e.Tool+" "+e.Code)
		}
	}
	if text, want := strings.Join(got, "; "), "sprite:notes.search noted one; sprite:notes.search unreachable; sprite:notes.search noted two"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}

	b = set(t, "anthropic", "read-only", script{})
	b.MCP = []loop.MCPServer{{Name: "notes", Program: program + "-none", Tools: []string{loop.AllTools}}}
	if r := b.run(loop.NoServer); !strings.HasPrefix(r.Text, "sprite:notes: ") {
		t.Errorf("a program that is not there: %q", r.Text)
	}
}

// TestP3: only the tools of the host's MCP servers that were named are offered, under names
// that say where they are. Any other is denied and not called. Answers are bounded. If a
// server is gone, the call fails; once it is back, it is asked again.
func TestP3(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		h := host(t, nil)
		query := func(tool string) modeltest.Call { return call(tool, object{"query": "q"}) }
		b := set(t, provider, "read-only", script{
			turns: []modeltest.Turn{
				turn("", query("host__tracker__search"), query("host__tracker__destroy"), query("search"), query("host__tracker__fail"), query("host__tracker__big"),
					call("host__tracker__search", object{"nonsense": 1})),
				turn("", query("host__tracker__flood")),
				turn("", query("host__tracker__search")),
				turn("", query("host__tracker__search")),
				turn("Done."),
			},
			hold: func(turn int) {
				switch turn {
				case 2:
					h.set(nil)
				case 3:
					h.restart()
				}
			},
		})
		b.MCP = []loop.MCPServer{{Name: "tracker", URL: h.url, Tools: []string{"search", "fail", "big", "flood"}}}
		b.run(loop.Done)

		asked := b.model.Requests()
		if got, want := strings.Join(asked[0].Tools, " "), "Glob Grep Read host__tracker__big host__tracker__fail host__tracker__flood host__tracker__search finish"; got != want {
			t.Errorf("offered %s, want %s", got, want)
		}
		var got []string
		for _, e := range b.all() {
			switch e.Type {
			case "tool_result":
				got = append(got, e.Tool)
			case "tool_error":
				got = append(got, e.Tool+" "+e.Code)
			case "start":
				if !strings.Contains(strings.Join(e.Tools, " "), "host:tracker.search") || strings.Contains(strings.Join(e.Tools, " "), "destroy") {
					t.Errorf("it starts with %v", e.Tools)
				}
			}
		}
		want := "host:tracker.search; host__tracker__destroy denied; search denied; host:tracker.fail failed; host:tracker.big; host:tracker.search failed; " +
			"host:tracker.flood unreachable; host:tracker.search unreachable; host:tracker.search"
		if strings.Join(got, "; ") != want {
			t.Errorf("got %s\nwant %s\n%s", strings.Join(got, "; "), want, b.events.String()[max(0, b.events.Len()-3000):])
		}
		if called := h.called(); called != "search q, fail q, big q, flood q, search q" {
			t.Errorf("the server was asked for %s", called)
		}
		for i, want := range map[int]string{1: "the tracker is full", 3: "does not answer", 4: "found q"} {
			if !strings.Contains(string(asked[i].Body), want) {
				t.Errorf("request %d lacks %q", i, want)
			}
		}
		if n := len(asked[1].Body); n > 400_000 {
			t.Errorf("half a megabyte was told in %d bytes", n)
		}
	})
}

// TestP3Refused: if a server is not there, lacks a tool, or has tools that can't be offered,
// the loop ends before it asks the model.
func TestP3Refused(t *testing.T) {
	twice := func(s *mcp.Server) {
		s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				r, err := next(ctx, method, req)
				if list, ok := r.(*mcp.ListToolsResult); ok {
					list.Tools = append(list.Tools, list.Tools[0])
				}
				return r, err
			}
		})
	}
	tool := func(name, schema string) func(*mcp.Server) {
		return func(s *mcp.Server) {
			s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return nil, errors.New("it was called")
			})
		}
	}
	var redirected atomic.Bool
	elsewhere := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Store(true) }))
	away := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	}))
	for name, test := range map[string]struct {
		made  func(*mcp.Server)
		url   string
		tools string
		says  string
	}{
		"not there":         {url: "http://127.0.0.1:1/", tools: "search", says: "connection refused"},
		"sent elsewhere":    {url: away, tools: "search", says: "host:tracker: "},
		"no such tool":      {tools: "serch", says: `there is no tool "serch"; there are`},
		"twice":             {made: twice, tools: "search", says: "two tools are called"},
		"a long name":       {made: tool(strings.Repeat("n", 60), `{"type":"object"}`), tools: loop.AllTools, says: "no model takes the name"},
		"a name with a dot": {made: tool("a.b", `{"type":"object"}`), tools: "a.b", says: "no model takes the name"},
		"a huge schema":     {made: tool("huge", `{"type":"object","description":"`+strings.Repeat("x", 70_000)+`"}`), tools: "huge", says: "its schema has"},
	} {
		t.Run(name, func(t *testing.T) {
			b := set(t, "anthropic", "full", script{turns: []modeltest.Turn{turn("Done.")}})
			if test.url == "" {
				test.url = host(t, test.made).url
			}
			b.MCP = []loop.MCPServer{{Name: "tracker", URL: test.url, Tools: []string{test.tools}}}
			if r := b.run(loop.NoServer); !strings.Contains(r.Text, test.says) || !strings.HasPrefix(r.Text, "host:tracker: ") {
				t.Errorf("it says %.2000q", r.Text)
			}
			if len(b.model.Requests()) > 0 {
				t.Error("the model was asked")
			}
		})
	}
	if redirected.Load() {
		t.Error("it went where a redirect sent it")
	}
}
