package agents_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// greeter is a definition that has every key.
const greeter = `name = "greeter"
description = "greets"
version = "1.4.0"
argv = ["greeter", "--plan", "{prompt_file}", "--session", "{session}"]
resume = ["greeter", "--resume={session}"]
interactive = ["greeter", "{prompt_file}"]
stdin = "prompt"
install = [["npm", "install", "--prefix", "{home}/.local", "greeter@1.4.0"], ["greeter", "--check"]]
setup = [["cp", "{files}/sub/config.json", "{workdir}/.."]]
verify = ["greeter", "--version"]
connectors = ["anthropic"]
keys = ["ANTHROPIC_API_KEY"]
env = { WHERE = "in {workdir}" }
needs = { disk = "200M", memory = "2G" }
turn = { match = { type = "assistant" }, once = "message.id" }

[files]
"sub/config.json" = '{"dir": "{workdir}", "other": {}}'

[events]
format = "jsonl"
ok = { match = { type = "end", ok = "true" }, text = "say" }
failed = { match = { type = "end", ok = "false" }, text = "error.message" }
usage = { match = { type = "usage" }, input_tokens = "n.in", output_tokens = "n.out", cost_usd = "cost", turns = "turns" }
session = { match = { type = "start" }, id = "session.id" }

[[events.rules]]
match = { type = "text" }
kind = "text"
text = "say"

[[events.rules]]
match = { type = "tool", done = "true" }
kind = "tool_end"
tool = "name"
text = "output"
failed = "bad"

[[events.rules]]
match = { type = "tool" }
kind = "tool_start"
tool = "name"
text = "input"
`

