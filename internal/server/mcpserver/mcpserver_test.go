package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

func TestRoles(t *testing.T) {
	reading := "Glob,Grep,Read,checkpoint_list,job_list,job_logs,job_show,job_wait,list,ports"
	for _, test := range []struct{ roles, tools, inside string }{
		{"", "", ""},
		{"read-only", reading, "Glob,Grep,Read"},
		{"edit", "Edit,Glob,Grep,Read,Write,checkpoint_create,checkpoint_list,job_list,job_logs,job_show,job_wait,list,ports", "Edit,Glob,Grep,Read,Write"},
		{"full", strings.Join(slices.Sorted(slices.Values(Names())), ","), "Bash,Edit,Glob,Grep,Read,Write"},
		{"full read-only", reading, "Glob,Grep,Read"},
		{"Bash,ports read-only", "ports", ""},
		{"Bash,rm", "Bash,exec,rm", "Bash"},
		{"exec", "exec", "Bash"},
		{"administrator", "", ""},
		{"read-only administrator", "", ""},
		{"Read,", "", ""},
		{"Full", "", ""},
	} {
		role, err := ParseRole(strings.Fields(test.roles)...)
		if unknown := test.tools == "" && test.roles != ""; (err != nil) != unknown {
			t.Errorf("%q: got error %v", test.roles, err)
		}
		if got := strings.Join(role.Tools(), ","); got != test.tools || role.inside() != test.inside {
			t.Errorf("%q: got %s, and %s inside", test.roles, got, role.inside())
		}
	}
}

func TestBound(t *testing.T) {
	one, some, all := Bound{Sprite: "agent-1"}, Bound{Prefix: "agent-"}, Bound{}
	for _, test := range []struct {
		have, ask, want Bound
		ok              bool
	}{
		{one, all, one, true},
		{some, all, some, true},
		{all, one, one, true},
		{all, some, some, true},
		{some, one, one, true},
		{some, Bound{Prefix: "agent-x"}, Bound{Prefix: "agent-x"}, true},
		{some, Bound{Prefix: "age"}, Bound{}, false},
		{some, Bound{Sprite: "other"}, Bound{}, false},
		{some, Bound{Sprite: "agent-1", Prefix: "other"}, Bound{}, false},
		{one, Bound{Sprite: "agent-12"}, Bound{}, false},
		{one, some, Bound{}, false},
	} {
		if got, ok := test.have.Narrow(test.ask); ok != test.ok || ok && got != test.want {
			t.Errorf("%+v narrowed to %+v: got %+v, %v", test.have, test.ask, got, ok)
		}
	}
	for name, want := range map[string]bool{"agent-1": true, "agent-": true, "agent": false, "": false, "other": false} {
		if some.Has(name) != want || all.Has(name) != (name != "") || one.Has(name) != (name == "agent-1") {
			t.Errorf("%q: %v %v %v", name, some.Has(name), all.Has(name), one.Has(name))
		}
	}
}

// silence is a server that answers nobody.
type silence struct{}

func (silence) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A sandbox that does not answer delays neither the cancellation of a call, nor the end.
func TestSilentSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		sandbox := &cove.Client{Client: &sprites.Client{URL: "http://sandbox", Token: "x", HTTPClient: &http.Client{Transport: silence{}}}}
		s := &Server{Client: sandbox, Within: Bound{Sprite: "paint"}, Roles: []string{Full}}
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context(), in, out) }()
		client, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
		if err != nil {
			t.Fatal(err)
		}
		underWay := func(want int32) {
			t.Helper()
			if synctest.Wait(); s.calls.Load() != want {
				t.Fatalf("%d calls are under way, want %d", s.calls.Load(), want)
			}
		}
		for range 2 { // the second waits for what the first has begun
			ctx, cancel := context.WithCancel(t.Context())
			given := make(chan error, 1)
			go func() {
				_, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "Read", Arguments: map[string]string{"file_path": "x"}})
				given <- err
			}()
			underWay(1)
			cancel()
			if err := <-given; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			underWay(0)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Requests that came before the end of the input are answered, also slow ones.
func TestAnswersAfterInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		slow := roundTrip(func(*http.Request) (*http.Response, error) { <-answer; return nil, errors.New("no sandbox") })
		s := &Server{Client: &cove.Client{Client: &sprites.Client{URL: "http://sandbox", Token: "x", HTTPClient: &http.Client{Transport: slow}}}, Within: Bound{Sprite: "paint"}, Roles: []string{Full}}
		in := strings.NewReader(strings.Join([]string{
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"checkpoint_list","arguments":{}}}`,
		}, "\n") + "\n")
		var out bytes.Buffer
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context(), io.NopCloser(in), nopCloser{&out}) }()
		synctest.Wait()
		close(answer)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, want := range []string{`"id":1`, `"id":2`, `"id":3`, "no sandbox"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s is not in the answers:\n%.2000s", want, &out)
			}
		}
	})
}

// A client that has gone has its calls ended.
func TestUnreadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sandbox := &cove.Client{Client: &sprites.Client{URL: "http://sandbox", Token: "x", HTTPClient: &http.Client{Transport: silence{}}}}
		s := &Server{Client: sandbox, Within: Bound{Sprite: "paint"}, Roles: []string{Full}}
		var gone atomic.Bool
		s.Unread = gone.Load
		in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"checkpoint_list","arguments":{}}}
`)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context(), io.NopCloser(in), nopCloser{io.Discard}) }()
		if synctest.Wait(); s.calls.Load() != 1 {
			t.Errorf("%d calls are under way", s.calls.Load())
		}
		gone.Store(true)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// A line that is not a message is answered with an error, and the session goes on.
func TestNoMessage(t *testing.T) {
	s := &Server{Client: &cove.Client{Client: &sprites.Client{URL: "http://sandbox", Token: "x"}}, Within: Bound{Sprite: "paint"}, Roles: []string{Full}}
	in := strings.NewReader(strings.Join([]string{
		`this is no JSON`, ``,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\r",
		`{"jsonrpc":"2.0","id":2,`, `42`, `{"id":3}`,
		`{"jsonrpc":"2.0","id":4,"method":"ping"}`, " \t" + `{"jsonrpc":"2.0","id":5,"method":"ping"}` + " \r", "\u00a0" + `{"jsonrpc":"2.0","id":6,"method":"ping"}`, `{"half`,
	}, "\n"))
	var out bytes.Buffer
	if err := s.Run(t.Context(), io.NopCloser(in), nopCloser{&out}); err != nil {
		t.Fatal(err)
	}
	var codes []int
	results := 0
	for line := range strings.Lines(out.String()) {
		var m struct {
			ID    any
			Error *struct{ Code int }
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		switch {
		case m.Error == nil:
			results++
		case m.ID != nil:
			t.Errorf("an error with an ID: %s", line)
		default:
			codes = append(codes, m.Error.Code)
		}
	}
	if want := []int{-32700, -32700, -32600, -32600, -32700, -32700}; results != 3 || !slices.Equal(codes, want) {
		t.Errorf("%d results, and the errors %v, want 3 and %v:\n%s", results, codes, want, out.String())
	}
}

// If an answer asks for room, an image counts with its encoded size.
func TestRoom(t *testing.T) {
	var held int64
	ctx := WithHold(t.Context(), func(bytes int64) error {
		if held = bytes; bytes > 100 {
			return errors.New("no room")
		}
		return nil
	})
	for size, want := range map[int]int64{3: copies * (1 + 4), 30: copies * (1 + 40)} {
		result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "x"}, &mcp.ImageContent{Data: make([]byte, size), MIMEType: "image/png"}}}
		if err := room(ctx, result); held != want || (err != nil) != (want > 100) {
			t.Errorf("%d bytes of image: it asks for %d, want %d: %v", size, held, want, err)
		}
	}
}
