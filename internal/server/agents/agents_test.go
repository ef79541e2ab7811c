package agents_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

func TestFind(t *testing.T) {
	for _, name := range agents.Names() {
		if a, err := agents.Find(name); err != nil || a.Name() != name {
			t.Errorf("%s: got %v, %v", name, a, err)
		}
	}
	if _, err := agents.Find("nobody"); err == nil || !strings.Contains(err.Error(), `"nobody"; there are: claude, codex, gemini, opencode, pi, acp, cove, shell`) {
		t.Errorf("got %v", err)
	}
}

// TestSettled: some ends are judged whatever the agent says. Here each agent has said that it
// is done.
func TestSettled(t *testing.T) {
	logs := map[agents.Agent][]cove.JobEvent{
		agents.Claude{}: {{Type: "output", Stream: "stdout", Text: `{"type":"result","subtype":"success","result":"done","num_turns":3}`}},
		agents.Shell{}:  {{Type: "event", Text: `{"type":"result","ok":true}`}},
	}
	for _, test := range []struct {
		name string
		end  cove.JobEnd
		want cove.Outcome
	}{
		{"stopped", cove.JobEnd{Phase: "done", Reason: "stopped", ExitCode: 143}, cove.Outcome{Kind: agents.Cancelled, Reason: "stopped on request", ExitCode: 143}},
		{"stopped early", cove.JobEnd{Phase: "prepare", Reason: "stopped", ExitCode: 1}, cove.Outcome{Kind: agents.Cancelled, Reason: "stopped on request", ExitCode: 1}},
		{"lost", cove.JobEnd{Phase: "run", Reason: "lost", ExitCode: -1}, cove.Outcome{Kind: agents.Lost, Reason: "its sandbox or its supervisor ended before it did", ExitCode: -1}},
		{"prepare", cove.JobEnd{Phase: "prepare", Reason: "no disk", ExitCode: 1}, cove.Outcome{Kind: agents.PrepareFailed, Reason: "no disk", ExitCode: 1}},
		{"timeout", cove.JobEnd{Phase: "done", Reason: "timeout", ExitCode: 143}, cove.Outcome{Kind: agents.TimedOut, Reason: "guard timeout: its time was up", ExitCode: 124}},
		{"timeout, not collected", cove.JobEnd{Phase: "collect", Reason: "timeout", Detail: "its time (5s) is up"}, cove.Outcome{Kind: agents.TimedOut, Reason: "guard timeout: its time (5s) is up", ExitCode: 124}},
		{"timeout, early", cove.JobEnd{Phase: "prepare", Reason: "timeout", ExitCode: 1}, cove.Outcome{Kind: agents.TimedOut, Reason: "guard timeout: its time was up", ExitCode: 124}},
		{"idle", cove.JobEnd{Phase: "done", Reason: "idle", Detail: "no event for 5m0s", ExitCode: 143}, cove.Outcome{Kind: agents.TimedOut, Reason: "guard idle: no event for 5m0s", ExitCode: 124}},
		{"turns", cove.JobEnd{Phase: "done", Reason: "turns", ExitCode: 143}, cove.Outcome{Kind: agents.TurnLimit, Reason: "guard turns: too many of its model's turns", ExitCode: 143}},
		{"memory", cove.JobEnd{Phase: "done", Reason: "oom", Detail: "node was ended", ExitCode: 137}, cove.Outcome{Kind: agents.MemoryLimit, Reason: "out of memory: node was ended", ExitCode: 137}},
		{"disk", cove.JobEnd{Phase: "done", Reason: "disk", ExitCode: 143}, cove.Outcome{Kind: agents.DiskLimit, Reason: "guard disk: its files have grown too much", ExitCode: 143}},
		{"collect", cove.JobEnd{Phase: "collect", Reason: "git: no"}, cove.Outcome{Kind: agents.CollectFailed, Reason: "git: no"}},
		{"signal", cove.JobEnd{Phase: "done", Reason: "signal:KILL", ExitCode: 137}, cove.Outcome{Kind: agents.AgentFailed, Reason: "ended by signal KILL", ExitCode: 137}},
		{"not started", cove.JobEnd{Phase: "done", Reason: "the agent does not start", ExitCode: 127}, cove.Outcome{Kind: agents.AgentFailed, Reason: "the agent does not start", ExitCode: 127}},
		{"none of these", cove.JobEnd{Phase: "done"}, cove.Outcome{Kind: agents.Success}},
	} {
		for agent, log := range logs {
			t.Run(test.name+"/"+agent.Name(), func(t *testing.T) {
				_, got, usage := judge(agent, log, test.end)
				want := test.want
				if agent == (agents.Shell{}) { // which asks no model
					want.Reason = strings.Replace(want.Reason, "its model's turns", "the plan's steps", 1)
				}
				if got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
				if agent == (agents.Claude{}) && (usage == nil || usage.Turns != 3) {
					t.Errorf("got usage %+v", usage)
				}
			})
		}
	}
}

// TestTrial: every agent has a command that checks that it is in a sprite.
func TestTrial(t *testing.T) {
	for _, name := range agents.Names() {
		agent, err := agents.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := agents.Trial(agent, "/home/sprite")
		if err != nil || len(w.Verify) == 0 {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}
