package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// withToken adds a token to requests.
type withToken string

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(w))
	return http.DefaultTransport.RoundTrip(r)
}

// mcpClient is the official SDK's client, by a token.
func mcpClient(t *testing.T, s *covetest.Server, secret, query string) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: s.URL + "/mcp" + query, HTTPClient: &http.Client{Transport: withToken(secret)}, MaxRetries: -1,
	}, nil)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() }) // its token may have ended
	return session
}

// mcpText calls a tool, and returns what a model is told.
func mcpText(t *testing.T, s *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	must(t, err)
	return r.Content[0].(*mcp.TextContent).Text
}

func mcpNames(t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		must(t, err)
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// TestMCPScopes: the token's rights bound the tools' rights, and the query only narrows them.
func TestMCPScopes(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("agent-1")
	s.Create("other")
	for _, test := range []struct {
		scope cove.TokenScope
		verbs []string
		query string
		tools string
		calls map[string]string // "TOOL ARGUMENTS": how the answer begins
	}{
		{cove.TokenScope{Prefix: "agent-"}, []string{"read"}, "", "checkpoint_list job_list job_logs job_show job_wait list ports", map[string]string{
			"list {}":                    `{"sprites":[{"name":"agent-1"`,
			`create {"name":"agent-2"}`:  "Error (denied): the token does not have the verb write",
			`Read {"sprite":"agent-1"}`:  "Error (denied): the token does not have the verb exec",
			`ports {"sprite":"other"}`:   "Error (denied)",
			`ports {"sprite":"agent-9"}`: "Error (not_found)",
		}},
		{cove.TokenScope{Prefix: "agent-"}, []string{"read", "write"}, "?prefix=agent-x&role=list,create", "create list", map[string]string{
			`create {"name":"agent-2"}`:  "Error (denied)",
			`create {"name":"agent-x2"}`: `{"name":"agent-x2"`,
			`rm {"sprite":"agent-x2"}`:   "Error (denied)",
		}},
		{cove.TokenScope{Sprite: "agent-1"}, []string{"read", "write"}, "", "checkpoint_create checkpoint_list checkpoint_restore job_list job_logs job_show job_stop job_wait ports", map[string]string{
			"checkpoint_list {}":                   `{"checkpoints":[`,
			`checkpoint_list {"sprite":"agent-1"}`: "Error (bad_input)",
			`rm {"sprite":"agent-1"}`:              "Error (denied)",
			"list {}":                              "Error (denied)",
		}},
		{cove.TokenScope{All: true}, []string{"read"}, "?sprite=other&role=read-only&role=list,ports,Read", "ports", nil},
	} {
		tok := token(t, s, test.scope, test.verbs...)
		session := mcpClient(t, s, tok.Secret, test.query)
		if got := strings.Join(mcpNames(t, session), " "); got != test.tools {
			t.Errorf("%+v %v %s: the tools are %s", test.scope, test.verbs, test.query, got)
		}
		for what, want := range test.calls {
			tool, text, _ := strings.Cut(what, " ")
			var args map[string]any
			must(t, json.Unmarshal([]byte(text), &args))
			if got := mcpText(t, session, tool, args); !strings.HasPrefix(got, want) {
				t.Errorf("%+v %v %s: %s: got %q", test.scope, test.verbs, test.query, what, got)
			}
		}
	}

	tok := token(t, s, cove.TokenScope{Prefix: "agent-"}, "read", "write", "exec")
	for query, want := range map[string]struct {
		status int
		code   string
	}{
		"?prefix=age": {403, "forbidden"}, "?prefix=other": {403, "forbidden"}, "?sprite=other": {403, "forbidden"}, "?sprite=other&prefix=agent-": {403, "forbidden"},
		"?role=administrator": {400, "bad_request"}, "?role=read-only&role=": {400, "bad_request"}, "?token=x": {400, "bad_request"},
	} {
		ask(t, s, "POST /mcp"+query, initialize, bearer(tok), asMCP("")).refused(t, want.status, want.code)
	}
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// asMCP makes a request one of a session's; the empty one is none.
func asMCP(session string) edit {
	return func(r *http.Request) {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set("Mcp-Session-Id", session)
		}
	}
}

// begin begins a session, by hand.
func begin(t *testing.T, s *covetest.Server, tok cove.Token) string {
	t.Helper()
	a := ask(t, s, "POST /mcp", initialize, bearer(tok), asMCP(""))
	id := a.Header.Get("Mcp-Session-Id")
	if a.StatusCode != 200 || len(id) < 26 {
		t.Fatalf("initialize: %d %q %s", a.StatusCode, id, a.body)
	}
	return id
}

const listTools = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`

// waitCall waits for a job that does not end, and says at once that it does.
func waitCall(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"job_wait","arguments":{"job":"abcdef","seconds":3600},"_meta":{"progressToken":` + id + `}}}`
}

