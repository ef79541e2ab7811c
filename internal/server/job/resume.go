package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Continue has the agent of an ended job go on with its own session, as another job with the
// same settings. The new job works in the same clone, as it is, in the job's sprite or in a
// fork of that. It begins from the same commit, so its commits are those of both.
func (m *Manager) Continue(ctx context.Context, id string, how cove.JobResume) (cove.Job, error) {
	return m.once(ctx, store.JobKey{Key: how.Key, By: how.By, Digest: how.Digest}, func() (cove.Job, error) { return m.resume(ctx, id, how) })
}

func (m *Manager) resume(ctx context.Context, id string, how cove.JobResume) (cove.Job, error) {
	unlock, err := m.preparations.lockJob(ctx, id)
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	old, err := finished(ctx, m.Store.Jobs, id)
	if err != nil {
		return old, err
	}
	if strings.TrimSpace(how.Message) == "" {
		return old, fail.Newf("bad_request", "say what is to be done", "the message is empty")
	}
	if old.AgentSession, err = agentSession(ctx, m.Store.Jobs, old); err != nil {
		return old, err
	}
	target := old
	target.Sprite = cmp.Or(how.Sprite, old.Sprite)
	free, err := m.alone.Lock(ctx, target.Backend+" "+target.Sprite+" "+target.Workdir)
	if err != nil {
		return old, err
	}
	defer free()
	if err := canGoOn(ctx, m.Client, m.Store.Jobs, target); err != nil {
		return old, err
	}
	job, err := m.createNext(ctx, target, how)
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

// agentSession is the name that a job's agent gives its session.
func agentSession(ctx context.Context, jobs *store.Jobs, job cove.Job) (string, error) {
	if job.AgentSession != "" {
		return job.AgentSession, nil
	}
	reader, err := readLog(ctx, jobs, job) // a job that was lost has no end that would have told
	if err != nil {
		return "", err
	}
	again := "push another job to the same sprite: cove push -s " + job.Sprite + " PLAN"
	if _, ok := reader.(agents.Rememberer); !ok {
		return "", fail.Newf("no_session", again, "the agent %s has no session to resume", job.Agent)
	}
	session := sessionOf(reader)
	if session == "" {
		return "", fail.Newf("no_session", again, "the agent of job %s has no session to resume: it ended before it had one, or can't continue any", job.ID)
	}
	return session, nil
}

// sessionOf is the name of the agent's session in a log; empty: there is none.
func sessionOf(r agents.Reader) string {
	if r, ok := r.(agents.Rememberer); ok {
		return r.Session()
	}
	return ""
}

// canGoOn refuses if a job's clone is gone, or another job works in it.
func canGoOn(ctx context.Context, client *cove.Client, jobs *store.Jobs, job cove.Job) error {
	sprite := spriteOf(client, job)
	_, err := client.At(job.Backend).Get(ctx, job.Sprite)
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
	others, err := inClone(ctx, jobs, job)
	for _, other := range others {
		if !other.State.Terminal() {
			return fail.Newf("job_running", "wait for it with: cove job wait "+other.ID, "job %s is at work in the same clone (%s)", other.ID, other.State)
		}
	}
	return err
}

// inClone lists the other jobs that have a job's clone.
func inClone(ctx context.Context, jobs *store.Jobs, job cove.Job) ([]cove.Job, error) {
	all, err := jobs.List(ctx, store.JobFilter{Sprite: job.Sprite, Backend: job.Backend})
	var others []cove.Job
	for _, other := range all {
		if other.ID != job.ID && other.Workdir == job.Workdir && other.Backend == job.Backend {
			others = append(others, other)
		}
	}
	return others, err
}

// createNext makes the job that an old job's agent goes on in.
func (m *Manager) createNext(ctx context.Context, old cove.Job, how cove.JobResume) (cove.Job, error) {
	req, err := settingsOf(ctx, m.Store.Jobs, old.ID)
	if err != nil {
		return cove.Job{}, err
	}
	req.Plan, req.Sprite = how.Message, old.Sprite
	req.By, req.Key, req.Digest = how.By, how.Key, how.Digest
	// An existing sprite keeps its settings, and nobody sits at the agent.
	req.Config, req.Include, req.Remove, req.NetworkPolicy = nil, nil, false, nil
	req.Interactive, req.Converse, req.Early, req.Begin = false, false, false, false
	return m.createAs(ctx, req, "")
}

// goOn starts a job in the clone of the old one.
func (m *Manager) goOn(ctx context.Context, old, job cove.Job) error {
	unlock, err := m.locks.Lock(ctx, job.ID)
	if err != nil {
		return err
	}
	err = m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		j.ResumeOf, j.AgentSession, j.Workdir, j.Upload = old.ID, old.AgentSession, old.Workdir, ""
		j.Title, j.Headings = old.Title, old.Headings                 // the message is not a plan
		j.Branch, j.Base, j.RepoID = old.Branch, old.Base, old.RepoID // which a request with a URL does not have
		job = *j
		return nil
	})
	if err == nil {
		_, err = m.starter.begin(ctx, job, cove.JobStart{Shallow: old.Shallow})
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
