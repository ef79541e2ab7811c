package agents_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// recorded is the log of a real agent, whose scripted model asked it to look around and to
// write a file. Its standard error comes first.
func recorded(t testing.TB, name string) []cove.JobEvent {
	t.Helper()
	var log []cove.JobEvent
	for _, stream := range []struct{ ending, name string }{{".stderr", "stderr"}, {".jsonl", "stdout"}} {
		text, err := os.ReadFile(filepath.Join("testdata", name+stream.ending))
		if os.IsNotExist(err) && stream.name == "stderr" {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			log = append(log, cove.JobEvent{Type: "output", Stream: stream.name, Text: strings.TrimSuffix(line, "\n")})
		}
	}
	return log
}

// inShort are events as lines.
func inShort(events []agents.Event) []string {
	var out []string
	for _, e := range events {
		line := strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", e.Kind, e.Tool, e.Text)), " ")
		if e.Failed {
			line += " (failed)"
		}
		out = append(out, line)
	}
	return out
}

// runs are what each agent did in its recorded runs.
var runs = []struct {
	agent   agents.Agent
	name    string
	exit    int
	outcome cove.Outcome
	usage   *cove.Usage
	events  []string
}{
	{agents.Codex{}, "codex/tools", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 300, OutputTokens: 60}, []string{
		"start thread 01a20067-3d1b-7f71-b95c-2106f01e41bc",
		"text I look first.",
		"tool_start shell /bin/bash -lc 'ls -a; exit 3'", "tool_end . … (failed)",
		"text Change.",
		"tool_start apply_patch add /home/sprite/work/a3f7b2/repo/HELLO.md", "tool_end",
		"text All is done.", "result All is done.",
	}},
	{agents.Codex{}, "codex/401", 1,
		cove.Outcome{Kind: agents.AgentFailed, Reason: "unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses", ExitCode: 1}, nil,
		[]string{
			"start thread 01a20067-f0c7-7bc1-ba2e-d4184fab7fbc",
			"retry Reconnecting... 1/5 (unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses)",
			"retry Reconnecting... 2/5 (unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses)",
			"retry Reconnecting... 3/5 (unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses)",
			"retry Reconnecting... 4/5 (unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses)",
			"retry Reconnecting... 5/5 (unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses)",
			"result unexpected status 401 Unauthorized: scripted, url: http://openai.connect.internal/v1/responses (failed)",
		}},
	{agents.Codex{}, "codex/429", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 300, OutputTokens: 60}, []string{
		"start thread 01a20068-0ff1-7a90-8736-ea4a7c8cd453",
		"retry Reconnecting... 1/5 (exceeded retry limit, last status: 429 Too Many Requests)",
		"text I look first.",
		"tool_start shell /bin/bash -lc 'ls -a; exit 3'", "tool_end . … (failed)",
		"text Change.",
		"tool_start apply_patch add /home/sprite/work/a3f7b2/repo/HELLO.md", "tool_end",
		"text All is done.", "result All is done.",
	}},
	{agents.Codex{}, "codex/hang", 1, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 1 and without a result", ExitCode: 1}, nil,
		[]string{"start thread 01a20068-b5a7-7451-830d-dd03258adf89"}},

	{agents.Gemini{}, "gemini/tools", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 400, OutputTokens: 80}, []string{
		"start auto",
		"text I look first.",
		`tool_start run_shell_command {"command":"ls; exit 3","description":"look"}`, "tool_end HELLO.md …",
		"text Change.",
		`tool_start write_file {"file_path":"GEM.md","content":"# Hello\n"}`, "tool_end",
		"text All is done.", "result All is done.",
	}},
	{agents.Gemini{}, "gemini/401", 145,
		cove.Outcome{Kind: agents.AgentFailed, Reason: `[API Error: {"error":{"code":401,"message":"scripted","status":"UNAUTHENTICATED"}}]`, ExitCode: 145}, nil,
		[]string{"start auto", `result [API Error: {"error":{"code":401,"message":"scripted","status":"UNAUTHENTICATED"}}] (failed)`}},
	{agents.Gemini{}, "gemini/429", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 400, OutputTokens: 80}, []string{
		"retry Attempt 1 failed with status 429. Retrying",
		"start auto",
		"text I look first.",
		`tool_start run_shell_command {"command":"ls; exit 3","description":"look"}`, "tool_end GEM.md …",
		"text Change.",
		`tool_start write_file {"file_path":"GEM.md","content":"# Hello\n"}`, "tool_end",
		"text All is done.", "result All is done.",
	}},
	{agents.Gemini{}, "gemini/hang", 53, cove.Outcome{Kind: agents.NoResult, Reason: "it reached its limit of turns (exit code 53)", ExitCode: 53}, nil,
		[]string{"start auto"}},

	{agents.OpenCode{}, "opencode/tools", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 300, OutputTokens: 60, CostUSD: 0.0018, Turns: 3}, []string{
		"start session ses_dff98b4a8ffeax7Y4gwLsoNRgn",
		"text I look first.",
		`tool_start bash {"command":"ls; exit 3","description":"look"}`, "tool_end HELLO.md … (failed)",
		"text Change.",
		`tool_start write {"filePath":"OPEN.md","content":"# Hello\n"}`, "tool_end Wrote file successfully.",
		"text All is done.", "result All is done.",
	}},
	{agents.OpenCode{}, "opencode/401", 1, cove.Outcome{Kind: agents.AgentFailed, Reason: "scripted (status 401)", ExitCode: 1}, nil,
		[]string{"start session ses_dff980999ffeW47khf0uoQNjbp", "result scripted (status 401) (failed)"}},
	{agents.OpenCode{}, "opencode/hang", 1, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 1 and without a result", ExitCode: 1}, nil, nil},

	{agents.Pi{}, "pi/tools", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 300, OutputTokens: 60, CostUSD: 0.003, Turns: 3}, []string{
		"start session 01a20067-44ea-73cb-8c31-35a3deeb21be",
		"text I look first.",
		`tool_start bash {"command":"ls; exit 3"}`, "tool_end HELLO.md … (failed)",
		"text Change.",
		`tool_start write {"path":"PI.md","content":"# Hello\n"}`, "tool_end Successfully wrote to PI.md",
		"text All is done.", "result All is done.",
	}},
	// It exits with 0 all the same.
	{agents.Pi{}, "pi/401", 0,
		cove.Outcome{Kind: agents.AgentFailed, Reason: `401 {"type":"error","error":{"type":"authentication_error","message":"scripted","code":"x"}}`}, nil, []string{
			"start session 01a20067-f083-72f1-8402-9c0890cae773",
			`result 401 {"type":"error","error":{"type":"authentication_error","message":"scripted","code":"x"}} (failed)`,
		}},
	{agents.Pi{}, "pi/429", 0, cove.Outcome{Kind: agents.Success}, &cove.Usage{InputTokens: 300, OutputTokens: 60, CostUSD: 0.003, Turns: 3}, []string{
		"start session 01a20068-1858-7720-8097-d4c48e0500a0",
		`retry attempt 1: 429 {"type":"error","error":{"type":"rate_limit_error","message":"scripted","code":"x"}}`,
		"text I look first.",
		`tool_start bash {"command":"ls; exit 3"}`, "tool_end HELLO.md … (failed)",
		"text Change.",
		`tool_start write {"path":"PI.md","content":"# Hello\n"}`, "tool_end Successfully wrote to PI.md",
		"text All is done.", "result All is done.",
	}},
	{agents.Pi{}, "pi/hang", 0, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 0 and without a result"}, nil,
		[]string{"start session 01a20068-e2d4-7546-a61b-5a3a86960761"}},
}

