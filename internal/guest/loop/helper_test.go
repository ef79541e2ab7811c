package loop_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// TestMain is also what keeps the commands of Bash, and an MCP server.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"serve-mcp"}) {
		if err := serveMCP(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if slices.Equal(os.Args[1:], []string{"tool", "keep"}) {
		if err := tools.Keep(os.Stdin, os.NewFile(3, "report")); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	cache, err := os.MkdirTemp("", "cove-loop-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(cache)
	os.Setenv("XDG_CACHE_HOME", cache) // where Bash keeps long outputs
	return m.Run()
}

const key = "the-key"

// A scripted is a model server of any API.
type scripted interface {
	http.Handler
	Requests() []modeltest.Request
}

// script configures all the servers.
type script struct {
	turns []modeltest.Turn
	fails []modeltest.Failure
	hold  func(int)
}

// servers are the scripted servers, and where below their address each API is.
var servers = map[string]struct {
	path string
	make func(script) scripted
}{
	"anthropic": {"", func(s script) scripted {
		return &modeltest.Anthropic{Key: key, Turns: s.turns, Fails: s.fails, Hold: s.hold}
	}},
	"openai": {"/v1", func(s script) scripted {
		return &modeltest.OpenAI{Key: key, Turns: s.turns, Fails: s.fails, Hold: s.hold}
	}},
	"gemini": {"", func(s script) scripted {
		return &modeltest.Gemini{Key: key, Turns: s.turns, Fails: s.fails, Hold: s.hold}
	}},
}

// each runs a test against every provider.
func each(t *testing.T, test func(t *testing.T, provider string)) {
	for _, provider := range loop.Providers() {
		t.Run(provider, func(t *testing.T) { test(t, provider) })
	}
}

// A bench is a loop ready to run, with its tools in a folder of its own.
type bench struct {
	*loop.Loop

	t      testing.TB
	dir    string
	model  scripted
	events bytes.Buffer
}

// set makes a loop against a server with a script. It may use what role allows.
func set(t testing.TB, provider, role string, s script) *bench {
	t.Helper()
	model := servers[provider].make(s)
	p, err := loop.Open(provider, loop.Access{BaseURL: serve(t, model) + servers[provider].path, Key: key}, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	parsed, _ := tools.ParseRole(role) // an unknown one allows nothing
	b := &bench{t: t, dir: t.TempDir(), model: model}
	box := &tools.Server{Role: parsed, Dir: b.dir, Keeper: []string{os.Args[0], "tool", "keep"}}
	if err := box.Begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	b.Loop = &loop.Loop{
		Provider: p, Model: "some-model", Tools: box, Dir: b.dir, Events: &b.events,
		Limits: loop.Limits{Time: lastResort, FirstWait: time.Millisecond}, // which no test should take
	}
	return b
}

// run runs the loop, and checks its outcome.
func (b *bench) run(want loop.Outcome) loop.Result {
	b.t.Helper()
	r, err := b.Run(b.t.Context(), "do it")
	if err != nil {
		b.t.Fatal(err)
	}
	if r.Outcome != want {
		b.t.Fatalf("the outcome is %s (%s), want %s\n%s", r.Outcome, r.Text, want, b.events.String())
	}
	return r
}

// all are the events, whose numbers have no gaps.
func (b *bench) all() []loop.Event {
	b.t.Helper()
	var all []loop.Event
	for line := range strings.Lines(b.events.String()) {
		var e loop.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			b.t.Fatalf("an event that is no line of JSON: %v: %s", err, line)
		}
		if e.Seq != int64(len(all)+1) {
			b.t.Fatalf("event %d has the number %d", len(all)+1, e.Seq)
		}
		all = append(all, e)
	}
	return all
}

// of are the events of a type.
func (b *bench) of(kind string) []loop.Event {
	return slices.DeleteFunc(b.all(), func(e loop.Event) bool { return e.Type != kind })
}

// types are the events' types, in order.
func (b *bench) types() string {
	var types []string
	for _, e := range b.all() {
		types = append(types, e.Type)
	}
	return strings.Join(types, " ")
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) read(name string) string {
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

type object = map[string]any

// turn is a turn with a text and calls.
func turn(text string, calls ...modeltest.Call) modeltest.Turn {
	return modeltest.Turn{Text: text, Calls: calls}
}

func call(tool string, input object) modeltest.Call { return modeltest.Call{Tool: tool, Input: input} }

func bash(command string) modeltest.Call { return call("Bash", object{"command": command}) }

// serve starts a server, and returns its URL.
func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}
