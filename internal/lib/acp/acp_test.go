package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/acp"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// program is the scripted agent.
var program string

// TestMain also makes this program the keeper of terminals' commands.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"tool", "keep"}) {
		if err := tools.Keep(os.Stdin, os.NewFile(3, "report")); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "cove-acp-")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-o", program, "./testdata/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the other tests build it, so that once is enough
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build the agent: %v\n%s", err, out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// log takes what several goroutines write.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *log) events(t *testing.T) []acp.Event {
	t.Helper()
	var all []acp.Event
	for line := range strings.Lines(l.String()) {
		if len(line) > 60<<10 {
			t.Errorf("an event of %d bytes: %.100s", len(line), line)
		}
		var e acp.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, e)
	}
	return all
}

// ran is a job that has run.
type ran struct {
	dir    string
	err    error
	events []acp.Event
	noise  string
}

// texts are what the agent said.
func (r ran) texts() string {
	var b strings.Builder
	for _, e := range r.events {
		if e.Type == "text" {
			b.WriteString(e.Text + "\n")
		}
	}
	return b.String()
}

func (r ran) of(kind string) []acp.Event {
	return slices.DeleteFunc(slices.Clone(r.events), func(e acp.Event) bool { return e.Type != kind })
}

// result is the last event, if it is the result.
func (r ran) result() *acp.Event {
	if n := len(r.events); n > 0 && r.events[n-1].Type == "result" {
		return &r.events[n-1]
	}
	return nil
}

// run has the scripted agent do something.
func run(t *testing.T, ctx context.Context, edit func(*acp.Job), script ...string) ran {
	t.Helper()
	var events, noise log
	j := &acp.Job{
		Argv: []string{program}, Dir: t.TempDir(), Prompt: "Do this:\n! " + strings.Join(script, "\n! "),
		Keeper: []string{os.Args[0], "tool", "keep"}, Events: &events, Noise: &noise,
	}
	if edit != nil {
		edit(j)
	}
	err := j.Run(ctx)
	return ran{j.Dir, err, events.events(t), noise.String()}
}

func TestRun(t *testing.T) {
	t.Parallel()
	r := run(t, t.Context(), nil, "can", "write sub/a.txt It's $& \"äöü\"", "read sub/a.txt", "run echo $GREETING, $(pwd); echo err >&2; exit 3",
		"run kill -9 $$", "read none.txt", "read /dev/zero", "say Done.")
	if r.err != nil {
		t.Errorf("it ended with %v", r.err)
	}
	if text, err := os.ReadFile(filepath.Join(r.dir, "sub/a.txt")); err != nil || string(text) != "It's $& \"äöü\"\n" {
		t.Errorf("a.txt: %q, %v", text, err)
	}
	said := r.texts()
	for _, want := range []string{
		"fs true, terminal true\n", "read: It's $& \"äöü\"\n", "run: hello, " + r.dir + "\nerr, code 3\n", ", signal SIGKILL\n",
		`"code":-32002`, "/dev/zero is no regular file", "Done.\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it did not say %q:\n%s", want, said)
		}
	}
	if s := r.of("session"); len(s) != 1 || s[0].SessionID != "the-session" || s[0].Agent != "scripted 1" || s[0].Loaded {
		t.Errorf("the session: %+v", s)
	}
	if got := r.result(); got == nil || got.StopReason != "end_turn" || got.SessionID != "the-session" || got.Usage == nil || *got.Usage != (acp.Usage{InputTokens: 100, OutputTokens: 20}) {
		t.Errorf("the result: %+v", got)
	}
	calls, updates := r.of("tool_call"), r.of("tool_update")
	if len(calls) != 6 || calls[0].Title != "write sub/a.txt It's $& \"äöü\"" || calls[0].Kind != "execute" || !slices.Equal(calls[0].Paths, []string{filepath.Join(r.dir, "sub/a.txt")}) {
		t.Errorf("the tools: %+v", calls)
	}
	if i := slices.IndexFunc(updates, func(e acp.Event) bool { return e.ID == "call-5" }); i < 0 || updates[i].Status != "failed" || !strings.Contains(updates[i].Text, "no such file") && !strings.Contains(updates[i].Text, "not_found") && updates[i].Text == "" {
		t.Errorf("the tools' ends: %+v", updates)
	}
}

