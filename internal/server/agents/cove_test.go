package agents_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

const (
	coveStart  = `{"seq":1,"type":"start","session_id":"0123456789abcdef","model":"m","tools":["Bash","finish"]}`
	coveUsage  = `{"seq":2,"type":"usage","turn":1,"usage":{"input_tokens":10,"output_tokens":2},"cost_usd":0.5}`
	coveRetry  = `{"seq":3,"type":"retry","attempt":2,"ms":5,"status":529,"text":"overloaded (status 529)"}`
	coveResult = `{"seq":9,"type":"result","result":{"outcome":"OUTCOME","text":"WHY","session_id":"0123456789abcdef","turns":2,"input_tokens":20,"output_tokens":4,"cost_usd":1}}`
)

func coveEnds(outcome, why string) string {
	return strings.NewReplacer("OUTCOME", outcome, "WHY", why).Replace(coveResult)
}

func TestCoveJudge(t *testing.T) {
	done := cove.JobEnd{Phase: "done"}
	failed := cove.JobEnd{Phase: "done", ExitCode: 1}
	whole := &cove.Usage{InputTokens: 20, OutputTokens: 4, CostUSD: 1, Turns: 2}
	soFar := &cove.Usage{InputTokens: 10, OutputTokens: 2, CostUSD: 0.5, Turns: 1}
	for _, test := range []struct {
		name  string
		log   []cove.JobEvent
		end   cove.JobEnd
		want  cove.Outcome
		usage *cove.Usage
	}{
		{"done", printed(coveStart, coveUsage, coveEnds("done", "All.")), done, cove.Outcome{Kind: agents.Success}, whole},
		{"noise", printed("", "{", "[1]", `{"type":"result"}`, `{"seq":1,"type":7}`, coveEnds("done", "x"), "bye"), done, cove.Outcome{Kind: agents.Success}, whole},
		{"incomplete", printed(coveEnds("incomplete", "No compiler.")), failed, cove.Outcome{Kind: agents.AgentFailed, Reason: "No compiler.", ExitCode: 1}, whole},
		{"too dear", printed(coveEnds("max_cost", "too much")), failed, cove.Outcome{Kind: agents.CostLimit, Reason: "guard cost: too much", ExitCode: 1}, whole},
		{"too many turns", printed(coveEnds("max_turns", "stopped after 2 turns")), failed, cove.Outcome{Kind: agents.TurnLimit, Reason: "stopped after 2 turns", ExitCode: 1}, whole},
		{"result and exit code", printed(coveEnds("done", "")), failed, cove.Outcome{Kind: agents.AgentFailed, Reason: "exited with 1 though it reported a result", ExitCode: 1}, whole},
		{"no result", printed(coveStart, coveUsage), failed, cove.Outcome{Kind: agents.NoResult, Reason: "ended with exit code 1 and without a result", ExitCode: 1}, soFar},
		{"killed while it waits", printed(coveStart, coveUsage, coveRetry), failed,
			cove.Outcome{Kind: agents.NoResult, Reason: "ended without a result; the model last answered overloaded (status 529)", ExitCode: 1}, soFar},
		{"stopped", printed(coveUsage, coveEnds("cancelled", "stopped")), cove.JobEnd{Phase: "done", Reason: "stopped", ExitCode: 130},
			cove.Outcome{Kind: agents.Cancelled, Reason: "stopped on request", ExitCode: 130}, whole},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := agents.Cove{}.Read()
			for _, ev := range test.log {
				r.Event(ev)
			}
			o, usage := r.Judge(test.end)
			if diff := cmp.Diff(test.want, o); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(test.usage, usage); diff != "" {
				t.Errorf("usage: -want +got:\n%s", diff)
			}
		})
	}
}

