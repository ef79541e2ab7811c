package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func newJobResumeCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume JOB MESSAGE",
		Short: "Let the agent of a job that has ended go on",
		Long: `Lets the agent of a job that has ended go on in its own session, as another job. The agent knows
what it did, and finds the clone as it left it, with what it did not commit. MESSAGE may be - for
standard input.

The new job's commits come on top of the old one's, and include them. The new job works in the
old job's sprite, which may have been restored meanwhile. With -s, it works in a fork of that
sprite. If the sprite is gone, or the agent has no sessions (shell), push again instead.`,
		Example: `  cove job resume a3f7b2 "Well done. Now add a test for the empty list."
  cove job resume a3f7b2 - <review.md
  cove fork job-a3f7b2 other && cove job resume a3f7b2 -s other "Do it without the new dependency."`,
		ValidArgsFunction: completeJob(inv),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef(cmd, "the job's id is missing")
			case len(args) == 1:
				return usagef(cmd, "the message is missing")
			case len(args) > 2:
				return usagef(cmd, "%q is one argument too many; a message is one argument, in quotes", args[2])
			}
			return nil
		},
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if err := checkJob(args[0]); err != nil {
			return err
		}
		how := cove.JobResume{Message: args[1], Sprite: inv.global.sprite}
		if how.Sprite != "" {
			if err := checkName(how.Sprite); err != nil {
				return err
			}
		}
		if how.Message == "-" {
			text, err := io.ReadAll(io.LimitReader(inv.In, maxSent+1))
			if err != nil {
				return fmt.Errorf("read the message: %w", err)
			}
			how.Message = string(text)
		}
		if len(how.Message) > maxSent {
			return usagef(cmd, "the message is longer than %d bytes", maxSent)
		}
		if strings.TrimSpace(how.Message) == "" {
			return usagef(cmd, "the message is empty")
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return err
		}
		shown := inv.newProgress("starting", 0)
		job, err := c.ResumeJob(ctx, args[0], how)
		shown.Close()
		if err != nil {
			return jobError(err)
		}
		if err := keepBase(ctx, job); err != nil {
			inv.say("The commit that it began from has no ref of its own here: %v", err)
		}
		return inv.show(begun{job.ID, job}, func(w io.Writer) {
			inv.tell(w, "Job %s continues job %s. Pull with: cove pull %s", job.ID, args[0], job.ID)
		})
	})
	return cmd
}