func TestRecorded(t *testing.T) {
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			events, outcome, usage := judge(run.agent, recorded(t, run.name), cove.JobEnd{Phase: "done", ExitCode: run.exit})
			if diff := cmp.Diff(run.events, inShort(events)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if outcome != run.outcome {
				t.Errorf("got %+v, want %+v", outcome, run.outcome)
			}
			near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
			if diff := cmp.Diff(run.usage, usage, near); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReadRare: lines that no recorded run has.
func TestReadRare(t *testing.T) {
	for _, test := range []struct {
		agent agents.Agent
		line  string
		want  []string
	}{
		{agents.Codex{}, `{"type":"item.completed","item":{"type":"command_execution","command":"rm x","status":"declined"}}`, []string{"denied shell rm x", "tool_end (failed)"}},
		{agents.Codex{}, `{"type":"item.completed","item":{"type":"error","message":"old model"}}`, []string{"text warning: old model"}},
		{agents.Codex{}, `{"type":"item.started","item":{"type":"mcp_tool_call","server":"s","tool":"t"}}`, []string{"tool_start s.t"}},
		{agents.Codex{}, `{"type":"item.completed","item":{"type":"todo_list"}}`, nil},
		{agents.Gemini{}, `{"type":"tool_result","status":"error","error":{"type":"policy_violation","message":"no"}}`, []string{"denied no", "tool_end no (failed)"}},
		{agents.Gemini{}, `{"type":"error","severity":"warning","message":"loop"}`, []string{"text warning: loop"}},
		{agents.OpenCode{}, `{"type":"step_finish","part":{"reason":"length"}}`, []string{"result its model stopped: length (failed)"}},
		{agents.OpenCode{}, `{"type":"tool_use","part":{"tool":"edit","state":{"status":"error","error":"not found"}}}`, []string{"tool_start edit", "tool_end not found (failed)"}},
		{agents.Pi{}, `{"type":"agent_end"}`, []string{"result it ended before its model said anything (failed)"}},
		{agents.Pi{}, `{"type":"agent_end","willRetry":true}`, nil},
	} {
		events, _, _ := judge(test.agent, printed(test.line), cove.JobEnd{Phase: "done"})
		if diff := cmp.Diff(test.want, inShort(events)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", test.agent.Name(), test.line, diff)
		}
	}
}

// TestSessions: a reader finds the session in a log, and the command that continues the
// session names it.
func TestSessions(t *testing.T) {
	claude := printed(`{"type":"system","subtype":"init","session_id":"0b3bd6b0-3ac7-4f3e-8d5e-4b0e9d4b6c11"}`, claudeSuccess)
	for _, test := range []struct {
		agent   agents.Agent
		log     []cove.JobEvent
		session string
		argv    []string // of the one that goes on
	}{
		{agents.Claude{}, claude, "0b3bd6b0-3ac7-4f3e-8d5e-4b0e9d4b6c11", []string{"--resume", "0b3bd6b0-3ac7-4f3e-8d5e-4b0e9d4b6c11"}},
		{agents.Codex{}, recorded(t, "codex/tools"), "01a20067-3d1b-7f71-b95c-2106f01e41bc", []string{"01a20067-3d1b-7f71-b95c-2106f01e41bc", "-"}},
		{agents.Gemini{}, recorded(t, "gemini/tools"), "d3dcbc7b-d5e7-4136-98a1-df3aa163eb96", []string{"--resume", "d3dcbc7b-d5e7-4136-98a1-df3aa163eb96"}},
		{agents.OpenCode{}, recorded(t, "opencode/tools"), "ses_dff98b4a8ffeax7Y4gwLsoNRgn", []string{"-s", "ses_dff98b4a8ffeax7Y4gwLsoNRgn"}},
		{agents.Pi{}, recorded(t, "pi/tools"), "01a20067-44ea-73cb-8c31-35a3deeb21be", []string{"--session", "01a20067-44ea-73cb-8c31-35a3deeb21be"}},
	} {
		t.Run(test.agent.Name(), func(t *testing.T) {
			reader := test.agent.Read()
			for _, ev := range test.log {
				reader.Event(ev)
			}
			if got := reader.(agents.Rememberer).Session(); got != test.session {
				t.Errorf("got %q", got)
			}
			task := agents.Task{Plan: "And now?", PlanName: "plan.md", Dir: "/job", Workdir: "/work", Home: "/home/sprite", Session: test.session}
			w, err := test.agent.Prepare(task)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(w.Argv[len(w.Argv)-len(test.argv):], test.argv) {
				t.Errorf("argv: got %q", w.Argv)
			}
			if got := string(w.Files["prompt.md"].Data); got != "And now?" {
				t.Errorf("the prompt: got %q", got)
			}
			for _, evil := range []string{"--yolo", "a b", "a/../b", "a\n", strings.Repeat("a", 200)} {
				task.Session = evil
				if _, err := test.agent.Prepare(task); err == nil {
					t.Errorf("session %q: no error", evil)
				}
			}
		})
	}
}

// TestPrepareReal: an agent's arguments, variables and commands name its connector, and have
// nothing of the plan. Without connectors they name none, and set no key.
func TestPrepareReal(t *testing.T) {
	for _, test := range []struct {
		agent agents.Agent
		model string
		conn  string
		key   string
		want  string // somewhere in the arguments, the variables or the commands before
	}{
		{agents.Codex{}, "", "openai", "OPENAI_API_KEY", `base_url="http://openai.connect.internal/v1"`},
		{agents.Codex{}, "openai/gpt-x", "openai", "OPENAI_API_KEY", "-m\ngpt-x\n"},
		{agents.Gemini{}, "", "gemini", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL=http://gemini.connect.internal\n"},
		{agents.Gemini{}, "gemini/gemini-x", "gemini", "GEMINI_API_KEY", "-m\ngemini-x\n"},
		{agents.OpenCode{}, "", "anthropic", "ANTHROPIC_API_KEY", `"baseURL":"http://anthropic.connect.internal/v1"`},
		{agents.OpenCode{}, "openai/gpt-x", "openai", "OPENAI_API_KEY", "-m\nopenai/gpt-x\n"},
		{agents.Pi{}, "", "anthropic", "ANTHROPIC_API_KEY", `"anthropic":{"baseUrl":"http://anthropic.connect.internal"}`},
		{agents.Pi{}, "gemini/gemini-x", "gemini", "GEMINI_API_KEY", "--provider\ngoogle\n--model\ngemini-x\n"},
	} {
		t.Run(test.agent.Name()+" "+test.model, func(t *testing.T) {
			plan := "# Plan\n\nthe text of the plan\n"
			w, err := test.agent.Prepare(agents.Task{Plan: plan, PlanName: "plan.md", Dir: "/job", Workdir: "/work", Home: "/home/sprite", Model: test.model})
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(slices.Concat(w.Argv, w.Env, slices.Concat(w.Setup...)), "\n") + "\n"
			if !strings.Contains(all, test.want) || strings.Contains(all, "the text of the plan") {
				t.Errorf("got %s", all)
			}
			if got := string(w.Files["prompt.md"].Data); !strings.HasSuffix(got, plan) || !strings.Contains(got, "You work alone") {
				t.Errorf("the prompt: got %q", got)
			}
			if !slices.Equal(w.Connectors, []string{test.conn}) || !slices.Equal(w.Keys, []string{test.key}) {
				t.Errorf("got %q and %q", w.Connectors, w.Keys)
			}
			w, err = test.agent.Prepare(agents.Task{Plan: plan, Dir: "/job", Home: "/home/sprite", Model: test.model, Direct: true})
			if all := strings.Join(slices.Concat(w.Argv, w.Env), "\n"); err != nil || strings.Contains(all, "connect.internal") || strings.Contains(all, test.key+"=") {
				t.Errorf("without connectors: %s, %v", all, err)
			}
			w, err = test.agent.Prepare(agents.Task{Plan: plan, Dir: "/job", Home: "/home/sprite", Model: test.model, Interactive: true})
			if last := len(w.Argv) - 1; err != nil || w.Argv[0] != test.agent.Name() || w.Argv[last] != "Read /job/prompt.md and carry out the plan in it." {
				t.Errorf("in a terminal: %q, %v", w.Argv, err)
			}
			if _, err := test.agent.Prepare(agents.Task{Plan: " \n", PlanName: "plan.md"}); err == nil || !strings.Contains(err.Error(), "plan.md is empty") {
				t.Errorf("an empty plan: %v", err)
			}
		})
	}
	for _, agent := range []agents.Agent{agents.OpenCode{}, agents.Pi{}} {
		if _, err := agent.Prepare(agents.Task{Plan: "x", Model: "gpt-x"}); err == nil || !strings.Contains(err.Error(), "PROVIDER/MODEL") {
			t.Errorf("%s: %v", agent.Name(), err)
		}
	}
}

// FuzzReaders: whatever an agent prints, in whatever pieces, its reader does not panic. It
// does not report success if the agent exited with an error, and its session can be an
// argument.
func FuzzReaders(f *testing.F) {
	for _, run := range runs {
		var text strings.Builder
		for _, ev := range recorded(f, run.name) {
			text.WriteString(ev.Text + "\n")
		}
		f.Add(text.String(), uint8(3))
	}
	f.Add(`{"type":"session","id":"--help"}`+"\n"+`{"type":"agent_end"}`, uint8(0))
	f.Add(`{"type":7,"item":[]}`+"\n"+`{"type":"turn.completed","usage":"x"}`, uint8(9))
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		for _, agent := range []agents.Agent{agents.Claude{}, agents.Codex{}, agents.Gemini{}, agents.OpenCode{}, agents.Pi{}} {
			reader := agent.Read()
			for line := range strings.SplitSeq(text, "\n") {
				for _, stream := range []string{"stdout", "stderr"} {
					at := min(int(cut), len(line))
					reader.Event(cove.JobEvent{Type: "output", Stream: stream, Text: line[:at], Cut: true})
					reader.Event(cove.JobEvent{Type: "output", Stream: stream, Text: line[at:]})
				}
			}
			outcome, _ := reader.Judge(cove.JobEnd{Phase: "done", ExitCode: 1})
			if outcome.Kind == agents.Success || outcome.Kind == "" || outcome.ExitCode != 1 {
				t.Errorf("%s: got %+v", agent.Name(), outcome)
			}
			if session := reader.(agents.Rememberer).Session(); strings.HasPrefix(session, "-") || strings.ContainsAny(session, " /\n\x00") {
				t.Errorf("%s: the session is %q", agent.Name(), session)
			}
		}
	})
}
