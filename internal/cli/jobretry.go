package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
)

func newJobRetryCommand(inv *invocation) *cobra.Command {
	var how cove.JobRetry
	var plan string
	cmd := &cobra.Command{
		Use:   "retry JOB",
		Short: "Retry a job that has ended",
		Long: `Retries a job that has ended, as another job: the same plan, on the same commit, with the same
settings. --plan replaces only the plan. If the old job's sprite was given with -s, or with
--same-sprite, the new job works in that one, with what is in it. Otherwise it gets a new sprite.

The repository comes from the old job's sprite: if that is gone, push again. The old job stays as
it is.`,
		Example: `  cove job retry a3f7b2
  cove job retry a3f7b2 --plan plan.md
  cove job retry a3f7b2 --same-sprite --json`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
			how.Early = true
			if plan != "" {
				var err error
				if how.Plan, err = textOfPlan(inv, plan); err != nil {
					return err
				}
			}
			shown := inv.newProgress("starting", 0)
			job, err := c.RetryJob(ctx, id, how)
			shown.Close()
			if err == nil && (job.State == cove.JobInstalling || job.Failure != nil) {
				job, err = awaitRetry(ctx, inv, c, job)
			}
			if err != nil {
				return err
			}
			if err := keepBase(ctx, job); err != nil {
				inv.say("The commit that it began from has no ref of its own here: %v", err)
			}
			return inv.show(begun{job.ID, job}, func(w io.Writer) {
				inv.tell(w, "Job %s started. Pull with: cove pull %s", job.ID, job.ID)
			})
		}),
	}
	cmd.Flags().BoolVar(&how.SameSprite, "same-sprite", false, "in the old job's sprite, with what is in it")
	cmd.Flags().StringVar(&plan, "plan", "", "a file with another plan; -: standard input")
	return cmd
}

// textOfPlan is the plan in a file, or, by -, on standard input.
func textOfPlan(inv *invocation, name string) (string, error) {
	var opts push.Options
	if err := readPlan(inv, &opts, name); err != nil {
		return "", err
	}
	text, _, err := push.ReadPlan(opts)
	return text, err
}

// begun is the JSON that a command prints after it has begun a job. As in cove push, the job's
// id is under the key job.
type begun struct {
	JobID string `json:"job"`
	cove.Job
}

// awaitRetry shows how the agent of a job is installed that does another one again, until
// the server has started the job. The job goes on if nobody waits for it.
func awaitRetry(ctx context.Context, inv *invocation, c *cove.Client, job cove.Job) (cove.Job, error) {
	shown, told := inv.newProgress("preparing", 0), false
	now, err := c.AwaitInstall(ctx, job.ID, func(job cove.Job) {
		if !told {
			sayInstalling(inv, job)
		}
		told = true
		shown.say(installText(job))
	})
	shown.Close()
	switch {
	case ctx.Err() != nil:
		return job, leftJob(job.ID)
	case err == nil && now.Failure != nil:
		err = fail.Newf(now.Failure.Code, now.Failure.Hint, "job %s: %s", job.ID, now.Failure.Message)
	case err == nil && now.State == cove.JobCancelled:
		err = fail.Newf("cancelled", "cove job retry "+now.RetryOf, "job %s was stopped while its agent was being installed", job.ID)
	}
	return now, err
}

// keepBase keeps the commit that a job begins from reachable, as push does, if this
// is its repository.
func keepBase(ctx context.Context, job cove.Job) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	repo, err := gitwork.Open(ctx, dir)
	if err != nil {
		return nil //nolint:nilerr // it is not pulled here
	}
	base, err := repo.Resolve(ctx, job.Base)
	if err != nil || base != job.Base || !jobPattern().MatchString(job.ID) {
		return err
	}
	return repo.SetRef(ctx, gitwork.JobRef(job.ID, "base"), job.Base, "")
}
