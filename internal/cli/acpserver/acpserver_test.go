package acpserver

import (
	"bufio"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove/internal/lib/acp"
)

// talk is a relay between a test that is the editor and the test that is the agent.
type talk struct {
	t             *testing.T
	relay         *relay
	toRelay       io.Writer     // of the editor
	editor, agent *bufio.Reader // what either is told
	ended         chan error    // of the agent's side
}

func newTalk(t *testing.T) (*talk, io.WriteCloser) {
	t.Helper()
	editorIn, toRelay := io.Pipe()
	editorOut, fromRelay := io.Pipe()
	agentIn, toAgent := io.Pipe()
	agentOut, fromAgent := io.Pipe()
	r := &relay{
		folders: Folders{Here: "/home/ada/site", There: "/home/sprite/site", Name: "paint"},
		editor:  &acp.Writer{W: fromRelay}, agent: &acp.Writer{W: toAgent}, pending: map[string]string{},
	}
	k := &talk{t: t, relay: r, toRelay: toRelay, editor: bufio.NewReader(editorOut), agent: bufio.NewReader(agentIn), ended: make(chan error, 1)}
	go func() { _ = r.fromEditor(editorIn) }()
	go func() { k.ended <- r.fromAgent(agentOut) }()
	t.Cleanup(func() {
		for _, c := range []io.Closer{editorIn, editorOut, agentIn, agentOut} {
			_ = c.Close()
		}
	})
	return k, fromAgent
}

func (k *talk) send(w io.Writer, line string) {
	k.t.Helper()
	if _, err := io.WriteString(w, line+"\n"); err != nil {
		k.t.Fatal(err)
	}
}

// told is the next line, as canonical JSON.
func (k *talk) told(r *bufio.Reader) string {
	k.t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		k.t.Fatal(err)
	}
	return canonical(k.t, line)
}

