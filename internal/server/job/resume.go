package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Continue has the agent of a job that has ended go on with its own session, as
// another job with the same settings: in the same clone, as it is, in the job's
// sprite or in a fork of that. The new job begins from the same commit, so that its
// commits are those of both.
func (m *Manager) Continue(ctx context.Context, id string, how cove.JobResume) (cove.Job, error) {
	old, unlock, err := m.finished(ctx, id)
	if err != nil {
		return old, err
	}
	defer unlock()
	if strings.TrimSpace(how.Message) == "" {
		return old, fail.Newf("bad_request", "say what is to be done", "the message is empty")
	}
	if old.AgentSession, err = m.agentSession(ctx, old); err != nil {
		return old, err
	}
	target := old
	target.Sprite = cmp.Or(how.Sprite, old.Sprite)
	free, err := m.locks.lock(ctx, "clone "+target.Backend+" "+target.Sprite+" "+target.Workdir)
	if err != nil {
		return old, err
	}
	defer free()
	if err := m.canGoOn(ctx, target); err != nil {
		return old, err
	}
	job, err := m.createNext(ctx, target, how.Message)
	if err != nil {
		return job, err
	}
	if err := m.goOn(ctx, target, job); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		return job, errors.Join(fmt.Errorf("resume job %s: %w", id, err), m.Delete(undo, job.ID, true))
	}
	return m.Store.Jobs.Get(ctx, job.ID)
}

// agentSession is what a job's agent calls its session.
func (m *Manager) agentSession(ctx context.Context, job cove.Job) (string, error) {
	if job.AgentSession != "" {
		return job.AgentSession, nil
	}
	reader, err := m.read(ctx, job) // a job that was lost has no end that would have told
	if err != nil {
		return "", err
	}
	again := "have it done in the same sprite by another job: cove push -s " + job.Sprite + " PLAN"
	if _, ok := reader.(agents.Rememberer); !ok {
		return "", fail.Newf("no_session", again, "the agent %s has no session that could go on", job.Agent)
	}
	session := sessionOf(reader)
	if session == "" {
		return "", fail.Newf("no_session", again, "the agent of job %s ended before it had a session", job.ID)
	}
	return session, nil
}

// sessionOf is what the agent of a log calls its session; empty: it has none.
func sessionOf(r agents.Reader) string {
	if r, ok := r.(agents.Rememberer); ok {
		return r.Session()
	}
	return ""
}

// canGoOn refuses where a job's clone is not, or is worked in.
func (m *Manager) canGoOn(ctx context.Context, job cove.Job) error {
	sprite := m.sprite(job)
	_, err := m.Client.At(job.Backend).Get(ctx, job.Sprite)
	if errors.Is(err, sprites.ErrNotFound) {
		return fail.Newf("sprite_gone", "name a fork of it: --sprite NAME; or push again", "the sprite %s of job %s is gone, and the agent's session with it", job.Sprite, job.ID)
	}
	if err != nil {
		return err
	}
	for _, name := range []string{job.Workdir + "/.git", dir(job.ID)} {
		if _, err := sprite.Stat(ctx, name); errors.Is(err, sprites.ErrNotFound) {
			return fail.Newf("not_kept", "name a fork of the job's sprite, or restore a checkpoint that has it: cove checkpoint list -s "+job.Sprite,
				"the work of job %s is not in sprite %s", job.ID, job.Sprite)
		} else if err != nil {
			return err
		}
	}
	others, err := m.inClone(ctx, job)
	for _, other := range others {
		if !other.State.Terminal() {
			return fail.Newf("job_running", "wait for it with: cove job wait "+other.ID, "job %s is at work in the same clone (%s)", other.ID, other.State)
		}
	}
	return err
}

// inClone lists the other jobs that have a job's clone.
func (m *Manager) inClone(ctx context.Context, job cove.Job) ([]cove.Job, error) {
	all, err := m.Store.Jobs.List(ctx, store.JobFilter{Sprite: job.Sprite, Backend: job.Backend})
	var others []cove.Job
	for _, other := range all {
		if other.ID != job.ID && other.Workdir == job.Workdir && other.Backend == job.Backend {
			others = append(others, other)
		}
	}
	return others, err
}

// cloneUsed reports whether other jobs go on in the clone that a job has made.
func (m *Manager) cloneUsed(ctx context.Context, job cove.Job) (bool, error) {
	others, err := m.inClone(ctx, job)
	return len(others) > 0, err
}

// createNext makes the job in which an old one's agent goes on.
func (m *Manager) createNext(ctx context.Context, old cove.Job, message string) (cove.Job, error) {
	settings, err := m.Store.Jobs.Settings(ctx, old.ID)
	if err != nil {
		return cove.Job{}, err
	}
	var req cove.JobRequest
	if err := json.Unmarshal(settings, &req); err != nil {
		return cove.Job{}, fmt.Errorf("read the job's settings: %w", err)
	}
	req.Plan, req.Sprite = message, old.Sprite
	// The sprite is what it is, and nobody sits at the agent.
	req.Config, req.Include, req.Remove, req.NetworkPolicy = nil, nil, false, nil
	req.Interactive, req.Converse, req.Early = false, false, false
	return m.Create(ctx, req)
}

// goOn starts a job in the clone of the old one.
func (m *Manager) goOn(ctx context.Context, old, job cove.Job) error {
	unlock, err := m.locks.lock(ctx, job.ID)
	if err != nil {
		return err
	}
	err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		j.ResumeOf, j.AgentSession, j.Workdir, j.Upload = old.ID, old.AgentSession, old.Workdir, ""
		job = *j
		return nil
	})
	if err == nil {
		_, err = m.begin(ctx, job, cove.JobStart{Shallow: old.Shallow})
	}
	unlock() // before it is deleted, if it is
	return err
}

// taskOf is what the agent is told of a job, which may go on with another.
func taskOf(req cove.JobRequest, job cove.Job) agents.Task {
	t := task(req, job.ID)
	if job.ResumeOf != "" {
		t.Workdir, t.Session = job.Workdir, job.AgentSession
	}
	return t
}

// earlier is the folder of the job that a job goes on with; empty: it has none.
func earlier(job cove.Job) string {
	if job.ResumeOf == "" {
		return ""
	}
	return dir(job.ResumeOf)
}

// withoutEarlier takes from a session's whole usage what the jobs before have had of it.
func (m *Manager) withoutEarlier(ctx context.Context, job cove.Job, usage *cove.Usage) error {
	for id := job.ResumeOf; id != ""; {
		old, err := m.Store.Jobs.Get(ctx, id)
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
