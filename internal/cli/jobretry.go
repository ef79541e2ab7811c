package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/gitwork"
	"github.com/cove-dev/cove/sprites"
)

func (a *app) newJobRetry() *cobra.Command {
	var how sprites.JobRetry
	cmd := &cobra.Command{
		Use:   "retry JOB",
		Short: "Begin a job that has ended anew",
		Long: `Begins a job that has ended anew, as another job: the same plan, on the same commit, with the
same settings. It is done in a new sprite, unless the old one was given with -s, or with
--same-sprite in the old one, with what is in it. The repository comes from the old job's
sprite: where that is gone, push again. The old job stays as it is.`,
		Example: `  cove job retry a3f7b2
  cove job retry a3f7b2 --same-sprite --json`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: a.completeJob,
		RunE: a.jobVerb(func(ctx context.Context, c *sprites.Client, id string) error {
			shown := a.newProgress("starting", 0)
			job, err := c.RetryJob(ctx, id, how)
			shown.Close()
			if err != nil {
				return err
			}
			if err := keepBase(ctx, job); err != nil {
				a.say("The commit that it began from has no ref of its own here: %v", err)
			}
			return a.show(job, func(w io.Writer) {
				a.tell(w, "Job %s started. Pull with: cove pull %s", job.ID, job.ID)
			})
		}),
	}
	cmd.Flags().BoolVar(&how.SameSprite, "same-sprite", false, "in the old job's sprite, with what is in it")
	return cmd
}

// keepBase keeps the commit that a job begins from reachable, as push does, if this
// is its repository.
func keepBase(ctx context.Context, job sprites.Job) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	repo, err := gitwork.Open(ctx, dir)
	if err != nil {
		return nil //nolint:nilerr // it is not pulled here
	}
	base, err := repo.Resolve(ctx, job.Base)
	if err != nil || base != job.Base || !jobPattern.MatchString(job.ID) {
		return err
	}
	return repo.SetRef(ctx, gitwork.JobRef(job.ID, "base"), job.Base, "")
}
