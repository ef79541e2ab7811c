package web

import (
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// hostile is a text as an agent may say it, to see that it does no harm. No page may run it,
// or have its characters that act on others.
const hostile = "<img src=x onerror=window.__owned=1><svg onload=window.__owned=1> \x1b[31mred\x1b[0m \u202egnp.exe\u2066 a\u2028b \x1b]0;title\a\xff"

// jobComponents are those of a job's pages.
func jobComponents() []component {
	begun := time.Now().Add(-5 * time.Minute)
	working := cove.Job{ID: "0a1b2c", State: cove.JobRunning, CreatedAt: begun, OwnsSprite: true}
	working.Agent, working.PlanName, working.Repository, working.Branch, working.Sprite, working.StartedAt, working.LastSeq = "claude", "paint.md", "shed", "main", "job-0a1b2c", &begun, 40
	waiting := working
	waiting.State, waiting.Converse = cove.JobWaiting, true
	waiting.Question = &cove.JobQuestion{ID: "1", Title: "Run rm -r build?", Kind: "execute", Detail: "rm -r build", Options: []cove.QuestionOption{{ID: "1", Name: "Allow", Kind: "allow_once"}, {ID: "2", Name: "Reject", Kind: "reject_once"}}}
	done := working
	ended := begun.Add(3 * time.Minute)
	done.State, done.EndedAt, done.Head, done.Base, done.Commits, done.AgentSession = cove.JobSucceeded, &ended, "1", "2", 2, "s1"
	done.JobResult.Usage = &cove.Usage{InputTokens: 1000, OutputTokens: 200, CostUSD: 0.42, Turns: 7}
	failed := done
	failed.State, failed.Outcome = cove.JobFailed, &cove.Outcome{Kind: agents.AgentFailed, Reason: hostile}
	views := func(name string, states ...string) (all []component) {
		for i, j := range []cove.Job{working, waiting, done, failed} {
			if i < len(states) {
				all = append(all, component{name, states[i], jobView{rights: rights{true, true, true}, Job: j, Tab: "talk"}})
			}
		}
		return all
	}
	all := []component{{"other-agents", "one is ready", otherAgentsView{All: []otherAgent{{"claude", ""}, {"codex", "no key or log-in is set for openai"}}}}, {"other-agents", "none is ready", otherAgentsView{All: []otherAgent{{"codex", "no key or log-in is set for openai"}}, Admin: true}}, {"job-acts", "done, for a token that may read", jobView{Job: done}}, {"job-question", "for a token that may read", jobView{Job: waiting}}}
	for _, name := range []string{"job-head", "job-question", "job-talk", "job-acts"} {
		all = append(all, views(name, "working", "waiting", "done", "failed")...)
	}
	all = append(all, component{"replay", "of 40 events", jobView{rights: rights{true, true, true}, Job: working}})
	gone := failed
	gone.WorkDeleted = true
	lost := jobView{rights: rights{true, true, true}, Job: gone, Gone: true}
	cut := jobView{rights: rights{true, true, true}, Job: failed, Refused: []string{"registry.example:443", hostile}}
	all = append(all, component{"job-head", "its sprite is gone", lost}, component{"job-acts", "its sprite is gone", lost}, component{"job-head", "what it was refused", cut})
	again := jobView{rights: rights{true, true, true}, Job: done, After: []cove.Job{{ID: "0a1b2d", State: cove.JobTimedOut, RetryOf: done.ID, JobSettings: cove.JobSettings{Agent: "codex"}}, {ID: "0a1b2e", State: cove.JobRunning, ResumeOf: done.ID}}}
	all = append(all, component{"job-head", "done again, and gone on with", again}, component{"told", "a plan", toldView{Name: "plan.md", Parts: prose(hostile)}},
		component{"told", "a message", toldView{Parts: prose("Use blue.")}}, component{"told", "the server can't tell", toldView{}})
	all = append(all, component{"job-steps", "none yet", stepsView{}},
		component{"job-steps", "one runs, one has failed", newStepsView(cove.JobSteps{Steps: []cove.Step{
			{Key: cove.StepCreateSprite, State: cove.StepCompleted, StartedAt: &begun, EndedAt: &ended},
			{Key: cove.StepClone, State: cove.StepRunning, StartedAt: &ended, Output: cove.StepOutput{Head: "\x1b[32mok\x1b[0m cloning\n"}},
			{Key: cove.StepSetupScript, State: cove.StepFailed, StartedAt: &ended, EndedAt: &ended, Error: "exit 1", Hint: "cove job retry 0a1b2c"},
			{Key: cove.StepInstallDeps, State: cove.StepSkipped, Detail: "git is there"}, {Key: cove.StepVerifyCommit, State: cove.StepPending}}}, nil)},
		component{"job-steps", "the head says why it failed", newStepsView(cove.JobSteps{Steps: []cove.Step{
			{Key: cove.StepClone, State: cove.StepFailed, StartedAt: &begun, EndedAt: &ended, Error: "the repository is not there", Hint: "cove job retry 0a1b2c"}}}, &cove.Outcome{Kind: "prepare_failed", Reason: "clone: the repository is not there"})})
	return append(append(all, entryComponents(ended)...), diffComponents(jobView{rights: rights{true, true, true}, Job: done}, ended)...)
}

func entryComponents(at time.Time) (all []component) {
	t := newTranscript(working(), true)
	edit := agents.Event{Kind: agents.KindToolStart, Tool: "Edit", ID: "a", Full: `{"file_path":"a.go","old_string":"a","new_string":"b"}`}
	for i, e := range []agents.Event{
		{Kind: agents.KindText, Text: "I look.\n```diff\n-a\n+b\n```\nDone. " + hostile}, {Kind: agents.KindThought, Text: "Hm."}, edit,
		{Kind: agents.KindToolEnd, ID: "a", Full: hostile}, {Kind: agents.KindToolStart, Tool: "Bash", ID: "b", Full: `{"command":"make"}`},
		{Kind: agents.KindToolEnd, ID: "z", Full: "no", Failed: true}, {Kind: agents.KindAsk, Text: "May I?"}, {Kind: agents.KindStep, Text: "1. Paint"}, {Kind: agents.KindResult, Text: "All done."},
	} {
		t.agent(cove.JobEvent{Seq: int64(i + 1), Time: at}, 0, e)
	}
	code := 1
	for i, ev := range []cove.JobEvent{{Type: "output", Text: hostile}, {Type: "output", Text: "\x1b[1;32mPASS\x1b[0m"}, {Type: "input", Text: "Go on."}, {Type: "notice", Text: hostile}, {Type: "state", State: cove.JobRunning}, {Type: "exit", ExitCode: &code, Text: "no"}, {Type: "end"}} {
		ev.Seq, ev.Time = int64(100+i), at
		t.add(ev)
	}
	for _, e := range t.entries {
		all = append(all, component{"entry", e.Kind, e})
	}
	return all
}

func working() cove.Job {
	var j cove.Job
	j.Agent = "claude"
	return j
}

func diffComponents(j jobView, at time.Time) []component {
	comment := cove.JobComment{ID: 1, Path: "a.go", Side: cove.SideNew, Line: 2, Text: hostile, CreatedAt: at}
	diff := cove.JobDiff{Job: j.ID, Cut: "the lines of some files are left out, and each of these files says so", Commits: []cove.JobDiffCommit{{ID: "0123456789abcdef", Author: "Ada", Subject: hostile, Time: at}}, Files: []cove.JobDiffFile{
		{Path: ".github/workflows/ci.yml", Status: cove.DiffAdded, Added: 1, Risk: "runs in CI; " + hostile, Hunks: []cove.JobDiffHunk{{NewStart: 1, Lines: []cove.JobDiffLine{{Kind: "+", New: 1, Text: "on: push"}}}}},
		{Path: "a.go", OldPath: "b.go", Status: cove.DiffRenamed, Added: 1, Deleted: 1, Hunks: []cove.JobDiffHunk{{OldStart: 1, NewStart: 1, Section: "func a", Lines: []cove.JobDiffLine{{Kind: " ", Old: 1, New: 1, Text: "x"}, {Kind: "-", Old: 2, Text: hostile}, {Kind: "+", New: 2, Text: "y", Cut: true}}}}},
		{Path: "x.png", Status: cove.DiffModified, Binary: true, Listed: "runs when you build or test", Hunks: []cove.JobDiffHunk{}},
		{Path: "data.txt", Status: cove.DiffAdded, Added: 30_000, LeftOut: "too long", Hunks: []cove.JobDiffHunk{}},
		{Path: "more.txt", Status: cove.DiffModified, Uncounted: true, LeftOut: "too long", Hunks: []cove.JobDiffHunk{}},
	}}
	talks := j
	talks.AgentSession = ""
	return []component{
		{"comments", "none", commentsView{jobView: j}},
		{"comments", "some", commentsView{jobView: j, Comments: []cove.JobComment{comment}}},
		{"comments", "some, which can't be sent", commentsView{jobView: talks, Comments: []cove.JobComment{comment}}},
		{"comment", "one", comment},
		{"comment-added", "the only one", dictOf("Comment", comment, "All", commentsView{jobView: j, Comments: []cove.JobComment{comment}})},
		{"comment-deleted", "the last one", dictOf("ID", 2, "All", commentsView{jobView: j})},
		{"diff", "in one column", newDiffView(diff, []cove.JobComment{comment}, "one")},
		{"diff", "side by side", newDiffView(diff, []cove.JobComment{comment}, "side")},
		{"diff", "nothing", newDiffView(cove.JobDiff{Base: diff.Base, Head: diff.Head, Compares: cove.DiffCommits}, nil, "one")},
		{"diff", "no commit", newDiffView(cove.JobDiff{Base: diff.Base, Compares: cove.DiffCommits}, nil, "one")},
		{"diff", "what is left uncommitted", newDiffView(cove.JobDiff{Job: j.ID, Part: cove.DiffLeftover, Leftover: "0123456789abcdef", Files: diff.Files}, nil, "one")},
		{"usage", "cost and tokens", usageCharts([]usagePoint{{At: at}, {at.Add(time.Minute), 0.1, 1000}, {at.Add(3 * time.Minute), 0.4, 9000}})},
		{"usage", "nothing", []usageChart(nil)},
	}
}
