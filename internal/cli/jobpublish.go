package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func newJobPublishCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "publish JOB",
		Short: "Publish the commits of a job again, after that has failed",
		Long: `Publishes the commits of a job again, after that has failed five times. The job is one of cove
run --publish, or of a profile with publish. The command returns at once; cove job show JOB shows
the result. If they are published already, or are being published, it changes nothing.

It is refused if there is nothing to publish, or if files are held for your review.`,
		Example:           `  cove job publish a3f7b2`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
			job, err := cove.PublishJob(ctx, c, id)
			if err != nil {
				return err
			}
			return inv.show(job, func(w io.Writer) {
				inv.tell(w, "%s", publishedText(job))
				if job.Published.State == cove.PublishPending {
					inv.tell(w, "See what becomes of it: cove job show %s", job.ID)
				}
			})
		}),
	}
}