func define(t *testing.T, text string) *agents.Custom {
	t.Helper()
	c, err := agents.ParseDefinition("greeter.toml", text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefinitionPrepare(t *testing.T) {
	task := agents.Task{Plan: "Greet {workdir}.\n", Dir: "/j", Workdir: "/w", Home: "/h", Skill: &cove.Skill{Text: "Alone.\n"}}
	c := define(t, greeter)
	got, err := c.Prepare(task)
	if err != nil {
		t.Fatal(err)
	}
	session := got.Argv[len(got.Argv)-1]
	if parts := strings.Split(session, "-"); len(session) != 36 || len(parts) != 5 || parts[2][0] != '8' {
		t.Errorf("the session is %q", session)
	}
	want := agents.Work{
		Files: map[string]agents.File{
			"prompt.md":             {Data: []byte("Alone.\n\n# The plan\n\nGreet {workdir}.\n"), Mode: 0o644},
			"agent/sub/config.json": {Data: []byte(`{"dir": "/w", "other": {}}`), Mode: 0o644},
		},
		Install: [][]string{{"npm", "install", "--prefix", "/h/.local", "greeter@1.4.0"}, {"greeter", "--check"}},
		Setup:   [][]string{{"cp", "/j/agent/sub/config.json", "/w/.."}},
		Argv:    []string{"/bin/sh", "-c", `in=$1; shift; exec "$@" <"$in"`, "greeter", "/j/prompt.md", "greeter", "--plan", "/j/prompt.md", "--session", session},
		Env:     []string{"WHERE=in /w"}, Verify: []string{"greeter", "--version"},
		Version: "1.4.0", Needs: agents.Needs{DiskMB: 200, MemoryMB: 2048},
		Turn:       &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant"}, Once: "message.id"},
		Connectors: []string{"anthropic"}, Keys: []string{"ANTHROPIC_API_KEY"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	direct := task
	direct.Direct = true
	there := define(t, strings.Replace(greeter, `env = {`, `env = { URL = "http://anthropic.connect.internal",`, 1))
	for _, test := range []struct {
		task agents.Task
		want []string
	}{{task, []string{"URL=http://anthropic.connect.internal", "WHERE=in /w"}}, {direct, []string{"WHERE=in /w"}}} {
		if got, err := there.Prepare(test.task); err != nil || !slices.Equal(got.Env, test.want) {
			t.Errorf("the environment: got %q, %v, want %q", got.Env, err, test.want)
		}
	}
	task.Interactive = true
	if got, err := c.Prepare(task); err != nil || !slices.Equal(got.Argv, []string{"greeter", "/j/prompt.md"}) {
		t.Errorf("in a terminal: %q, %v", got.Argv, err)
	}
	if again, err := agents.Of("greeter", c.Definition()); err != nil || again.Name() != "greeter" {
		t.Errorf("from its own text: %v, %v", again, err)
	}
	if _, err := agents.Of("claude", c.Definition()); err == nil {
		t.Error("it is taken for another agent")
	}
}

// TestDefinitionResume: a session is resumed by the name that the agent gave it, and by
// nothing else.
func TestDefinitionResume(t *testing.T) {
	c := define(t, greeter)
	task := agents.Task{Plan: "And Grace.\n", Dir: "/j", Workdir: "/w", Home: "/h", Session: "ada-1"}
	got, err := c.Prepare(task)
	if err != nil || !slices.Equal(got.Argv[4:], []string{"/j/prompt.md", "greeter", "--resume=ada-1"}) {
		t.Errorf("got %q, %v", got.Argv, err)
	}
	task.Session = "--yolo"
	if got, err := c.Prepare(task); err == nil {
		t.Errorf("with an option as its session: %q", got.Argv)
	}
	read := func(lines ...string) string {
		r := c.Read()
		for _, line := range lines {
			r.Event(cove.JobEvent{Type: "output", Stream: "stdout", Text: line})
		}
		return r.(agents.Rememberer).Session()
	}
	const start = `{"type":"start","session":{"id":"ada-1"}}`
	for _, test := range []struct{ name, got, want string }{
		{"said", read("noise", start), "ada-1"},
		{"said again", read(start, `{"type":"start","session":{"id":"ada-2"}}`), "ada-2"},
		{"not said", read(`{"type":"text"}`), ""},
		{"an option", read(start, `{"type":"start","session":{"id":"--yolo"}}`), "ada-1"},
		{"a path", read(`{"type":"start","session":{"id":"../x"}}`), ""},
		{"an object", read(`{"type":"start","session":{"id":{"a":1}}}`), ""},
		{"elsewhere", read(`{"type":"text","session":{"id":"ada-1"}}`), ""},
	} {
		if test.got != test.want {
			t.Errorf("%s: the session is %q, want %q", test.name, test.got, test.want)
		}
	}
	plain := define(t, "name='x'\nargv=['x','{prompt_file}']\nverify=['x']\n")
	if _, ok := plain.Read().(agents.Rememberer); ok {
		t.Error("one that can't resume is a Rememberer")
	}
	if _, err := plain.Prepare(agents.Task{Plan: "x", Session: "ada-1"}); err == nil {
		t.Error("one that can't resume does")
	}
}

func TestDefinitionJudge(t *testing.T) {
	out := func(lines ...string) (log []cove.JobEvent) {
		for _, line := range lines {
			log = append(log, cove.JobEvent{Type: "output", Stream: "stdout", Text: line})
		}
		return log
	}
	ok, failed := `{"type":"end","ok":true,"say":"all done"}`, `{"type":"end","ok":false,"error":{"message":"no key"}}`
	for _, test := range []struct {
		name  string
		log   []cove.JobEvent
		code  int
		want  cove.Outcome
		usage *cove.Usage
	}{
		{"done", out("noise", `{"type":"text","say":"hi"}`, ok), 0, cove.Outcome{Kind: agents.Success}, nil},
		{"says nothing", out(`{"type":"text"}`), 0, cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}, nil},
		{"failed, and says 0", out(failed), 0, cove.Outcome{Kind: agents.AgentFailed, Reason: "no key"}, nil},
		{"the last word counts", out(failed, ok), 0, cove.Outcome{Kind: agents.Success}, nil},
		{"done, and a code", out(ok), 3, cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 3 though it reported that it was done", ExitCode: 3}, nil},
		{"a line that is too long", out(`{"type":"end","ok":true,"say":"` + strings.Repeat("x", 1<<20) + `"}`), 0, cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}, nil},
		{"an object for a value", out(`{"type":{"a":"end"},"ok":["true"]}`), 0, cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}, nil},
		{"a code", nil, 127, cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 127", ExitCode: 127}, nil},
		{"on another stream", []cove.JobEvent{{Type: "output", Stream: "stderr", Text: ok}}, 0, cove.Outcome{Kind: agents.NoResult, Reason: "ended without saying that it was done"}, nil},
		{"usage is added up", out(`{"type":"usage","n":{"in":10,"out":1},"cost":0.5,"turns":1}`, `{"type":"usage","n":{"in":5,"out":"x"},"cost":-1,"turns":2}`, ok), 0,
			cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 15, OutputTokens: 1, CostUSD: 0.5, Turns: 3}},
	} {
		_, got, usage := judge(define(t, greeter), test.log, cove.JobEnd{Phase: "done", ExitCode: test.code})
		if got != test.want || !cmp.Equal(usage, test.usage) {
			t.Errorf("%s: got %+v, %+v", test.name, got, usage)
		}
	}
	events, _, _ := judge(define(t, greeter), out(`{"type":"tool","name":"sh","input":{"a":1}}`, `{"type":"tool","done":true,"name":"sh","output":"x\ny","bad":true}`, `{"type":"new"}`, ok), cove.JobEnd{Phase: "done"})
	want := []agents.Event{
		{Kind: agents.KindToolStart, Tool: "sh", Text: `{"a":1}`}, {Kind: agents.KindToolEnd, Tool: "sh", Text: "x …", Failed: true},
		{Kind: agents.KindResult, Text: "all done"},
	}
	if diff := cmp.Diff(want, events, short); diff != "" {
		t.Error(diff)
	}
	both := define(t, strings.Replace(greeter, `type = "end", ok = "false"`, `type = "end"`, 1))
	if _, got, _ := judge(both, out(ok), cove.JobEnd{Phase: "done"}); got.Kind != agents.AgentFailed {
		t.Errorf("a line that is ok and failed: got %+v", got)
	}
	plain := define(t, "name='x'\nargv=['x','{prompt_file}']\nverify=['x']\n")
	for code, want := range map[int]string{0: agents.Success, 1: agents.AgentFailed} {
		if events, got, _ := judge(plain, out(failed), cove.JobEnd{Phase: "done", ExitCode: code}); got.Kind != want || len(events) > 0 {
			t.Errorf("without events, exit code %d: %+v, %v", code, got, events)
		}
	}
}

// A definition that is wrong, or means harm, says where, and is not used.
func TestDefinitionProblems(t *testing.T) {
	const sound = "name = 'x'\nargv = ['x', '{prompt_file}']\nverify = ['x']\n"
	for _, test := range []struct{ name, text, want string }{
		{"no TOML", "name = \n", "f.toml:1: "},
		{"unknown key", sound + "argw = ['y']\n", "f.toml:4: argw: there is no such key"},
		{"unknown key, deep", sound + "[events]\nformat = 'jsonl'\n[events.ok]\nmatch = { a = 'b' }\nword = 1\n", "f.toml:8: events.ok.word: there is no such key"},
		{"wrong type", sound + "connectors = 'anthropic'\n", "f.toml:4"},
		{"another agent's name", "name = 'claude'\nargv = ['x', '{prompt_file}']\nverify = ['x']\n", "f.toml:1: name: claude is the name of an agent of cove's own"},
		{"a path for a name", "argv = ['x', '{prompt_file}']\nname = '../x'\nverify = ['x']\n", "f.toml:2: name: "},
		{"nothing to start", "name = 'x'\nverify = ['x']\n", "argv: it has no command that starts the agent"},
		{"no plan", "name = 'x'\nverify = ['x']\nargv = ['x']\n", "f.toml:3: argv: the agent would never get its plan"},
		{"no plan to resume with", sound + "resume = ['x', '{session}']\nevents = { format = 'jsonl', ok = { match = { a = 'b' } }, session = { match = { a = 'b' }, id = 'c' } }\n", "f.toml:4: resume: the agent would never get its plan"},
		{"no session to resume", sound + "resume = ['x', '{prompt_file}']\n", "f.toml:4: resume: it does not say which session to resume"},
		{"a session of no name", sound + "resume = ['x', '{session}', '{prompt_file}']\n", "f.toml:4: resume: resume and events.session, which names the session, go together"},
		{"a session for nothing", sound + "[events]\nformat = 'jsonl'\nok = { match = { a = 'b' } }\nsession = { match = { a = 'b' }, id = 'c' }\n", "resume and events.session, which names the session, go together"},
		{"a session's path", sound + "[events]\nformat = 'jsonl'\nok = { match = { a = 'b' } }\nsession = { match = { a = 'b' }, id = '/etc' }\n", `events.session: "/etc" is not a dotted path`},
		{"not verified", "name = 'x'\nargv = ['{prompt_file}']\n", "verify: it has no command"},
		{"stands for nothing", sound + "setup = [['x', '{plan}']]\n", "f.toml:4: setup: {plan} is not a placeholder"},
		{"of one job", sound + "install = [['x', '{workdir}']]\n", "f.toml:4: install: {workdir} belongs to one job"},
		{"out of the folder", sound + "[files]\n'../../.bashrc' = 'x'\n", `files.../../.bashrc: "../../.bashrc" can't be a file's name`},
		{"absolute", sound + "[files]\n'/etc/passwd' = 'x'\n", `can't be a file's name`},
		{"a terminal's codes", sound + "version = \"1\\u001b[2J\"\n", "f.toml:4: version: it must be a line"},
		{"a variable", sound + "[env]\n'A=B' = 'x'\n", "can't be a variable"},
		{"a connector", sound + "connectors = ['../../x']\n", "f.toml:4: connectors: "},
		{"NUL", sound + "setup = [[\"a\\u0000b\"]]\n", "f.toml:4: setup: an argument can't have a NUL"},
		{"an empty command", sound + "setup = [[]]\n", "f.toml:4: setup: a command is a list"},
		{"rules without events", sound + "[events]\nok = { match = { a = 'b' } }\n", "f.toml:5: events: there are rules for events"},
		{"never done", sound + "[events]\nformat = 'jsonl'\n", "f.toml:5: events: it has no rule ok"},
		{"no format", sound + "[events]\nformat = 'xml'\n", `f.toml:5: events.format: "xml" is neither`},
		{"matches everything", sound + "[events]\nformat = 'jsonl'\nok = { match = {} }\n", "events.ok: a rule must say which lines"},
		{"no kind", sound + "[events]\nformat = 'jsonl'\nok = { match = { a = 'b' } }\n[[events.rules]]\nmatch = { a = 'b' }\nkind = 'result'\n", `events.rules: kind "result" is not one of`},
		{"a path", sound + "turn = { match = { 'a..b' = 'c' } }\n", "turn: \"a..b\" is not a dotted path"},
		{"a stream", sound + "turn = { stream = 'fd7', match = { a = 'c' } }\n", `turn.stream: "fd7" is not one of`},
		{"a size", sound + "needs = { disk = 'much' }\n", "needs.disk: \"much\" is not a size"},
		{"too long", sound + "# " + strings.Repeat("x", agents.MaxDefinition), "is more than 65536"},
		{"not UTF-8", sound + "# \xff", "it is not UTF-8 text"},
	} {
		c, err := agents.ParseDefinition("f.toml", test.text)
		problems, ok := errors.AsType[agents.Problems](err)
		if c != nil || !ok {
			t.Errorf("%s: got %+v, %v", test.name, c, err)
			continue
		}
		if !slices.ContainsFunc(problems, func(p agents.Problem) bool { return strings.Contains(p.Error(), test.want) }) {
			t.Errorf("%s: no %q in %v", test.name, test.want, problems)
		}
	}
	if _, err := agents.ParseDefinition("f.toml", sound); err != nil {
		t.Error(err)
	}
}

// FuzzDefinition: whatever a definition says, it is refused with a line, or names a program to
// start and writes only below its own folder.
func FuzzDefinition(f *testing.F) {
	f.Add(greeter, `{"type":"tool","name":"sh"}`)
	f.Add("name='x'\nargv=['x','{prompt_file}']\nverify=['x']\n[events]\nformat='jsonl'\nok.match.a='b'", `{"a":"b"}`)
	f.Fuzz(func(t *testing.T, text, line string) {
		c, err := agents.ParseDefinition("f.toml", text)
		if err != nil {
			if problems, ok := errors.AsType[agents.Problems](err); !ok || len(problems) == 0 {
				t.Fatalf("got %v", err)
			}
			return
		}
		w, err := c.Prepare(agents.Task{Plan: "x", Dir: "/j", Workdir: "/w", Home: "/h"})
		if err != nil || len(w.Argv) == 0 || w.Argv[0] == "" || len(w.Verify) == 0 {
			t.Fatalf("got %+v, %v", w, err)
		}
		for name := range w.Files {
			if name != "prompt.md" && (!strings.HasPrefix(name, "agent/") || strings.Contains(name, "..") && strings.Contains("/"+name+"/", "/../")) {
				t.Errorf("it writes %q", name)
			}
		}
		judge(c, []cove.JobEvent{{Type: "output", Stream: "stdout", Text: line}}, cove.JobEnd{Phase: "done"})
	})
}
