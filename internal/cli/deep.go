package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/harness"
	"github.com/cove-dev/cove/sprites"
)

// deepTime bounds the agent of a deep check, which has next to nothing to do.
const deepTime = 10 * time.Minute

// deep does a job, or a part of one, in a sprite that goes again.
type deep struct {
	inv    *invocation
	agent  string
	client *cove.Client
	name   string // of the sprite; empty: there is none but the job's own
	repo   string // the repository's folder; empty: there is none
	made   bool   // the sprite may be there
	job    string // empty: none was begun
	steps  steps

	definition *cove.AgentDefinition // of the agent; nil: it is one of cove's own
}

// doctorDeep makes the server test itself as cove test does. Then it does the person's half of
// a job: a push, an agent's work, and a pull. It removes everything that it made.
func doctorDeep(ctx context.Context, inv *invocation, who agents.Agent) (err error) {
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	d := &deep{inv: inv, agent: who.Name(), definition: definitionOf(who), client: c, steps: steps{inv: inv}}
	if d.repo, err = os.MkdirTemp("", "cove-doctor-"); err != nil {
		return err
	}
	err = d.run(ctx)
	if undoErr := d.undo(ctx); err == nil {
		err = undoErr
	}
	return d.steps.end(stepsJSON{Agent: d.agent}, err)
}

func (d *deep) run(ctx context.Context) error {
	if err := d.place(ctx); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{{"push", d.push}, {"run", d.work}, {"pull", d.pull}} {
		err := d.steps.do(s.name, func() (string, string, error) {
			detail, err := s.do(ctx)
			return stepDone, detail, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// place has the server test itself, with an agent that needs no model. A token without the
// verb admin can't ask for that, and has the job alone done.
func (d *deep) place(ctx context.Context) error {
	var failed error
	err := cove.Executors{Client: d.client}.Test(ctx, cove.ExecutorTest{}, func(news cove.ExecutorNews) error {
		s := news.Step
		if s == nil || !s.State.Ended() {
			return nil
		}
		st := stepJSON{Step: string(s.Key), Result: stepDone, Detail: s.Detail, MS: s.MS}
		switch s.State {
		case cove.StepSkipped:
			st.Result = stepNone
			if failed != nil {
				return nil // it was not come to
			}
		case cove.StepFailed:
			err := fail.Newf("step_failed", s.Hint, "%s", s.Error)
			if failed == nil {
				failed = err
			}
			d.steps.add(st, err)
			return nil
		}
		d.steps.add(st, nil)
		return nil
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, sprites.ErrForbidden):
		d.steps.add(stepJSON{Step: "place", Result: stepNone, Detail: "the server tests itself only for a token with the verb admin"}, nil)
		return nil
	case err != nil && ctx.Err() != nil:
		d.inv.say("cove: the server removes what its test has made.")
	}
	return err
}

// create makes the sprite, and runs a first command in it.
func (d *deep) create(ctx context.Context) (string, error) {
	d.made = true // perhaps: it is, even if the answer is lost
	if _, err := d.client.Create(ctx, sprites.CreateRequest{Name: d.name, Labels: []string{"cove-doctor"}}); err != nil {
		return "", err
	}
	return "sprite " + d.name + ", and a first command in it", d.client.Sprite(d.name).CommandContext(ctx, "true").Run()
}

// policy gives it the one of a job, and sees that it is in force.
func (d *deep) policy(ctx context.Context) (string, error) {
	return harness.TryPolicy(ctx, d.client.Sprite(d.name))
}

// push pushes a repository that is made for it.
func (d *deep) push(ctx context.Context) (string, error) {
	if err := gitwork.Init(ctx, d.repo, map[string]string{"README.md": "Made by cove doctor.\n"}); err != nil {
		return "", err
	}
	pushed, err := push.New(d.client).Push(ctx, push.Options{Dir: d.repo, Plan: harness.Plan, JobSettings: cove.JobSettings{
		TimeoutSec: int64(deepTime / time.Second), Agent: d.agent, Definition: d.definition, Remove: true,
		NetworkPolicy: new(harness.AgentPolicy()),
	}})
	d.job = pushed.Job
	return "job " + pushed.Job, err
}

// work waits for the agent.
func (d *deep) work(ctx context.Context) (string, error) {
	job, err := d.client.WaitJob(ctx, d.job)
	if err != nil {
		return "", err
	}
	if job.State != cove.JobSucceeded {
		return "", fail.Newf(string(job.State), "cove create NAME; cove setup NAME --agent "+d.agent+"; cove diagnose NAME --agent "+d.agent, "the agent %s: %s", d.agent, outcomeText(job))
	}
	return "the agent " + d.agent + ": " + outcomeText(job), nil
}

// pull brings its commit back.
func (d *deep) pull(ctx context.Context) (string, error) {
	pulled, err := push.New(d.client).Pull(ctx, push.PullOptions{Dir: d.repo, Job: d.job})
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(d.repo, "works.txt"))
	if err == nil && strings.TrimSpace(string(text)) != "yes" {
		err = fmt.Errorf("works.txt says %.40q", text)
	}
	return printable.Count(pulled.Commits, "commit") + ", checked", err
}

// undo removes what was made, also after an interruption.
func (d *deep) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	return d.steps.do("delete", func() (string, string, error) {
		var err error
		if d.job != "" {
			if gone := d.client.DeleteJob(ctx, d.job, true); !errors.Is(gone, sprites.ErrNotFound) {
				err = errors.Join(err, gone)
			}
		}
		if d.made {
			gone := d.client.Delete(ctx, d.name, sprites.DeleteOptions{Force: true})
			if errors.Is(gone, sprites.ErrNotFound) {
				gone = nil
			}
			if gone != nil {
				gone = hinted(gone, "cove rm --force "+d.name)
			}
			err = errors.Join(err, gone)
		}
		if d.repo == "" {
			return stepDone, "the sprite", err
		}
		return stepDone, "the job, its sprite and the repository", errors.Join(err, os.RemoveAll(d.repo))
	})
}