func TestCovePrepare(t *testing.T) {
	task := agents.Task{Plan: "Do it.", PlanName: "p", Dir: "/j", Workdir: "/home/sprite/work/1/x", Home: "/home/sprite"}
	for _, test := range []struct {
		name string
		edit func(*agents.Task)
		argv string // a part
		env  string
		err  string
	}{
		{"by default", func(*agents.Task) {}, "--model anthropic/claude-", "ANTHROPIC_BASE_URL=http://anthropic.connect.internal ANTHROPIC_API_KEY=cove-adds", ""},
		{"openai", func(t *agents.Task) { t.Model = "openai/x/y" }, "--model openai/x/y", "OPENAI_BASE_URL=http://openai.connect.internal/v1 ", ""},
		{"gemini", func(t *agents.Task) { t.Model = "gemini/z" }, "--model gemini/z", "GOOGLE_GEMINI_BASE_URL=http://gemini.connect.internal ", ""},
		{"its own key", func(t *agents.Task) { t.Direct = true }, "", "", ""},
		{"limits", func(t *agents.Task) {
			t.Price, t.MaxUSD = &cove.ConnectorPrice{Input: 0.0000001, Output: 15}, 2.5
		}, "--price 0.0000001/15 --max-cost 2.5", "", ""},
		{"goes on", func(t *agents.Task) { t.Session = "0123456789abcdef" }, "/home/sprite/.local/share/cove/sessions/-home-sprite-work-1-x --resume 0123456789abcdef", "", ""},
		{"another model", func(t *agents.Task) { t.Model = "x/y" }, "", "", "PROVIDER/MODEL"},
		{"half a model", func(t *agents.Task) { t.Model = "openai/" }, "", "", "PROVIDER/MODEL"},
		{"in a terminal", func(t *agents.Task) { t.Interactive = true }, "", "", "terminal"},
		{"no plan", func(t *agents.Task) { t.Plan = "\n" }, "", "", "empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			task := task
			test.edit(&task)
			w, err := agents.Cove{}.Prepare(task)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(w.Argv, " "); !strings.Contains(got, test.argv) {
				t.Errorf("got %s, want %s", got, test.argv)
			}
			if got := strings.Join(w.Env, " "); !strings.Contains(got, test.env) || task.Direct && got != "" {
				t.Errorf("got %s, want %s", got, test.env)
			}
			text := string(w.Files["prompt.md"].Data)
			if !strings.HasSuffix(text, "Do it.") || strings.Contains(text, "# The plan") != (task.Session == "") {
				t.Errorf("the prompt is %q", text)
			}
			w.Place("cove-loop", "/x")
			if w.Argv[0] != "/x" || w.Verify[0] != "/x" || !slices.Equal(w.Programs, []string{"cove-loop"}) {
				t.Errorf("its program: %v, %v", w.Argv, w.Verify)
			}
		})
	}
}

// TestModel: an agent gets a model that it can ask, and refuses another one.
func TestModel(t *testing.T) {
	task := agents.Task{Plan: "```sh\ntrue\n```", Dir: "/j", Home: "/h", Model: "anthropic/claude-x"}
	if w, err := (agents.Claude{}).Prepare(task); err != nil || !slices.Contains(w.Env, "ANTHROPIC_MODEL=claude-x") {
		t.Errorf("claude: %v, %v", w.Env, err)
	}
	if _, err := (agents.Shell{}).Prepare(task); err == nil {
		t.Error("the shell agent takes a model")
	}
	task.Model = "openai/x"
	if _, err := (agents.Claude{}).Prepare(task); err == nil || !strings.Contains(err.Error(), "anthropic/MODEL") {
		t.Errorf("claude with another's: %v", err)
	}
}

// TestCoveSession: a session is a plain name or empty, whatever a log from a sprite has.
func TestCoveSession(t *testing.T) {
	for session, want := range map[string]string{"0b5f-3": "0b5f-3", "--resume=x": "", "a\\u001b[2J": "", "": ""} {
		r := agents.Cove{}.Read()
		r.Event(cove.JobEvent{Type: "output", Stream: "stdout", Text: `{"seq":1,"type":"start","session_id":"` + session + `"}`})
		if got := r.(agents.Rememberer).Session(); got != want {
			t.Errorf("%q: got %q, want %q", session, got, want)
		}
	}
}
