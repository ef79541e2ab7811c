package job

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
)

const replayPage = 16 // events, which may be large

// judgement is what a job's log says of its agent's work.
type judgement struct {
	outcome cove.Outcome
	usage   *cove.Usage
	session string // the agent's own
}

// judge lets the agent's reader read the whole log.
func judge(ctx context.Context, jobs *store.Jobs, job cove.Job, result cove.JobEnd) (judgement, error) {
	reader, err := readLog(ctx, jobs, job)
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
		err = withoutEarlier(ctx, jobs, job, j.usage)
	}
	return j, err
}

// readLog lets the agent's reader read the log.
func readLog(ctx context.Context, jobs *store.Jobs, job cove.Job) (agents.Reader, error) {
	agent, err := agentOf(job.Agent, job.Definition)
	if err != nil {
		return nil, err
	}
	reader := agent.Read()
	for next := int64(1); ; {
		events, err := jobs.Events(ctx, job.ID, next, replayPage)
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
		if !commitID().MatchString(*commit) {
			*commit = ""
		}
	}
	r.Commits = max(r.Commits, 0)
	r.Phase, r.Reason, r.Detail, r.Uncollected = clip(r.Phase), clip(r.Reason), clip(r.Detail), clip(r.Uncollected)
	if r.Bundle.Size <= 0 || !sha256ID().MatchString(r.Bundle.SHA256) || r.Head == "" && r.Leftover == "" {
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

// bounded keeps what a log says of a model's use in bounds. Sums of made-up numbers may be
// negative, or too large for JSON.
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

// withoutEarlier takes from a session's whole usage what the jobs before have had of it.
func withoutEarlier(ctx context.Context, jobs *store.Jobs, job cove.Job, usage *cove.Usage) error {
	for id := job.ResumeOf; id != ""; {
		old, err := jobs.Get(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil // forgotten, and what it used with it
		}
		if err != nil {
			return err
		}
		if u := old.Usage; u != nil {
			usage.InputTokens = max(0, usage.InputTokens-u.InputTokens)
			usage.OutputTokens = max(0, usage.OutputTokens-u.OutputTokens)
		}
		id = old.ResumeOf
	}
	return nil
}
