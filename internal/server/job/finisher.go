package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// stateOf is the state that an outcome leaves a job in; any other is failed.
var stateOf = map[string]cove.JobState{
	agents.Success:   cove.JobSucceeded,
	agents.TimedOut:  cove.JobTimedOut,
	agents.Cancelled: cove.JobCancelled,
	agents.Lost:      cove.JobLost,
}

// finisher records the ends of jobs. It judges a job by its log, takes back what the job
// was granted, and removes the sprite of a job that never began.
type finisher struct {
	jobs        *store.Jobs
	connectors  *connectors
	jobSprites  *jobSprites
	supervisors *supervisors
	turns       *turns
	publisher   *publisher
	withdrawals *withdrawals
}

// ended finishes a job whose log is in the store with its end: a server may have
// died between the two.
func (f *finisher) ended(ctx context.Context, job cove.Job) (bool, error) {
	if job.LastSeq == 0 {
		return false, nil
	}
	last, err := f.jobs.Events(ctx, job.ID, job.LastSeq, 1)
	if err != nil || len(last) == 0 || last[0].Type != "end" {
		return false, err
	}
	return true, f.end(ctx, job, last[0])
}

// end judges a job by its whole log, stores the last event with the judgement,
// and finishes the job.
func (f *finisher) end(ctx context.Context, job cove.Job, ev cove.JobEvent) error {
	result := forcedEnd(job, sanitize(*ev.Result, job.ID))
	if job.Stopping && result.Reason == "lost" {
		result.Reason = forcedStop // it was to end, and its supervisor came back without knowing
	}
	ev.Result = &result
	j, err := judge(ctx, f.jobs, job, result)
	if err != nil {
		return fmt.Errorf("judge job %s: %w", job.ID, err)
	}
	outcome, usage, session := j.outcome, bounded(j.usage), j.session
	if len(session) > maxSession {
		session = "" // an agent would know nothing of it either
	}
	outcome.Kind, outcome.Reason = clip(outcome.Kind), clip(outcome.Reason)
	if outcome.Kind == agents.Lost && job.Error != "" {
		outcome.Reason += ": " + job.Error
	}
	outcome.Reason = endReason(job, outcome)
	ev.Outcome, ev.Usage = &outcome, usage
	if err := f.jobs.AppendEvents(ctx, job.ID, []cove.JobEvent{ev}); err != nil {
		return err
	}
	if job.Service != "" {
		f.retire(ctx, job)
	}
	state := stateOf[outcome.Kind]
	if state == "" {
		state = cove.JobFailed
	}
	_, err = f.finish(ctx, job.ID, state, outcome, func(j *cove.Job) {
		j.Head, j.Leftover, j.Commits, j.Bundle = result.Head, result.Leftover, result.Commits, result.Bundle
		j.Uncollected = result.Uncollected
		j.Published = begun(*j, state, result)
		j.Usage, j.Session, j.Service = usage, "", ""
		j.Handed = j.Handed && job.Forced != "" // else its supervisor has taken them out
		j.AgentSession = cmp.Or(session, j.AgentSession)
		j.Error = ""
		if state != cove.JobSucceeded {
			j.Error = outcome.Reason
		}
	})
	f.publisher.more()
	if err == nil && job.Forced != "" {
		f.withdrawals.after(ctx, job.ID)
	}
	return err
}

// retireLimit bounds the deletion of a service whose job has ended.
const retireLimit = 20 * time.Second

// retire deletes the service of a job whose log has its end. A failure is ignored: at the next
// boot the service sees that the job has an end.
func (f *finisher) retire(ctx context.Context, job cove.Job) {
	ctx, cancel := context.WithTimeout(ctx, retireLimit)
	defer cancel()
	_ = f.supervisors.end(ctx, job)
}

// finish is the store's Finish, after the job's connectors are taken back.
func (f *finisher) finish(ctx context.Context, id string, state cove.JobState, outcome cove.Outcome, edit func(*cove.Job)) (bool, error) {
	f.connectors.revoke(ctx, id)
	defer f.turns.over()
	return f.jobs.Finish(ctx, id, state, outcome, func(j *cove.Job) {
		j.Question, j.Installing, j.Unknown = nil, nil, nil // nobody waits for the answer
		j.JobEnding = cove.JobEnding{RanSec: j.RanSec, WaitedSec: j.WaitedSec}
		if edit != nil {
			edit(j)
		}
	})
}

// lose finishes a job if no more will be heard of it. The argument uncollected says why its
// work in its sprite can't be had; empty: there is none.
func (f *finisher) lose(ctx context.Context, id, why, uncollected string) error {
	outcome := cove.Outcome{Kind: agents.Lost, Reason: why, ExitCode: -1}
	_, err := f.finish(ctx, id, cove.JobLost, outcome, func(j *cove.Job) { j.Error, j.Uncollected, j.Session, j.Service = why, uncollected, "", "" })
	if err == nil {
		f.withdrawals.after(ctx, id)
	}
	return err
}

// loseSprite finishes a job whose sprite is not there any more. Its environment, if it had
// one, is gone.
func (f *finisher) loseSprite(ctx context.Context, job cove.Job, why string) error {
	if err := f.lose(ctx, job.ID, why, ""); err != nil || !job.OwnsSprite {
		return err
	}
	env, err := f.jobSprites.of(ctx, job.ID)
	if err == nil && env.State != cove.EnvironmentGone {
		err = f.jobSprites.environments.Gone(ctx, env)
	}
	return err
}

// abandon ends a job that never began, with the sprite that was made for it.
func (f *finisher) abandon(ctx context.Context, job cove.Job, why string) error {
	outcome := cove.Outcome{Kind: agents.Cancelled, Reason: why, ExitCode: -1}
	won, err := f.finish(ctx, job.ID, cove.JobCancelled, outcome, func(j *cove.Job) { j.Error, j.Upload = why, "" })
	if err != nil || !won {
		return err
	}
	return f.jobSprites.discard(ctx, job, cove.DestroyNeverUsed)
}

// giveUp fails a job that never began, with what to type next, and with the sprite that was
// made for it.
func (f *finisher) giveUp(ctx context.Context, job cove.Job, why error) error {
	body := sprites.ErrorBody{Code: "prepare_failed", Message: why.Error()}
	if e, ok := errors.AsType[*sprites.Error](why); ok {
		body = e.ErrorBody
	} else if e, ok := errors.AsType[*fail.Error](why); ok {
		body.Code, body.Hint = e.Code, e.Hint
	}
	if body.Code == "name_taken" {
		body.Hint = "" // that sprite is somebody's
	}
	if body.Hint == "" {
		body.Hint = "push again"
		if job.RetryOf != "" {
			body.Hint = "cove job retry " + job.RetryOf
		}
	}
	outcome := cove.Outcome{Kind: agents.PrepareFailed, Reason: body.Message, ExitCode: 1}
	won, err := f.finish(ctx, job.ID, cove.JobFailed, outcome, func(j *cove.Job) {
		j.Error, j.Failure, j.Upload = body.Message, &body, ""
	})
	if err != nil || !won {
		return err
	}
	return f.jobSprites.discard(ctx, job, cove.DestroyNeverUsed)
}