// The agent is told which servers it must start.
func TestRunServers(t *testing.T) {
	t.Parallel()
	r := run(t, t.Context(), func(j *acp.Job) { j.Servers = []acp.Server{{Name: "notes", Program: "/d/mcp/notes"}} })
	if got := r.result(); r.err == nil || got == nil || !strings.Contains(got.Error, "I was given the MCP server notes, /d/mcp/notes") {
		t.Errorf("got %v, %+v", r.err, r.events)
	}
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		edit   func(*acp.Job)
		script string
		result *acp.Event // nil: none may be there
		notice string
	}{
		{"refusal", nil, "stop refusal", &acp.Event{StopReason: "refusal"}, ""},
		{"an error", nil, "fail out of credit", &acp.Event{Error: "out of credit"}, ""},
		{"crash", nil, "crash", nil, "the agent has ended before it answered: it exited with code 7"},
		{"no agent", func(j *acp.Job) { j.Argv = []string{"/none"} }, "", nil, "start the agent: "},
		{"no ACP", func(j *acp.Job) { j.Argv = []string{"sh", "-c", "echo usage: x; exit 2"} }, "", nil, "it exited with code 2"},
		{"unknown session", func(j *acp.Job) { j.Session = "other" }, "", &acp.Event{Error: "there is no session other"}, ""},
		{"a giant answer", nil, "giantanswer", &acp.Event{Error: "its answer is longer than 8 MiB"}, ""},
		{"no such command", nil, "dance", &acp.Event{Error: `the script says \"dance\"`}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, t.Context(), test.edit, test.script)
			got := r.result()
			switch {
			case r.err == nil:
				t.Error("it succeeded")
			case (got == nil) != (test.result == nil):
				t.Errorf("the result: %+v", got)
			case got != nil && (got.StopReason != test.result.StopReason || !strings.Contains(got.Error, test.result.Error) || (got.Error == "") != (test.result.Error == "")):
				t.Errorf("the result: %+v", got)
			case test.result != nil && !errors.Is(r.err, acp.ErrFailed):
				t.Errorf("it ended with %v", r.err)
			}
			notices := r.of("notice")
			if test.notice != "" && (len(notices) == 0 || !strings.Contains(notices[len(notices)-1].Text, test.notice)) {
				t.Errorf("notices: %+v", notices)
			}
		})
	}
}

// TestRunNoise: lines that are not messages, are too long, or too many, harm nothing.
func TestRunNoise(t *testing.T) {
	t.Parallel()
	r := run(t, t.Context(), nil, "garbage", "unknown", "giant 200000", "giant 9000000", "giantask", "flood", "say Done.")
	if r.err != nil || r.result() == nil {
		t.Errorf("it ended with %v, %+v", r.err, r.result())
	}
	for _, want := range []string{"Loading model...\n", "{\"half\":\n", "[1,2]\n", "\x00\xff\x1b[31mred\n", "(a message is longer than 8 MiB, and was left out)"} {
		if !strings.Contains(r.noise, want) {
			t.Errorf("the noise lacks %q: %.300q", want, r.noise)
		}
	}
	said := r.texts()
	if n := strings.Count(said, "g"); n < 200_000 || n > 220_000 {
		t.Errorf("%d letters of the long line", n)
	}
	if !strings.Contains(said, "giant request: ") || strings.Contains(said, "no error") || !strings.Contains(said, "flood 4999\nDone.\n") {
		t.Errorf("it said %.200s … %s", said, said[max(0, len(said)-200):])
	}
	if u := r.of("update"); len(u) != 1 || u[0].Title != "hologram" {
		t.Errorf("updates: %+v", u)
	}
}

func TestRunLoad(t *testing.T) {
	t.Parallel()
	r := run(t, t.Context(), func(j *acp.Job) { j.Session = "the-session" }, "say New.")
	if s := r.of("session"); r.err != nil || len(s) != 1 || !s[0].Loaded || s[0].SessionID != "the-session" {
		t.Errorf("%v, %+v", r.err, s)
	}
	if said := r.texts(); strings.Contains(said, "said before") || !strings.Contains(said, "New.") {
		t.Errorf("it said %.500s", said)
	}
}

