package job

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
)

// Publish has the commits of a job published again, after that has failed.
func (m *Manager) Publish(ctx context.Context, id string) (cove.Job, error) {
	return m.finisher.publisher.again(ctx, id)
}

// Answer hands a person's answer to the agent of a job that has asked, and returns when
// the agent has it.
func (m *Manager) Answer(ctx context.Context, id string, a cove.JobAnswer) (cove.Job, error) {
	unlock, err := m.preparations.lockJob(ctx, id) // one question is answered once
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return job, err
	}
	if err := checkKeyForm(a.Key); err != nil {
		return job, err
	}
	if had := job.Answered; had != nil && had.Question == a.Question {
		if a.Key != "" && a.Key == had.Key && (had.Option == "" || had.Option == a.Option) { // the log does not say the option
			return job, nil // its first answer was lost
		}
		return job, alreadyAnswered(id)
	}
	line, err := answer(job, a)
	if err != nil {
		return job, err
	}
	if err := m.supervisors.deliver(ctx, job, line); err != nil {
		return job, err // if it was delivered all the same, the log tells
	}
	err = m.Store.Jobs.Update(ctx, id, func(j *cove.Job) error {
		if j.Question != nil && j.Question.ID == a.Question {
			j.Question = nil
		}
		j.Answered = &a
		return nil
	})
	if err != nil {
		return job, err
	}
	return m.Store.Jobs.Get(ctx, id)
}

func alreadyAnswered(id string) error {
	return fail.Newf("already_answered", "see what it does: cove job logs "+id, "the question of the agent of job %s has been answered", id)
}

// answer is the text of an answer for the supervisor, if the job awaits it.
func answer(job cove.Job, a cove.JobAnswer) ([]byte, error) {
	agent, err := agents.Find(job.Agent)
	if err != nil {
		return nil, err
	}
	asks, ok := agent.(agents.Questioner)
	switch q := job.Question; {
	case job.State.Terminal():
		return nil, fail.Newf("job_ended", "see how it ended: cove job show "+job.ID, "job %s has ended (%s)", job.ID, job.State)
	case !ok || q == nil:
		return nil, fail.Newf("no_question", "see what it does: cove job logs "+job.ID, "the agent of job %s has asked nothing", job.ID)
	case q.ID != a.Question:
		return nil, fail.Newf("no_question", "see what it asks: cove job answer "+job.ID, "the agent of job %s asks another question now", job.ID)
	case !slices.ContainsFunc(q.Options, func(o cove.QuestionOption) bool { return o.ID == a.Option }):
		return nil, fail.Newf("bad_request", "see the options: cove job answer "+job.ID, "%.40q is not one of the options", a.Option)
	}
	in := cove.JobInputLine{JobMessage: cove.JobMessage{Text: answerText(*job.Question, a.Option), Key: a.Key}, Question: a.Question}
	if in.Line, err = asks.Answer(a); err != nil {
		return nil, err
	}
	return json.Marshal(in)
}

// answerText is what the log says of an answer.
func answerText(q cove.JobQuestion, option string) string {
	i := slices.IndexFunc(q.Options, func(o cove.QuestionOption) bool { return o.ID == option })
	return strings.TrimSpace(fmt.Sprintf("%s (%s): %s", q.Options[i].Name, cmp.Or(optionKinds[q.Options[i].Kind], q.Options[i].Kind), q.Title))
}

// optionKinds are the kinds of a question's options, in words.
var optionKinds = map[string]string{
	"allow_once": "allowed once", "allow_always": "allowed from now on", "reject_once": "refused once", "reject_always": "refused from now on",
}

// noteQuestion notes in the job what its agent asks, and that it has been answered.
func noteQuestion(ctx context.Context, jobs *store.Jobs, id string, batch []cove.JobEvent) error {
	job, err := jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	agent, err := agents.Find(job.Agent)
	if err != nil {
		return nil //nolint:nilerr // of a later version; its log is kept all the same
	}
	asks, ok := agent.(agents.Questioner)
	if !ok {
		return nil
	}
	if !asked(&job, asks, batch) {
		return nil
	}
	// It is noted in the row of now: the question may have been answered since.
	return jobs.Update(ctx, id, func(j *cove.Job) error {
		if !j.State.Terminal() {
			asked(j, asks, batch)
		}
		return nil
	})
}

// asked notes in the job what events say of questions and answers, and reports whether that
// changes the job.
func asked(job *cove.Job, asks agents.Questioner, batch []cove.JobEvent) (changed bool) {
	for _, ev := range batch {
		switch {
		case ev.Type == "input" && ev.Question != "":
			if job.Answered == nil || job.Answered.Question != ev.Question {
				job.Answered, changed = &cove.JobAnswer{Question: clip(ev.Question), Key: clip(ev.Key)}, true
			}
		case ev.Type == "notice" && ev.Key != "" && job.Answered != nil && job.Answered.Key == ev.Key:
			job.Answered, changed = nil, true // the agent did not get that answer
		case ev.Type == "state" && ev.State != cove.JobWaiting, ev.Type == "exit":
			changed = changed || job.Question != nil
			job.Question = nil
		case ev.Type == "event":
			q := asks.Question(ev)
			if q != nil && (job.Answered == nil || job.Answered.Question != q.ID) { // else it is read again
				job.Question, changed = q, true
			}
		}
	}
	return changed
}