func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestRelayEditor checks the messages that the agent gets for those of the editor.
func TestRelayEditor(t *testing.T) {
	k, _ := newTalk(t)
	for _, test := range []struct{ name, says, told string }{
		{"what the editor can do is not told", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true},"terminal":true,"elicitation":{"url":{}}}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}`},
		{"a folder, and servers of this machine", `{"jsonrpc":"2.0","id":"x","method":"session/new","params":{"cwd":"/home/ada/site/sub/","mcpServers":[{"name":"db","command":"/usr/bin/db","args":[],"env":[{"name":"KEY","value":"secret"}]}],"additionalDirectories":["/etc"]}}`,
			`{"jsonrpc":"2.0","id":"x","method":"session/new","params":{"cwd":"/home/sprite/site/sub","mcpServers":[]}}`},
		{"a prompt", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"/home/ada/site"},{"type":"resource_link","name":"a b","uri":"file:///home/ada/site/a%20b.go"},{"type":"resource_link","name":"w","uri":"https://example.org/home/ada/site"}]}}`,
			`{"jsonrpc":"2.0","id":12345678901234567890,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text","text":"/home/ada/site"},{"type":"resource_link","name":"a b","uri":"file:///home/sprite/site/a%20b.go"},{"type":"resource_link","name":"w","uri":"https://example.org/home/ada/site"}]}}`},
		{"a cancel", `{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}`, `{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}`},
		{"an answer", `{"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}`, `{"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}`},
	} {
		k.send(k.toRelay, test.says)
		if diff := cmp.Diff(canonical(t, test.told), k.told(k.agent)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	for _, cwd := range []string{"/home/ada", "/home/ada/site-old", "/home/ada/site/../x", "/"} {
		k.send(k.toRelay, `{"jsonrpc":"2.0","id":9,"method":"session/new","params":{"cwd":"`+cwd+`","mcpServers":[]}}`)
		if got := k.told(k.editor); !strings.Contains(got, `"code":-32602`) || !strings.Contains(got, "--project") {
			t.Errorf("%s: the editor is told %s", cwd, got)
		}
	}
}

// TestRelayHostile checks the editor's side against messages of a hostile agent.
func TestRelayHostile(t *testing.T) {
	k, fromAgent := newTalk(t)
	ask := func(id, method string) {
		t.Helper()
		k.send(k.toRelay, `{"jsonrpc":"2.0","id":`+id+`,"method":"`+method+`","params":{}}`)
		k.told(k.agent)
	}
	ask("1", "initialize")
	ask("2", "session/prompt")
	for _, test := range []struct{ name, says, told string }{
		{"a login that is a command", `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[{"id":"x","_meta":{"terminal-auth":{"command":"rm"}}}],"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true},"_meta":{"x":1}}}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[],"agentCapabilities":{"loadSession":true}}}`},
		{"what nobody asked for, then paths", `{"jsonrpc":"2.0","id":77,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":1,"result":{"again":true}}` + "\n" + `garbage` + "\n" +
			`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"t","rawInput":{"path":"/home/sprite/site/raw"},"locations":[{"path":"/home/sprite/site/a.go","line":3},{"path":"/home/sprite/site/../.ssh/id"},{"path":"/home/ada/.bashrc"}],"content":[{"type":"diff","path":"/home/sprite/site/b.go","newText":"x","_meta":{"k":1}}]},"_meta":{}}}`,
			`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"t","rawInput":{"path":"/home/sprite/site/raw"},"locations":[{"path":"/home/ada/site/a.go","line":3},{"path":"/sprites/paint/home/sprite/.ssh/id"},{"path":"/sprites/paint/home/ada/.bashrc"}],"content":[{"type":"diff","path":"/home/ada/site/b.go","newText":"x"}]}}}`},
		{"an error with instructions", `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Log in","data":{"authMethods":[{"command":"rm"}]}}}`,
			`{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Log in: {\"authMethods\":[{\"command\":\"rm\"}]}"}}`},
		{"a request for permission", `{"jsonrpc":"2.0","id":5,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"c"},"options":[]}}`,
			`{"jsonrpc":"2.0","id":5,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"c"},"options":[]}}`},
	} {
		k.send(fromAgent, test.says)
		if diff := cmp.Diff(canonical(t, test.told), k.told(k.editor)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	for _, method := range []string{"fs/read_text_file", "fs/write_text_file", "terminal/create", "elicitation/create", "_host/run", "mcp/connect"} {
		k.send(fromAgent, `{"jsonrpc":"2.0","id":6,"method":"`+method+`","params":{"path":"/home/ada/site/secret","command":"id"}}`)
		if got := k.told(k.agent); !strings.Contains(got, `"code":-32601`) {
			t.Errorf("%s: the agent is told %s", method, got)
		}
	}
	// Notifications that are none of these go nowhere: the next that the editor hears is this.
	k.send(fromAgent, `{"jsonrpc":"2.0","method":"_host/run","params":{}}`)
	ask("8", "session/prompt")
	ask("9", "session/prompt")
	go func() { _, _ = io.WriteString(fromAgent, strings.Repeat("x", acp.MaxMessage+2)+"\n") }()
	err := <-k.ended
	if err == nil || !strings.Contains(err.Error(), "longer than 8 MiB") {
		t.Fatalf("a giant line: %v", err)
	}
	go k.relay.end(err)
	for range 2 {
		if got := k.told(k.editor); !strings.Contains(got, `"code":"agent_ended"`) {
			t.Errorf("the editor is told %s", got)
		}
	}
	k.send(k.toRelay, `{"jsonrpc":"2.0","id":10,"method":"session/new","params":{"cwd":"/home/ada/site"}}`)
	if got := k.told(k.editor); !strings.Contains(got, `"id":10`) || !strings.Contains(got, `"code":"agent_ended"`) {
		t.Errorf("after the end the editor is told %s", got)
	}
}

// FuzzRelay: whatever an agent says, the editor gets no more than it may.
func FuzzRelay(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"result":{"_meta":{},"authMethods":[{}]}}`, `{"id":2,"method":"fs/read_text_file","params":{"path":"/x"}}`,
		`{"method":"session/update","params":{"update":{"content":[{"uri":"file:///etc/passwd"}],"path":"/a/../b"}}}`, `[]`, `{"id":{"a":1},"method":"session/request_permission","params":7}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var editor, agent strings.Builder
		r := &relay{
			folders: Folders{Here: "/home/ada/site", There: "/home/sprite/site", Name: "paint"},
			editor:  &acp.Writer{W: &editor}, agent: &acp.Writer{W: &agent}, pending: map[string]string{"1": "initialize"},
		}
		_ = r.fromAgent(strings.NewReader(line))
		for told := range strings.Lines(editor.String()) {
			var m acp.Message
			if err := json.Unmarshal([]byte(told), &m); err != nil {
				t.Fatalf("%v in %q", err, told)
			}
			if m.Method != "" && m.Method != "session/update" && m.Method != "session/request_permission" && m.Method != "$/cancel_request" {
				t.Errorf("the editor is asked %q", told)
			}
			var v any
			if json.Unmarshal([]byte(told), &v) == nil && has(v, "_meta") {
				t.Errorf("the editor is told %q", told)
			}
		}
	})
}