// TestMCPSessions: a session is its token's alone, and ends with it, by DELETE, and when
// it is not used.
func TestMCPSessions(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	addJob(t, s, "abcdef", "paint")
	all := cove.TokenScope{All: true}
	mine, others := token(t, s, all, "read"), token(t, s, all, "read")
	id := begin(t, s, mine)

	ask(t, s, "POST /mcp", initialize, asMCP(""), without).refused(t, 401, "unauthorized")
	ask(t, s, "POST /mcp", listTools, asMCP(id), without).refused(t, 401, "unauthorized")
	for _, what := range []string{"POST /mcp", "GET /mcp", "DELETE /mcp"} {
		ask(t, s, what, listTools, bearer(others), asMCP(id)).refused(t, 404, "session_not_found")
		ask(t, s, what, listTools, bearer(mine), asMCP(strings.ToLower(id))).refused(t, 404, "session_not_found")
		ask(t, s, what, listTools, bearer(mine), asMCP(id), func(r *http.Request) { r.Host = "rebound.example" }).refused(t, 403, "forbidden")
		ask(t, s, what, listTools, bearer(mine), asMCP(id), header("Origin", "http://rebound.example")).refused(t, 403, "forbidden")
	}
	ask(t, s, "GET /mcp", "", bearer(mine), asMCP("")).refused(t, 400, "bad_request")
	if a := ask(t, s, "PUT /mcp", "", bearer(mine), asMCP(id)); a.StatusCode != 405 {
		t.Errorf("PUT: %d", a.StatusCode)
	}
	if a := ask(t, s, "POST /mcp", listTools, bearer(mine), asMCP(id)); a.StatusCode != 200 || !strings.Contains(string(a.body), `"job_wait"`) {
		t.Errorf("after all that: %d %s", a.StatusCode, a.body)
	}
	if a := ask(t, s, "DELETE /mcp", "", bearer(mine), asMCP(id)); a.StatusCode != 204 {
		t.Errorf("DELETE: %d", a.StatusCode)
	}
	ask(t, s, "POST /mcp", listTools, bearer(mine), asMCP(id)).refused(t, 404, "session_not_found")

	id = begin(t, s, mine)
	streams := []stream{
		ofBody(t, "GET", open(t, s, "GET /mcp", "", bearer(mine), asMCP(id))),
		ofBody(t, "a call", open(t, s, "POST /mcp", waitCall("3"), bearer(mine), asMCP(id))),
	}
	must(t, s.Client().DeleteToken(t.Context(), mine.ID))
	ended(t, streams)
	ask(t, s, "POST /mcp", listTools, bearer(mine), asMCP(id)).refused(t, 401, "unauthorized")
}

// TestMCPIdle: an unused session ends. A running call counts as use; an open stream does not.
func TestMCPIdle(t *testing.T) {
	for idle := 2 * time.Second; !mcpIdle(t, idle); idle *= 6 { // on a slow machine one is over too soon
		failIf(t, idle > lastResort, "no session lasts for %v", idle)
	}
}

