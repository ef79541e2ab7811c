package agents_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/test/executable"
)

// printed is a log of lines that an agent printed.
func printed(lines ...string) []cove.JobEvent {
	var log []cove.JobEvent
	for _, line := range lines {
		log = append(log, cove.JobEvent{Type: "output", Stream: "stdout", Text: line})
	}
	return log
}

const (
	claudeInit    = `{"type":"system","subtype":"init","model":"claude-x","tools":["Bash",{"name":"Edit"}]}`
	claudeRetry   = `{"type":"system","subtype":"api_retry","attempt":2,"error_status":529,"error":"overloaded"}`
	claudeSays    = `{"type":"assistant","message":{"content":[{"type":"text","text":"I will."},{"type":"tool_use","name":"Bash","input":{"command":"ls"}}]}}`
	claudeSees    = `{"type":"user","message":{"content":[{"type":"tool_result","content":"no\nsuch","is_error":true},{"type":"text","text":"aside"}]}}`
	claudeSuccess = `{"type":"result","subtype":"success","result":"All done.","num_turns":7,"total_cost_usd":0.25,` +
		`"usage":{"input_tokens":1,"cache_creation_input_tokens":20,"cache_read_input_tokens":300,"output_tokens":4}}`
)

func TestClaudeJudge(t *testing.T) {
	done := cove.JobEnd{Phase: "done"}
	failed := cove.JobEnd{Phase: "done", ExitCode: 1}
	usage := &cove.Usage{InputTokens: 321, OutputTokens: 4, CostUSD: 0.25, Turns: 7}
	none := &cove.Usage{}
	for _, test := range []struct {
		name  string
		log   []cove.JobEvent
		end   cove.JobEnd
		want  cove.Outcome
		usage *cove.Usage
	}{
		{"success", printed(claudeInit, claudeSays, claudeSees, claudeSuccess), done, cove.Outcome{Kind: agents.Success}, usage},
		{"the last result counts", printed(`{"type":"result","is_error":true}`, claudeSuccess), done, cove.Outcome{Kind: agents.Success}, usage},
		{"noise", printed("", "warning: old Node", "{", "[1]", `"result"`, "null", `{"type":7}`, `{"k":"result"}`, claudeSuccess, "bye"), done,
			cove.Outcome{Kind: agents.Success}, usage},
		{"a field of another type", printed(strings.Replace(claudeSuccess, `"result":"All`, `"error":{"code":1},"message":"x","result":"All`, 1)), done,
			cove.Outcome{Kind: agents.Success}, usage},
		{"denials", printed(`{"type":"result","permission_denials":[{},{}]}`), done,
			cove.Outcome{Kind: agents.Success, Reason: "done, though it was refused permission 2 times"}, none},
		{"result and exit code", printed(claudeSuccess), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 1 though it reported a result", ExitCode: 1}, usage},

		{"is_error", printed(`{"type":"result","is_error":true,"result":"API Error: 401\nmore"}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "API Error: 401 …", ExitCode: 1}, none},
		{"is_error and exit code 0", printed(`{"type":"result","is_error":true,"terminal_reason":"model_error"}`), done,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "model_error"}, none},
		{"is_error without a word", printed(`{"type":"result","is_error":true}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "it reported an error", ExitCode: 1}, none},
		{"max turns", printed(`{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":9}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "stopped after 9 turns, the most it may take", ExitCode: 1}, &cove.Usage{Turns: 9}},

		{"no result", printed(claudeInit, claudeSays), done,
			cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 0 and without a result"}, nil},
		{"empty log", nil, failed,
			cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 1 and without a result", ExitCode: 1}, nil},
		{"gave up asking", printed(claudeInit, claudeRetry), failed,
			cove.Outcome{Kind: agents.NoResult, Reason: "ended without a result; the model last answered overloaded (status 529)", ExitCode: 1}, nil},
		{"was answered in the end", printed(claudeInit, claudeRetry, claudeSays), failed,
			cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 1 and without a result", ExitCode: 1}, nil},
		{"retried, then done", printed(claudeInit, claudeRetry, claudeSays, claudeSuccess), done, cove.Outcome{Kind: agents.Success}, usage},
		{"result on another stream", []cove.JobEvent{
			{Type: "output", Stream: "stderr", Text: claudeSuccess}, {Type: "event", Text: claudeSuccess}, {Type: "notice", Text: claudeSuccess},
		}, done, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 0 and without a result"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, got, usage := judge(agents.Claude{}, test.log, test.end)
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if diff := cmp.Diff(test.usage, usage); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A long line comes in parts, with those of another stream between them.
func TestClaudeCutLine(t *testing.T) {
	text := strings.Repeat("wörd ", 100_000)
	line := strings.Replace(claudeSuccess, "All done.", text, 1)
	var log []cove.JobEvent
	for part := range slices.Chunk([]byte(line), 64<<10) {
		log = append(log,
			cove.JobEvent{Type: "output", Stream: "stdout", Text: string(part), Cut: true},
			cove.JobEvent{Type: "output", Stream: "stderr", Text: "meanwhile"})
	}
	log[len(log)-2].Cut = false
	log = append(printed(claudeInit), append(log, printed(claudeSays)...)...)
	events, outcome, usage := judge(agents.Claude{}, log, cove.JobEnd{Phase: "done"})
	if len(events) != 4 || events[1] != (agents.Event{Kind: agents.KindResult, Text: text}) {
		t.Errorf("got %d events", len(events))
	}
	if outcome.Kind != agents.Success || usage == nil || usage.Turns != 7 {
		t.Errorf("got %+v, %+v", outcome, usage)
	}

	// The reader holds only a bounded part of a line that never ends. It does not read the
	// line's tail as a line, whatever that looks like; it does read the next line.
	r := agents.Claude{}.Read()
	part := cove.JobEvent{Type: "output", Stream: "stdout", Text: strings.Repeat("x", 1<<20), Cut: true}
	for range 33 { // the last is one too many
		if got := r.Event(part); got != nil {
			t.Fatalf("got %+v", got)
		}
	}
	tail := printed(`{"type":"result","is_error":true}`)[0]
	if got := r.Event(tail); got != nil {
		t.Errorf("the tail of a line was read as %+v", got)
	}
	if got := r.Event(printed(claudeSuccess)[0]); len(got) != 1 {
		t.Errorf("got %+v", got)
	}
	if o, _ := r.Judge(cove.JobEnd{Phase: "done"}); o.Kind != agents.Success {
		t.Errorf("got %+v", o)
	}
}

func TestClaudeEvents(t *testing.T) {
	long := strings.Repeat("é", 200)
	for _, test := range []struct {
		name, line string
		want       []agents.Event // nil: it is no report
	}{
		{"init", claudeInit, []agents.Event{{Kind: agents.KindStart, Text: "claude-x, with 2 tools"}}},
		{"retry", claudeRetry, []agents.Event{{Kind: agents.KindRetry, Text: "attempt 2: overloaded (status 529)"}}},
		{"assistant", claudeSays, []agents.Event{
			{Kind: agents.KindText, Text: "I will."}, {Kind: agents.KindToolStart, Tool: "Bash", Text: `{"command":"ls"}`}}},
		{"user", claudeSees, []agents.Event{{Kind: agents.KindToolEnd, Text: "no …", Failed: true}}},
		{"plain message", `{"type":"user","message":{"content":"hello"}}`, []agents.Event{}},
		{"blocks in a result", `{"type":"user","message":{"content":[{"type":"tool_result","content":[{"type":"text","text":"a"}]}]}}`,
			[]agents.Event{{Kind: agents.KindToolEnd, Text: `[{"type":"text","text":"a"}]`}}},
		{"long output", `{"type":"user","message":{"content":[{"type":"tool_result","content":"` + long + `"}]}}`,
			[]agents.Event{{Kind: agents.KindToolEnd, Text: strings.Repeat("é", 160) + "…"}}},
		{"denied", `{"type":"system","subtype":"permission_denied"}`, []agents.Event{{Kind: agents.KindDenied, Text: `{"type":"system","subtype":"permission_denied"}`}}},
		{"other system", `{"type":"system","subtype":"status"}`, []agents.Event{}},
		{"unknown", `{"type":"rate_limit_event"}`, []agents.Event{}},
		{"result", claudeSuccess, []agents.Event{{Kind: agents.KindResult, Text: "All done."}}},
		{"failure", `{"type":"result","is_error":true,"result":"no"}`, []agents.Event{{Kind: agents.KindResult, Text: "no", Failed: true}}},
		{"noise", "npm warn", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, agents.Claude{}.Read().Event(printed(test.line)[0]), short); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// claude here stands for the program only: it shows what it is started with.
func TestClaudePrepare(t *testing.T) {
	if _, err := (agents.Claude{}).Prepare(agents.Task{Plan: " \n", PlanName: "plan.md"}); err == nil || !strings.Contains(err.Error(), "plan.md is empty") {
		t.Errorf("got %v", err)
	}
	home, dir := t.TempDir(), t.TempDir()
	task := agents.Task{Plan: "# Do\n\nit's `all`\n", PlanName: "plan.md", Dir: dir, Home: home}
	work, err := agents.Claude{}.Prepare(task)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(home, ".local", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	executable.Write(t, filepath.Join(bin, "claude"), "#!/bin/sh\necho \"$@\"\ncat\n")
	prompt := string(work.Files["prompt.md"].Data)
	if !strings.HasSuffix(prompt, "\n# The plan\n\n"+task.Plan) || len(prompt) < len(task.Plan)+200 {
		t.Errorf("the prompt is %q", prompt)
	}
	if err := os.WriteFile(filepath.Join(dir, "prompt.md"), []byte(prompt), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(argv []string) string {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append([]string{"HOME=" + home}, work.Env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	for range 2 { // a sprite may have several jobs
		for _, argv := range work.Commands() {
			run(argv)
		}
	}
	settings, err := os.ReadFile(filepath.Join(home, ".claude.json"))
	key := ""
	for _, pair := range work.Env {
		if value, ok := strings.CutPrefix(pair, "ANTHROPIC_API_KEY="); ok {
			key = value
		}
	}
	if len(key) < 20 {
		t.Fatalf("the key is %q", key)
	}
	if want := `"approved":["` + key[len(key)-20:] + `"]`; err != nil || !strings.Contains(string(settings), want) {
		t.Errorf("got %v, %s, want %s", err, settings, want)
	}
	if got, want := run(work.Argv), "-p --output-format stream-json --verbose --dangerously-skip-permissions\n"+prompt; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	task.Interactive = true
	work, err = agents.Claude{}.Prepare(task)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(work.Argv); work.Argv[0] != "claude" || slices.Contains(work.Argv, "-p") || !strings.Contains(work.Argv[n-1], dir+"/prompt.md") {
		t.Errorf("got %q", work.Argv)
	}
}
