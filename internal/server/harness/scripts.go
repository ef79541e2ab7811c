package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/script"
	"github.com/cove-dev/cove/internal/server/stephint"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// scripts are the steps of a test that only a profile needs: the clone, and its scripts.
type scripts struct {
	t *Trial

	begun  bool // later changes are undone by the cleanup script
	cloned bool // the repository of the profile is there
}

// Limits of a cleanup script: without its own, and at most.
const (
	cleanupLimit    = time.Minute
	maxCleanupLimit = 10 * time.Minute
)

// setupTime is how long the setup script may run, as in a job.
func (s *scripts) setupTime() time.Duration {
	if setup := s.t.job.SetupScript; setup != nil && setup.TimeoutSec > 0 && s.t.job.StepLimits[cove.StepSetupScript] == 0 {
		return time.Duration(setup.TimeoutSec) * time.Second
	}
	return cove.StepLimit(s.t.job.StepLimits, cove.StepSetupScript)
}

// cleanupTime is how long the cleanup script may run, as when a job is deleted.
func (s *scripts) cleanupTime() time.Duration {
	if s.t.job.CleanupScript == nil {
		return cleanupLimit
	}
	return min(cmp.Or(time.Duration(s.t.job.CleanupScript.TimeoutSec)*time.Second, cleanupLimit), maxCleanupLimit)
}

// clone makes the sprite clone the profile's repository, through the connector that a job has.
func (s *scripts) clone(ctx context.Context) (string, error) {
	s.begun = true
	if s.t.job.URL == "" {
		return "", skip("%s", s.without("url"))
	}
	if err := s.reachRepository(ctx); err != nil {
		return "", err
	}
	if err := s.t.run(ctx, []string{"GIT_TERMINAL_PROMPT=0"}, "sh", "-c", fetch, "sh", s.t.workdir(), s.t.job.URL, s.t.job.Branch); err != nil {
		if exit, ok := errors.AsType[*sprites.ExitError](err); ok && exit.Code == notThere {
			return "", noGit()
		}
		return "", s.late(ctx, cove.StepClone, fail.Wrap("clone_failed", fmt.Errorf("clone %s: %w", s.t.job.URL, err), "its output says more; check that the network policy of the profile, or a connector for git, allows it"))
	}
	s.cloned = true
	return "cloned " + s.t.job.URL, nil
}

// fetch clones the repository that the test commits in.
const fetch = `command -v git >/dev/null || exit 127
git clone -q --single-branch ${3:+--branch "$3"} -- "$2" "$1" &&
cd "$1" && git config user.name cove && git config user.email cove@localhost`

// reachRepository grants the sprite the connector that a job would clone the repository through.
// A backend has none.
func (s *scripts) reachRepository(ctx context.Context) error {
	if !s.t.here {
		return nil
	}
	// The check of a job also makes a known connector whose secret is there.
	_, err := s.t.h.Client.PreviewJob(ctx, cove.JobRequest{JobSource: cove.JobSource{URL: s.t.job.URL, Branch: s.t.job.Branch, PlanName: "test.md"}, Plan: Plan, JobSettings: cove.JobSettings{Agent: "shell"}})
	if err != nil {
		return err
	}
	all, err := s.t.h.Client.Connectors(ctx)
	if err != nil {
		return err
	}
	name, path := connect.RepositoryConnector(all, s.t.job.URL)
	if name == "" {
		return nil
	}
	s.t.granted = append(s.t.granted, name)
	return s.t.h.Client.GrantConnector(ctx, name, cove.ConnectorGrant{Sprite: s.t.name, Git: cove.GitGrant{Repository: path}})
}

// setup runs the setup script of the profile in the clone, or in an empty folder.
func (s *scripts) setup(ctx context.Context) (string, error) {
	setup := s.t.job.SetupScript
	if setup == nil {
		return "", skip("%s", s.without("setup script"))
	}
	if err := s.run(ctx, "setup", setup); err != nil {
		hint := "its output says more"
		if !s.cloned {
			hint += "; the profile names no url, so the script ran in an empty folder, not in a clone"
		}
		return "", s.late(ctx, cove.StepSetupScript, fail.Wrap("setup_failed", fmt.Errorf("the setup script %s: %w", setup.Name, err), hint))
	}
	return "the setup script " + setup.Name + " has run", nil
}

// cleanup runs the cleanup script of the profile.
func (s *scripts) cleanup(ctx context.Context) (string, error) {
	cleanup := s.t.job.CleanupScript
	if cleanup == nil {
		return "", skip("%s", s.without("cleanup script"))
	}
	if err := s.run(ctx, "cleanup", cleanup); err != nil {
		return "", fail.Wrap("cleanup_failed", fmt.Errorf("the cleanup script %s: %w", cleanup.Name, err), "its output says more")
	}
	return "the cleanup script " + cleanup.Name + " has run", nil
}

func (s *scripts) run(ctx context.Context, what string, of *cove.SetupScript) error {
	env, secrets, err := s.t.env(ctx)
	if err != nil {
		return err
	}
	if err := s.t.sprite.CommandContext(ctx, "mkdir", "-p", s.t.workdir()).Run(); err != nil {
		return err
	}
	return script.Script{Text: of.Text, File: s.t.dir() + "/" + what, Dir: s.t.workdir(), Env: env, Secrets: secrets}.Run(ctx, s.t.sprite, s.t.out)
}

// without says why a step is not needed that a profile would ask for.
func (s *scripts) without(what string) string {
	if s.t.test.Profile == "" {
		return "only a profile has a " + what
	}
	return "the profile " + s.t.test.Profile + " has no " + what
}

// late adds to an error how the profile's jobs get more time for a step, if its time was up.
func (s *scripts) late(ctx context.Context, key cove.StepKey, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	job := cove.Job{JobSettings: cove.JobSettings{Profile: s.t.test.Profile, StepLimits: s.t.job.StepLimits}}
	if key == cove.StepSetupScript {
		job.StepLimits = map[cove.StepKey]int64{key: int64(s.setupTime() / time.Second)}
	}
	return fail.Wrap("timeout", errors.New(message(err)), stephint.MoreTime(job, key))
}

func noGit() error {
	return fail.New("no_git", "the sprite has no git, which a job needs to clone its repository", "choose an image with git, or add git to it")
}
