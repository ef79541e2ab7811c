package job

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// stateOf is the state that an outcome leaves a job in; any other is failed.
var stateOf = map[string]cove.JobState{
	agents.Success:   cove.JobSucceeded,
	agents.TimedOut:  cove.JobTimedOut,
	agents.Cancelled: cove.JobCancelled,
	agents.Lost:      cove.JobLost,
}

const replayPage = 16 // events, which may be large

// ended finishes a job whose log is in the store with its end: a server may have
// died between the two.
func (m *Manager) ended(ctx context.Context, job cove.Job) (bool, error) {
	if job.LastSeq == 0 {
		return false, nil
	}
	last, err := m.Store.Jobs.Events(ctx, job.ID, job.LastSeq, 1)
	if err != nil || len(last) == 0 || last[0].Type != "end" {
		return false, err
	}
	return true, m.end(ctx, job, last[0])
}

// end judges a job by its whole log, stores the last event with the judgement,
// and finishes the job.
func (m *Manager) end(ctx context.Context, job cove.Job, ev cove.JobEvent) error {
	result := forcedEnd(job, sanitize(*ev.Result, job.ID))
	ev.Result = &result
	j, err := m.judge(ctx, job, result)
	if err != nil {
		return fmt.Errorf("judge job %s: %w", job.ID, err)
	}
	outcome, usage, session := j.outcome, bounded(j.usage), j.session
	if len(session) > maxSession {
		session = "" // of which an agent would know nothing either
	}
	outcome.Kind, outcome.Reason = clip(outcome.Kind), clip(outcome.Reason)
	if outcome.Kind == agents.Lost && job.Error != "" {
		outcome.Reason += ": " + job.Error
	}
	outcome.Reason = endReason(job, outcome)
	ev.Outcome, ev.Usage = &outcome, usage
	if err := m.Store.Jobs.AppendEvents(ctx, job.ID, []cove.JobEvent{ev}); err != nil {
		return err
	}
	state := stateOf[outcome.Kind]
	if state == "" {
		state = cove.JobFailed
	}
	_, err = m.finish(ctx, job.ID, state, outcome, func(j *cove.Job) {
		j.Head, j.Leftover, j.Commits, j.Bundle = result.Head, result.Leftover, result.Commits, result.Bundle
		j.Uncollected = result.Uncollected
		j.Usage, j.Session = usage, ""
		j.AgentSession = cmp.Or(session, j.AgentSession)
		j.Error = ""
		if state != cove.JobSucceeded {
			j.Error = outcome.Reason
		}
	})
	return err
}

// judgement is what a job's log says of its agent's work.
type judgement struct {
	outcome cove.Outcome
	usage   *cove.Usage
	session string // the agent's own
}

// judge lets the agent's reader read the whole log.
func (m *Manager) judge(ctx context.Context, job cove.Job, result cove.JobEnd) (judgement, error) {
	reader, err := m.read(ctx, job)
	if err != nil {
		return judgement{}, err
	}
	j := judgement{session: sessionOf(reader)}
	if job.Interactive && result.Phase == "done" && result.Reason == "" && result.ExitCode == 0 {
		// A person sat at it, and decided that it was over.
		j.outcome = cove.Outcome{Kind: agents.Success}
		return j, nil
	}
	j.outcome, j.usage = reader.Judge(result)
	if _, total := reader.(agents.Totaller); total && j.usage != nil {
		err = m.withoutEarlier(ctx, job, j.usage)
	}
	return j, err
}

// read lets the agent's reader read the log.
func (m *Manager) read(ctx context.Context, job cove.Job) (agents.Reader, error) {
	agent, err := agentOf(job.Agent, job.Definition)
	if err != nil {
		return nil, err
	}
	reader := agent.Read()
	for next := int64(1); ; {
		events, err := m.Store.Jobs.Events(ctx, job.ID, next, replayPage)
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			reader.Event(ev)
			next = ev.Seq + 1
		}
		if len(events) < replayPage {
			return reader, nil
		}
	}
}

// sanitize leaves of a result what may be one: it comes from a place where an
// agent worked.
func sanitize(r cove.JobEnd, id string) cove.JobEnd {
	for _, commit := range []*string{&r.Head, &r.Leftover} {
		if !commitID.MatchString(*commit) {
			*commit = ""
		}
	}
	r.Commits = max(r.Commits, 0)
	r.Phase, r.Reason, r.Detail, r.Uncollected = clip(r.Phase), clip(r.Reason), clip(r.Detail), clip(r.Uncollected)
	if r.Bundle.Size <= 0 || !sha256ID.MatchString(r.Bundle.SHA256) || r.Head == "" && r.Leftover == "" {
		if r.Head != "" || r.Leftover != "" {
			r.Uncollected = cmp.Or(r.Uncollected, "its log names commits, but no bundle that has them")
		}
		r.Bundle, r.Head, r.Leftover, r.Commits = cove.Artifact{}, "", "", 0
		return r
	}
	r.Bundle.Path = dir(id) + "/out.bundle"
	return r
}

// Bounds on what a job's record takes from its log. It is a part of every list of jobs.
const (
	maxReason  = 4 << 10 // bytes of a text
	maxSession = 1 << 10 // bytes of an agent's name for its session
	maxTokens  = 1 << 50
	maxCost    = 1e9 // dollars
)

// clip shortens a text to what a job's record may have of it.
func clip(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + "…"
}

// bounded makes of what a log says of a model's use what can be: sums of made-up
// numbers may be negative, or so large that JSON has no word for them.
func bounded(u *cove.Usage) *cove.Usage {
	if u == nil {
		return nil
	}
	count := func(n int64) int64 { return min(max(n, 0), maxTokens) }
	b := cove.Usage{InputTokens: count(u.InputTokens), OutputTokens: count(u.OutputTokens), Turns: count(u.Turns)}
	if u.CostUSD > 0 { // false of NaN
		b.CostUSD = min(u.CostUSD, maxCost)
	}
	return &b
}

// lose finishes a job of which no more will be heard. Uncollected is why what it left in
// its sprite can't be had; empty: there is none.
func (m *Manager) lose(ctx context.Context, id, why, uncollected string) error {
	outcome := cove.Outcome{Kind: agents.Lost, Reason: why, ExitCode: -1}
	_, err := m.finish(ctx, id, cove.JobLost, outcome, func(j *cove.Job) { j.Error, j.Uncollected, j.Session = why, uncollected, "" })
	return err
}