// mcpIdle reports whether there was time to begin with a session before it was over.
func mcpIdle(t *testing.T, idle time.Duration) (inTime bool) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MCPIdle = idle }})
	s.Create("paint")
	addJob(t, s, "abcdef", "paint")
	tok := token(t, s, cove.TokenScope{All: true}, "read")
	late := false
	begin := func() string {
		t.Helper()
		from := time.Now()
		a := ask(t, s, "POST /mcp", initialize, bearer(tok), asMCP(""))
		id := a.Header.Get("Mcp-Session-Id")
		bad := a.StatusCode != 200 || len(id) < 26
		late = late || bad && time.Since(from) >= idle // it was over before its first request was noted
		failIf(t, bad && !late, "initialize: %d %q %s", a.StatusCode, id, a.body)
		return id
	}
	used := begin()
	if late {
		return false
	}
	call := open(t, s, "POST /mcp", waitCall("3"), bearer(tok), asMCP(used))
	unused := begin()
	if late {
		return false
	}
	get := open(t, s, "GET /mcp", "", bearer(tok), asMCP(unused))
	if call.StatusCode != 200 || get.StatusCode != 200 {
		return false
	}
	over := time.AfterFunc(lastResort, func() { _ = get.Body.Close() })
	defer over.Stop()
	_, _ = io.Copy(io.Discard, get.Body) // to its end, or to being late
	ask(t, s, "POST /mcp", listTools, bearer(tok), asMCP(unused)).refused(t, 404, "session_not_found")
	if a := ask(t, s, "POST /mcp", listTools, bearer(tok), asMCP(used)); a.StatusCode != 200 { // older than the other
		t.Errorf("a session in use: %d %s", a.StatusCode, a.body)
	}
	must(t, call.Body.Close())
	return true
}

func ofBody(t *testing.T, what string, resp *http.Response) stream {
	t.Helper()
	failIf(t, resp.StatusCode != 200, "%s: %d", what, resp.StatusCode)
	return stream{what, func() error {
		_, err := resp.Body.Read(make([]byte, 100))
		return err
	}}
}

// TestMCPCounts: a session's streams count as calls of its token, which may have a quarter of
// them.
func TestMCPCounts(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams = 8 }})
	evil, good := token(t, s, cove.TokenScope{All: true}, "read"), token(t, s, cove.TokenScope{All: true}, "read")
	var ids []string
	for range 7 {
		ids = append(ids, begin(t, s, evil))
	}
	for _, id := range ids[:6] {
		open(t, s, "GET /mcp", "", bearer(evil), asMCP(id))
	}
	wantRetry(t, ask(t, s, "GET /mcp", "", bearer(evil), asMCP(ids[6])))
	wantRetry(t, ask(t, s, "POST /mcp", listTools, bearer(evil), asMCP(ids[6])))
	begin(t, s, good)
}

// goroutines waits until the server has no more goroutines than most.
func goroutines(t *testing.T, s *covetest.Server, most int) {
	t.Helper()
	for deadline := time.Now().Add(lastResort); ; <-time.After(20 * time.Millisecond) {
		v, err := s.Client().Version(t.Context())
		must(t, err)
		if v.Goroutines <= most {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, more than %d", v.Goroutines, most)
		}
	}
}

