package push

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/sprites"
)

// remoteRequest is the request for a job whose sprite clones the repository itself. It uses no
// repository of this machine, and the person need not be in one.
func remoteRequest(ctx context.Context, opts Options) (cove.JobRequest, error) {
	plan, name, err := ReadPlan(opts)
	if err != nil {
		return cove.JobRequest{}, err
	}
	author, err := gitwork.Identity(ctx, "")
	if err != nil && !errors.Is(err, gitwork.ErrNoIdentity) && !errors.Is(err, gitwork.ErrNoGit) {
		return cove.JobRequest{}, err
	}
	req := cove.JobRequest{
		Early:       true,
		Plan:        plan,
		Author:      author, // without one, the server's choice
		Config:      opts.Config,
		Include:     opts.Include,
		Env:         opts.Env,
		SetupScript: opts.SetupScript,
		Settings:    opts.Settings,
		JobSettings: opts.JobSettings,
		JobSource:   cove.JobSource{PlanName: name, URL: opts.URL, Branch: opts.Branch, Depth: opts.Depth, Issue: opts.Issue},
	}
	req.NetworkPolicy, err = withHost(opts)
	return req, err
}

// withHost is the policy with a rule for the server of the repository that the sprite clones.
// withRemotes does the same for the remotes of a repository here.
func withHost(opts Options) (*sprites.NetworkPolicy, error) {
	if opts.NetworkPolicy == nil || !opts.Remotes {
		return opts.NetworkPolicy, nil
	}
	rule, err := netrules.Repository(opts.URL)
	if err != nil || rule == nil {
		return opts.NetworkPolicy, err
	}
	return &sprites.NetworkPolicy{Rules: append(slices.Clone(opts.NetworkPolicy.Rules), *rule)}, nil
}

// pushRemote is Push for a job whose sprite clones the repository itself.
func (c *Courier) pushRemote(ctx context.Context, opts Options) (Result, error) {
	req, err := remoteRequest(ctx, opts)
	if err != nil {
		return Result{}, err
	}
	prepare := c.track("prepare", 0)
	prepare.tell(false)
	job, err := c.createJob(ctx, req)
	prepare.done()
	if err != nil {
		return Result{}, err
	}
	if job.State == cove.JobInstalling || job.State.Terminal() { // it may have ended by the time an answer came
		if job, err = c.awaitInstall(ctx, job); err != nil {
			return Result{}, err
		}
	}
	if err := c.startRemote(ctx, job, opts); err != nil {
		return Result{}, err
	}
	return Result{Job: job.ID, ID: job.ID, Backend: job.Backend, Sprite: job.Sprite, Branch: job.Branch, Repository: job.URL, NetworkPolicy: job.NetworkPolicy}, nil
}

// startRemote starts the job, or undoes what was made.
func (c *Courier) startRemote(ctx context.Context, job cove.Job, opts Options) error {
	err := checkAnswer(job)
	if err == nil && opts.Policed && job.NetworkPolicy == nil {
		err = fail.New("no_policy", "this server enforces no network policy", "push without --network")
	}
	if err == nil {
		if c.Handing != nil {
			c.Handing(job)
		}
		var known bool
		known, err = c.start(ctx, job.ID, cove.JobStart{})
		switch {
		case err == nil:
			return nil
		case !known:
			return fail.New("lost", "start job "+job.ID+": the server went away in the middle; the job may have begun all the same", "see: cove job show "+job.ID)
		}
	}
	err = fmt.Errorf("start job %s: %w", printable.Name(job.ID), err)
	if !jobID().MatchString(job.ID) {
		return err // there is nothing that could be named
	}
	return c.undo(ctx, job, err)
}

// CloneFirst is what to type to pull a job's commits if there is no clone of its
// repository here.
func CloneFirst(job cove.Job) string {
	dir := "job-" + job.ID
	return "git clone " + printable.Word(job.URL) + " " + dir + " && cd " + dir + " && cove pull " + job.ID
}

// Cloned reports whether dir is in a repository that has the commit that a job began with.
func Cloned(ctx context.Context, dir string, job cove.Job) bool {
	repo, err := gitwork.Open(ctx, dir)
	if err != nil || job.Base == "" {
		return false
	}
	at, err := repo.Resolve(ctx, job.Base)
	return err == nil && at == job.Base
}