func has(v any, key string) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, each := range v {
			if k == key || has(each, key) {
				return true
			}
		}
	case []any:
		for _, each := range v {
			if has(each, key) {
				return true
			}
		}
	}
	return false
}

func TestFolders(t *testing.T) {
	real := t.TempDir()
	f := Folders{Here: real, There: "/srv/app", Name: "paint"}
	for _, test := range []struct {
		here, there string
		inside      bool
	}{
		{real, "/srv/app", true},
		{real + "/", "/srv/app", true},
		{real + "/a/../b", "/srv/app/b", true},
		{real + "x", real + "x", false},
		{filepath.Dir(real), filepath.Dir(real), false},
	} {
		if got, inside := f.there(test.here); got != test.there || inside != test.inside {
			t.Errorf("%s: got %s, %v", test.here, got, inside)
		}
	}
	for there, here := range map[string]string{
		"/srv/app/x": real + "/x", "/srv/app": real, "/srv/apple": "/sprites/paint/srv/apple", "/srv/app/../x": "/sprites/paint/srv/x", "/": "/sprites/paint",
	} {
		if got := f.toEditor(there); got != here {
			t.Errorf("%s: got %s, want %s", there, got, here)
		}
	}
}

// Whatever path an agent sends, the editor finds no file of this machine there, except in
// the project.
func TestStrangePaths(t *testing.T) {
	f := Folders{Here: "/home/ada/site", There: "/home/sprite/site", Name: "paint"}
	for _, test := range []struct{ key, text, want string }{
		{"path", "../../etc/passwd", "/sprites/paint/home/etc/passwd"},
		{"path", "src/a.go", "/home/ada/site/src/a.go"},
		{"path", "~/.ssh/id_rsa", "/home/ada/site/~/.ssh/id_rsa"},
		{"path", "", ""},
		{"uri", "file:///etc/passwd\n", "file:///sprites/paint"},
		{"uri", "\tfile:///etc/passwd", "file:///sprites/paint"},
		{"uri", " file:///etc/passwd", "file:///sprites/paint"},
		{"uri", "file:///etc/pass%zzwd", "file:///sprites/paint"},
		{"uri", "file:etc/passwd", "file:///sprites/paint"},
		{"uri", "FILE://host/etc/passwd", "file:///sprites/paint/etc/passwd"},
		{"uri", "//host/etc/passwd", "file:///sprites/paint/etc/passwd"},
		{"uri", "../../etc/passwd", "file:///sprites/paint/home/etc/passwd"},
		{"uri", "file:///home/sprite/site/a%20b.go#L3", "file:///home/ada/site/a%20b.go#L3"},
		{"uri", "https://example.org/a?b#c", "https://example.org/a?b#c"},
	} {
		v := map[string]any{"deep": []any{map[string]any{test.key: test.text}}}
		f.rewrite(v, f.toEditor)
		if got := v["deep"].([]any)[0].(map[string]any)[test.key]; got != test.want {
			t.Errorf("%s %q: got %q, want %q", test.key, test.text, got, test.want)
		}
	}
}
