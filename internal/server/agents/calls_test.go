package agents_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// short compares events as a log shows them.
var short = cmpopts.IgnoreFields(agents.Event{}, "ID", "Full")

// TestCalls: the start and the end of a tool call have the call's ID, and all of its input and
// output. Thoughts have a kind of their own.
func TestCalls(t *testing.T) {
	for _, test := range []struct {
		agent agents.Agent
		lines []string
		want  []agents.Event
	}{
		{agents.Claude{}, []string{
			`{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"a","name":"Bash","input":{"command":"ls\nls"}}]}}`,
			`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"x\ny"}]}]}}`,
		}, []agents.Event{{Kind: agents.KindThought, Text: "hm"}, {Kind: agents.KindToolStart, ID: "a", Full: `{"command":"ls\nls"}`}, {Kind: agents.KindToolEnd, ID: "a", Full: "x\ny"}}},
		{agents.Codex{}, []string{
			`{"type":"item.completed","item":{"type":"reasoning","text":"hm"}}`,
			`{"type":"item.started","item":{"id":"a","type":"command_execution","command":"ls"}}`,
			`{"type":"item.completed","item":{"id":"a","type":"command_execution","command":"ls","aggregated_output":"x\ny"}}`,
		}, []agents.Event{{Kind: agents.KindThought, Text: "hm"}, {Kind: agents.KindToolStart, ID: "a", Full: "ls"}, {Kind: agents.KindToolEnd, ID: "a", Full: "x\ny"}}},
		{agents.Gemini{}, []string{`{"type":"tool_use","tool_id":"a","tool_name":"sh","parameters":{"command":"ls"}}`, `{"type":"tool_result","tool_id":"a","output":"x\ny"}`},
			[]agents.Event{{Kind: agents.KindToolStart, ID: "a", Full: `{"command":"ls"}`}, {Kind: agents.KindToolEnd, ID: "a", Full: "x\ny"}}},
		{agents.Cove{}, []string{`{"seq":1,"type":"tool_start","id":"a","tool":"Bash","input":{"command":"ls"}}`, `{"seq":2,"type":"tool_result","id":"a","text":"x\ny"}`},
			[]agents.Event{{Kind: agents.KindToolStart, ID: "a", Full: `{"command":"ls"}`}, {Kind: agents.KindToolEnd, ID: "a", Full: "x\ny"}}},
		{agents.Pi{}, []string{`{"type":"tool_execution_start","toolCallId":"a","toolName":"bash","args":{"command":"ls"}}`, `{"type":"tool_execution_end","toolCallId":"a","result":{"content":[{"type":"text","text":"x\ny"}]}}`},
			[]agents.Event{{Kind: agents.KindToolStart, ID: "a", Full: `{"command":"ls"}`}, {Kind: agents.KindToolEnd, ID: "a", Full: "x\ny"}}},
	} {
		r := test.agent.Read()
		var got []agents.Event
		for i, line := range test.lines {
			got = append(got, r.Event(cove.JobEvent{Seq: int64(i + 1), Type: "output", Stream: "stdout", Text: line})...)
		}
		if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(agents.Event{}, "Tool"), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Text" }, cmp.Comparer(func(a, b string) bool { return a == "" || b == "" || a == b }))); diff != "" {
			t.Errorf("%s: %s", test.agent.Name(), diff)
		}
	}
}
