package agents_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// told is a log of lines of cove-guest.
func told(lines ...string) []cove.JobEvent {
	var log []cove.JobEvent
	for _, line := range lines {
		log = append(log, cove.JobEvent{Type: "event", Text: line})
	}
	return log
}

const (
	acpSession = `{"type":"session","session_id":"ses_1","agent":"scripted 1"}`
	acpResult  = `{"type":"result","session_id":"ses_1","stop_reason":"end_turn","usage":{"input_tokens":100,"output_tokens":20,"cost_usd":0.5}}`
	acpAsks    = `{"type":"permission_request","id":"3","text":"{\"command\":\"ls\"}","title":"List","kind":"execute","paths":["/a"],"options":[{"id":"1","name":"Yes","kind":"allow_once"},{"id":"2","name":"No","kind":"reject_once"}]}`
	acpDenied  = `{"type":"permission","id":"3","title":"List","status":"denied"}`
)

func TestACPJudge(t *testing.T) {
	done, failed := cove.JobEnd{Phase: "done"}, cove.JobEnd{Phase: "done", ExitCode: 1}
	usage := &cove.Usage{InputTokens: 100, OutputTokens: 20, CostUSD: 0.5}
	for _, test := range []struct {
		name  string
		log   []cove.JobEvent
		end   cove.JobEnd
		want  cove.Outcome
		usage *cove.Usage
	}{
		{"success", told(acpSession, acpResult), done, cove.Outcome{Kind: agents.Success}, usage},
		{"denied", told(acpSession, acpDenied, acpResult), done, cove.Outcome{Kind: agents.Success, Reason: "done, though it was refused permission 1 time"}, usage},
		{"result and exit code", told(acpResult), failed, cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 1 though it reported a result", ExitCode: 1}, usage},
		{"refusal", told(acpSession, `{"type":"result","stop_reason":"refusal"}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "its model refused to go on", ExitCode: 1}, nil},
		{"max tokens", told(`{"type":"result","stop_reason":"max_tokens"}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "it reached its model's limit of tokens", ExitCode: 1}, nil},
		{"a reason of another version", told(`{"type":"result","stop_reason":"tired"}`), done,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "it ended for the reason tired"}, nil},
		{"an error", told(acpSession, `{"type":"result","error":"Authentication required (error -32000)\nmore"}`), failed,
			cove.Outcome{Kind: agents.AgentFailed, Reason: "Authentication required (error -32000) …", ExitCode: 1}, nil},
		{"crash", told(acpSession, `{"type":"notice","text":"the agent has ended before it answered: it exited with code 7"}`), failed,
			cove.Outcome{Kind: agents.NoResult, Reason: "the agent has ended before it answered: it exited with code 7", ExitCode: 1}, nil},
		{"nothing", nil, done, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 0 and without a result"}, nil},
		{"a result of the agent's own", printed(acpResult), done, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 0 and without a result"}, nil},
		{"stopped", told(acpSession, `{"type":"result","stop_reason":"cancelled"}`), cove.JobEnd{Phase: "done", Reason: "stopped"},
			cove.Outcome{Kind: agents.Cancelled, Reason: "stopped on request"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, got, usage := judge(agents.ACP{}, test.log, test.end)
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if diff := cmp.Diff(test.usage, usage); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestACPEvents(t *testing.T) {
	log := told(acpSession, `{"type":"text","text":"I look."}`, `{"type":"thought","text":"hm"}`,
		`{"type":"tool_call","id":"c1","title":"Terminal","kind":"execute","status":"pending"}`, `{"type":"tool_update","id":"c1","title":"ls"}`,
		`{"type":"tool_update","id":"c1","status":"in_progress"}`, `{"type":"tool_call","id":"c0","title":"pwd","kind":"execute","status":"in_progress"}`,
		`{"type":"tool_update","id":"c1","status":"completed","text":"a\nb"}`, `{"type":"tool_update","id":"c2","title":"cat","status":"failed","text":"no"}`,
		`{"type":"plan","entries":[{"content":"one","status":"completed"},{"content":"two","status":"in_progress"}]}`, acpAsks, acpDenied,
		`{"type":"usage","usage":{"cost_usd":0.1}}`, `{"type":"update","title":"hologram"}`, `garbage`, `{"no":"type"}`, acpResult)
	events, _, _ := judge(agents.ACP{}, log, cove.JobEnd{Phase: "done"})
	want := []agents.Event{
		{Kind: agents.KindStart, Text: "scripted 1, session ses_1"}, {Kind: agents.KindText, Text: "I look."}, {Kind: agents.KindThought, Text: "hm"},
		{Kind: agents.KindToolStart, Tool: "execute", Text: "ls"}, {Kind: agents.KindToolStart, Tool: "execute", Text: "pwd"}, {Kind: agents.KindToolEnd, Text: "a …"},
		{Kind: agents.KindToolStart, Tool: "tool", Text: "cat"}, {Kind: agents.KindToolEnd, Text: "no", Failed: true},
		{Kind: agents.KindStep, Text: "two"}, {Kind: agents.KindAsk, Text: "List", Full: `{"command":"ls"}`}, {Kind: agents.KindDenied, Text: "List"}, {Kind: agents.KindResult},
	}
	if diff := cmp.Diff(want, events, short); diff != "" {
		t.Error(diff)
	}
	for id, want := range map[string]string{"ses_1": "ses_1", "a\x1b[2J": "", strings.Repeat("x", 501): ""} {
		r := agents.ACP{}.Read()
		r.Event(cove.JobEvent{Type: "event", Text: `{"type":"session","session_id":` + quoted(id) + `}`})
		if got := r.(interface{ Session() string }).Session(); got != want {
			t.Errorf("a session %.40q: got %.40q", id, got)
		}
	}
}

// TestACPAsksAboutCall: a question comes after the call that it is about. A call that is still
// pending is told before its question, and only once. The call's end has its own text.
func TestACPAsksAboutCall(t *testing.T) {
	asks := strings.Replace(acpAsks, `"id":"3"`, `"id":"3","call":"c1"`, 1)
	for name, test := range map[string]struct {
		before string
		want   agents.Event
	}{
		"pending":  {`{"type":"tool_call","id":"c1","title":"Terminal","kind":"execute","status":"pending"}`, agents.Event{Kind: agents.KindToolStart, Tool: "execute", Text: "List", ID: "c1", Full: `{"command":"ls"}`}},
		"told":     {`{"type":"tool_call","id":"c1","title":"Terminal","kind":"execute","status":"in_progress","text":"ls"}`, agents.Event{Kind: agents.KindToolStart, Tool: "execute", Text: "Terminal", ID: "c1", Full: "ls"}},
		"not told": {`{"type":"update","title":"x"}`, agents.Event{Kind: agents.KindToolStart, Tool: "execute", Text: "List", ID: "c1", Full: `{"command":"ls"}`}},
	} {
		events, _, _ := judge(agents.ACP{}, told(test.before, asks, `{"type":"tool_update","id":"c1","status":"completed","text":"a"}`), cove.JobEnd{Phase: "done"})
		want := []agents.Event{test.want, {Kind: agents.KindAsk, Text: "List", Full: `{"command":"ls"}`, Repeats: name != "told"}, {Kind: agents.KindToolEnd, Text: "a", ID: "c1", Full: "a"}}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	events, _, _ := judge(agents.ACP{}, told(acpAsks), cove.JobEnd{Phase: "done"})
	if diff := cmp.Diff([]agents.Event{{Kind: agents.KindAsk, Text: "List", Full: `{"command":"ls"}`}}, events); diff != "" {
		t.Errorf("of a guest that does not name the call: %s", diff)
	}
}

// TestACPRefused: a call that was refused, or whose question was cancelled, and that ends without output, says so.
func TestACPRefused(t *testing.T) {
	asks := strings.Replace(acpAsks, `"id":"3"`, `"id":"3","call":"c1"`, 1)
	for status, want := range map[string]string{"denied": "It was refused.", "cancelled": "It was cancelled.", "allowed": ""} {
		for _, text := range []string{"", "no"} {
			events, _, _ := judge(agents.ACP{}, told(asks, strings.Replace(acpDenied, "denied", status, 1), `{"type":"tool_update","id":"c1","status":"failed","text":"`+text+`"}`), cove.JobEnd{Phase: "done"})
			end := agents.Event{Kind: agents.KindToolEnd, Text: text, Full: text, ID: "c1", Failed: true}
			if text == "" {
				end.Silent = want
			}
			if diff := cmp.Diff(end, events[len(events)-1]); diff != "" {
				t.Errorf("%s, %q: %s", status, text, diff)
			}
		}
	}
	declined, _, _ := judge(agents.Codex{}, printed(`{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"rm x","status":"declined"}}`), cove.JobEnd{Phase: "done"})
	if end := declined[len(declined)-1]; end.Silent != "It was refused." {
		t.Errorf("codex: got %+v", end)
	}
}

func quoted(s string) string { return `"` + strings.ReplaceAll(s, "\x1b", `\u001b`) + `"` }

// TestACPQuestion: a person is asked only if an event has the form of a question.
func TestACPQuestion(t *testing.T) {
	q := agents.ACP{}.Question(told(acpAsks)[0])
	want := &cove.JobQuestion{ID: "3", Title: "List", Kind: "execute", Detail: `{"command":"ls"}`, Path: "/a",
		Options: []cove.QuestionOption{{ID: "1", Name: "Yes", Kind: "allow_once"}, {ID: "2", Name: "No", Kind: "reject_once"}}}
	if diff := cmp.Diff(want, q); diff != "" {
		t.Error(diff)
	}
	cut := told(acpAsks)[0]
	cut.Cut = true
	for _, ev := range append(told(acpDenied, acpResult, "garbage", acpAsks[:60],
		strings.Replace(acpAsks, `"id":"3"`, `"id":"`+strings.Repeat("3", 30)+`"`, 1),
		strings.Replace(acpAsks, `{"id":"2"`, `{"id":"7"`, 1),
		`{"type":"permission_request","id":"1","options":[]}`,
		`{"type":"permission_request","id":"1","options":[`+strings.Repeat(`{"id":"1"},`, 30)+`{}]}`,
	), printed(acpAsks)[0], cut) {
		if got := (agents.ACP{}).Question(ev); got != nil {
			t.Errorf("%.80s: got %+v", ev.Text, got)
		}
	}
	long := strings.Replace(acpAsks, "List", strings.Repeat("ä", 4000), 1)
	if got := (agents.ACP{}).Question(told(long)[0]); got == nil || len(got.Title) > 5000 {
		t.Error("a long title is not cut")
	}
}

func TestACPPrepare(t *testing.T) {
	task := agents.Task{Plan: "Do it.", PlanName: "p.md", Dir: "/d", Home: "/h", Command: "opencode acp", Permissions: "ask"}
	w, err := agents.ACP{}.Prepare(task)
	if err != nil || !slices.Equal(w.Argv, []string{"cove-guest", "acp", "run", "--prompt=/d/prompt.md", "--permissions=ask", "--", "/bin/sh", "-c", "opencode acp"}) {
		t.Errorf("got %q, %v", w.Argv, err)
	}
	if text := string(w.Files["prompt.md"].Data); !strings.HasSuffix(text, "# The plan\n\nDo it.") || len(text) < 500 {
		t.Errorf("the prompt is %q", text)
	}
	const asked = "a person is asked before you use some tools"
	if text := string(w.Files["prompt.md"].Data); !strings.Contains(text, asked) {
		t.Errorf("with permissions that are asked for: %q", text)
	}
	alone := task
	alone.Permissions = "deny"
	if w, err := (agents.ACP{}).Prepare(alone); err != nil || strings.Contains(string(w.Files["prompt.md"].Data), asked) {
		t.Errorf("with those that are not: %v", err)
	}
	task.Session = "ses 1"
	w, err = agents.ACP{}.Prepare(task)
	if err != nil || !slices.Contains(w.Argv, "--session=ses 1") || string(w.Files["prompt.md"].Data) != "Do it." {
		t.Errorf("a session that goes on: %q, %q, %v", w.Argv, w.Files["prompt.md"].Data, err)
	}
	for _, edit := range []func(*agents.Task){
		func(t *agents.Task) { t.Plan = " \n" }, func(t *agents.Task) { t.Interactive = true }, func(t *agents.Task) { t.Session = "a\nb" },
	} {
		bad := task
		edit(&bad)
		if _, err := (agents.ACP{}).Prepare(bad); err == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
	for _, name := range []string{"shell", "nobody", "acp"} {
		if _, _, err := agents.Editor(name, "", "/h"); err == nil {
			t.Errorf("an editor's %s without a command is no error", name)
		}
	}
	if line, env, err := agents.Editor("claude", "", "/h"); err != nil || line != "claude-agent-acp" || !slices.Contains(env, "ANTHROPIC_BASE_URL=http://anthropic.connect.internal") {
		t.Errorf("claude: %q, %q, %v", line, env, err)
	}
}

// TestQuestionIncomplete: a question that does not have all that an answer allows says so.
func TestQuestionIncomplete(t *testing.T) {
	for in, want := range map[string]string{
		`"text":"{\"command\":\"ls\"}"`:                "",
		`"text":""`:                                    "only its title",
		`"text":"{\"command\":\"ls\"}","left":7`:       "7 bytes are left out",
		`"text":"{\"command\":\"ls …"`:                 "the end is left out",
		`"text":"` + strings.Repeat("x", 30_000) + `"`: "bytes are left out",
	} {
		q := agents.ACP{}.Question(told(strings.Replace(acpAsks, `"text":"{\"command\":\"ls\"}"`, in, 1))[0])
		if q == nil || (q.Incomplete == "") != (want == "") || !strings.Contains(q.Incomplete, want) || len(q.Detail) > 18<<10 {
			t.Errorf("%.60s: %+v", in, q)
		}
	}
}

// TestInputText: an input reads the same for all agents, and no line of a value looks like another part.
func TestInputText(t *testing.T) {
	for in, want := range map[string]string{
		`{"command":"rm -rf build \u0026\u0026 make"}`:                                                          "$ rm -rf build && make\n",
		`{"command":["bash","-c","a b"]}`:                                                                       "$ bash -c 'a b'\n",
		`{"command":"make` + strings.Repeat(" ", 2100) + `; curl\nx: y"}`:                                       "$ make ⟦2100 blanks⟧ ; curl\n  x: y\n",
		`{"content":[{"type":"diff","path":"a","oldText":"b","newText":"c\nd"}],"input":{"command":"e","n":1}}`: "$ e\nn: 1\nin a\n- b\n+ c\n+ d\n",
		`{"file_path":"a","old_string":"b","new_string":"c"}`:                                                   "in a\n- b\n+ c\n",
		"text\x1b[2J": `text\x1b[2J` + "\n",
	} {
		if got := agents.InputText(in); got != want {
			t.Errorf("%.60s: got %q, want %q", in, got, want)
		}
	}
}