// TestRunCancel: the agent is told. If it does not react, it is ended with its terminals.
func TestRunCancel(t *testing.T) {
	t.Parallel()
	const any = "any" // it may be an error: its tool was cancelled, too
	for _, test := range []struct {
		name, script, result string
		argv                 []string
	}{
		{"hears", "hang", "cancelled", nil},
		{"is deaf", "deaf", "", nil},
		{"is stubborn", "deaf", "", []string{"env", "STUBBORN=1", program}},
		{"runs a command", "run echo begun >begun; sleep 7373 & sleep 7373", any, nil},
		{"asks", "ask nobody\n! hang", any, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var events log
			dir := t.TempDir()
			answers, _ := io.Pipe()
			j := &acp.Job{
				Argv: []string{program}, Dir: dir, Prompt: "! say begun\n! " + test.script, Permissions: acp.Ask, Answers: answers,
				Keeper: []string{os.Args[0], "tool", "keep"}, Events: &events, Noise: io.Discard, Grace: 5 * time.Second,
			}
			switch test.script {
			case "deaf":
				j.Grace = 300 * time.Millisecond
			case "hang":
				j.Grace = lastResort
			}
			if test.argv != nil {
				j.Argv = test.argv
			}
			ended := make(chan error, 1)
			go func() { ended <- j.Run(ctx) }()
			for deadline := time.Now().Add(lastResort); ; <-time.After(10 * time.Millisecond) {
				_, err := os.Stat(filepath.Join(dir, "begun"))
				log := events.String()
				if strings.Contains(log, `"begun"`) && (!strings.HasPrefix(test.script, "run") || err == nil) && (!strings.HasPrefix(test.script, "ask") || strings.Contains(log, "permission_request")) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it does not begin: %s", log)
				}
			}
			cancel()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it succeeded")
				}
			case <-time.After(lastResort):
				t.Fatal("it does not end")
			}
			r := ran{events: events.events(t)}
			if got := r.result(); test.result != any && ((got == nil) != (test.result == "") || got != nil && got.StopReason != test.result) {
				t.Errorf("the result: %+v", got)
			}
			for deadline := time.Now().Add(lastResort); test.name == "runs a command"; <-time.After(10 * time.Millisecond) { // it was killed, and may be dying
				left, _ := exec.Command("pgrep", "-f", "sleep 7373").Output()
				if len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("left: %s", left)
				}
			}
		})
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		permissions        acp.Permissions
		said, status, what string
	}{
		{acp.Allow, "ask: selected yes\n", "allowed", "Yes\x1b[1m"},
		{acp.Deny, "ask: selected no\n", "denied", "No"},
		{acp.Ask, "ask: cancelled\n", "cancelled", ""}, // there is nobody
	} {
		r := run(t, t.Context(), func(j *acp.Job) { j.Permissions = test.permissions }, "ask to remove all")
		if p := r.of("permission"); r.err != nil || !strings.Contains(r.texts(), test.said) || len(p) != 1 || p[0].Status != test.status || p[0].Option != test.what || p[0].Title != "to remove all" {
			t.Errorf("%s: %v, %+v, it said %s", test.permissions, r.err, p, r.texts())
		}
	}
}

// TestAsk: questions come one by one, and only an answer to the one that is open counts.
func TestAsk(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	var events log
	j := &acp.Job{
		Argv: []string{program}, Dir: t.TempDir(), Prompt: "! ask one\n! askbare two\n! say Done.", Permissions: acp.Ask, Answers: r,
		Events: &events, Noise: io.Discard,
	}
	ended := make(chan error, 1)
	go func() { ended <- j.Run(t.Context()) }()
	asked := func(n int) acp.Event {
		t.Helper()
		for deadline := time.Now().Add(lastResort); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
			if all := (ran{events: events.events(t)}).of("permission_request"); len(all) == n {
				return all[n-1]
			}
		}
		t.Fatalf("question %d does not come: %s", n, events.String())
		return acp.Event{}
	}
	first := asked(1)
	if first.Title != "one" || !strings.Contains(first.Text, "rm -rf") || len(first.Options) != 3 || first.Options[1] != (acp.Option{ID: "2", Name: "Yes\x1b[1m", Kind: "allow_once"}) {
		t.Errorf("the question: %+v", first)
	}
	for _, line := range []string{"nonsense", `{"id":"77","option":"1"}`, `{"id":"` + first.ID + `","option":"9"}`, `{"id":"` + first.ID + `","option":"1"}`} {
		fmt.Fprintln(w, line)
	}
	second := asked(2) // it names its tool only
	if second.Title != "askbare two" || second.Kind != "execute" || second.Text != `{"command":"rm -r build"}` || second.Call != "call-2" {
		t.Errorf("the question about a tool that was told of: %+v", second)
	}
	fmt.Fprintf(w, `{"id":%q,"option":"3"}`+"\n", second.ID)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got := ran{events: events.events(t)}
	if said := got.texts(); !strings.Contains(said, "ask: selected forever\naskbare: selected no\nDone.\n") {
		t.Errorf("it said %s", said)
	}
	if n := len(got.of("notice")); n != 2 {
		t.Errorf("%d notices of answers that were passed over", n)
	}
}