// TestMCPHostile is a client with a token that does what it can.
func TestMCPHostile(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	addJob(t, s, "abcdef", "paint")
	one := cove.TokenScope{Sprite: "paint"}
	evil, good := token(t, s, one, "read"), token(t, s, one, "read")
	kept := begin(t, s, good)
	v, err := s.Client().Version(t.Context())
	must(t, err)

	// Sessions: those unused make room, those of others do not.
	first := begin(t, s, evil)
	for range 1000 {
		begin(t, s, evil)
	}
	ask(t, s, "POST /mcp", listTools, bearer(evil), asMCP(first)).refused(t, 404, "session_not_found")
	if a := ask(t, s, "POST /mcp", listTools, bearer(good), asMCP(kept)); a.StatusCode != 200 {
		t.Errorf("another's session: %d %s", a.StatusCode, a.body)
	}
	goroutines(t, s, v.Goroutines+64*10)
	for range 200 { // these never begin
		ask(t, s, "POST /mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, bearer(evil), asMCP(""))
		ask(t, s, "POST /mcp", `{"jsonrpc":"2.0","id":1,"method":"nothing"}`, bearer(evil), asMCP(""))
	}
	goroutines(t, s, v.Goroutines+64*10)

	// Messages: huge, broken, and a great many at once.
	id := begin(t, s, evil)
	post := func(body string, edits ...edit) answer {
		t.Helper()
		return ask(t, s, "POST /mcp", body, append([]edit{bearer(evil), asMCP(id)}, edits...)...)
	}
	post(strings.Repeat(" ", 16<<20)+listTools).refused(t, 413, "too_large")
	for _, body := range []string{"", "{", "[]", "null", `"x"`, strings.Repeat("[", 100000), `{"jsonrpc":"2.0","id":{},"method":"ping"}`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`} {
		if a := post(body); a.StatusCode != 400 {
			t.Errorf("%.20q: %d %s", body, a.StatusCode, a.body)
		}
	}
	if a := post(listTools, header("Content-Type", "text/plain")); a.StatusCode != 415 {
		t.Errorf("as a form might send it: %d %s", a.StatusCode, a.body)
	}
	var batch []string
	for i := range 5000 {
		batch = append(batch, waitCall(fmt.Sprint(1000+i)))
	}
	resp := open(t, s, "POST /mcp", "["+strings.Join(batch, ",")+"]", bearer(evil), asMCP(id), header("Mcp-Protocol-Version", "2025-03-26"))
	refusals := 0
	for lines := bufio.NewScanner(resp.Body); refusals < len(batch)-64 && lines.Scan(); {
		if strings.Contains(lines.Text(), "Error (busy)") {
			refusals++
		}
	}
	failIf(t, refusals != len(batch)-64, "%d of %d calls at once are refused", refusals, len(batch))
	must(t, resp.Body.Close())
	goroutines(t, s, v.Goroutines+64*10)
	mcpReplays(t, s, evil, id)
	names := mcpClient(t, s, token(t, s, cove.TokenScope{All: true}, "read", "exec").Secret, "")
	for i := range 300 { // what is not there takes no place
		args := map[string]any{"sprite": fmt.Sprintf("none-%d", i), "file_path": "f"}
		if got := mcpText(t, names, "Read", args); !strings.HasPrefix(got, "Error (sandbox_gone)") {
			t.Fatalf("sprite %d that is not there: %q", i, got)
		}
	}
	if a := post(listTools); a.StatusCode != 200 {
		t.Errorf("after all that: %d %s", a.StatusCode, a.body)
	}
}

// mcpReplays: a message that was sent once can't be sent, or read, again.
func mcpReplays(t *testing.T, s *covetest.Server, tok cove.Token, id string) {
	t.Helper()
	var under *http.Response
	for deadline := time.Now().Add(lastResort); ; <-time.After(20 * time.Millisecond) { // the batch's calls may not have ended yet
		under = open(t, s, "POST /mcp", waitCall("7"), bearer(tok), asMCP(id))
		event := make([]byte, 1000)
		n, err := under.Body.Read(event)
		if failIf(t, n == 0, "no answer, but %v", err); !strings.Contains(string(event[:n]), "busy") {
			break
		}
		failIf(t, time.Now().After(deadline), "calls whose request was cut go on")
	}
	again := ask(t, s, "POST /mcp", waitCall("7"), bearer(tok), asMCP(id))
	failIf(t, again.StatusCode != 400 || !strings.Contains(string(again.body), "duplicate"), "a call under way again: %d %s", again.StatusCode, again.body)
	failIf(t, under.StatusCode != 200, "the call itself: %d", under.StatusCode)
	must(t, under.Body.Close())
	for _, last := range []string{"_1", "x_1", "x", "_-1", "_99999999999999999999"} {
		a := ask(t, s, "GET /mcp", "", bearer(tok), asMCP(id), header("Last-Event-Id", last))
		failIf(t, a.StatusCode != 400, "what was said before, from %q: %d %s", last, a.StatusCode, a.body)
	}
	open(t, s, "GET /mcp", "", bearer(tok), asMCP(id))
	second := ask(t, s, "GET /mcp", "", bearer(tok), asMCP(id))
	failIf(t, second.StatusCode != 409, "a second stream: %d %s", second.StatusCode, second.body)
	a := ask(t, s, "POST /mcp", listTools, bearer(tok), asMCP(id), header("Cove-Post", "x"))
	failIf(t, a.StatusCode != 200, "with a header of cove's own: %d %s", a.StatusCode, a.body)
	twice := ask(t, s, "POST /mcp", initialize, bearer(tok), asMCP(id))
	failIf(t, !strings.Contains(string(twice.body), `"error"`) && twice.StatusCode == 200, "a second beginning: %d %s", twice.StatusCode, twice.body)
}
