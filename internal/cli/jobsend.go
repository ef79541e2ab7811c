package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

// maxSent bounds a message, in bytes; the server has the last word.
const maxSent = 1 << 19

func newJobSendCommand(inv *invocation) *cobra.Command {
	var done bool
	cmd := &cobra.Command{
		Use:   "send JOB [TEXT]",
		Short: "Send a message to the agent of a job",
		Long: `Sends a message to an agent that was pushed with --converse, while it works or waits (the state
"waiting"). It returns when the agent has the message. TEXT may be - for standard input.

--close tells the agent, after TEXT if there is one, that nothing more will come. Then it ends
when it is done, and its work is collected.`,
		Example: `  cove job send a3f7b2 "Yes, drop the old table."
  cove job send a3f7b2 - <answer.md
  cove job send a3f7b2 --close`,
		ValidArgsFunction: completeJob(inv),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef(cmd, "the job's id is missing")
			case len(args) > 2:
				return usagef(cmd, "%q is one argument too many; a message is one argument, in quotes", args[2])
			case len(args) == 1 && !done:
				return usagef(cmd, "the message is missing")
			}
			return nil
		},
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if err := checkJob(args[0]); err != nil {
			return err
		}
		msg := cove.JobMessage{Close: done}
		if len(args) > 1 {
			msg.Text = args[1]
		}
		if msg.Text == "-" {
			text, err := io.ReadAll(io.LimitReader(inv.In, maxSent+1))
			if err != nil {
				return fmt.Errorf("read the message: %w", err)
			}
			msg.Text = string(text)
		}
		if strings.TrimSpace(msg.Text) == "" && !done {
			return usagef(cmd, "the message is empty")
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return err
		}
		job, err := c.SendJob(ctx, args[0], msg)
		if err != nil {
			return jobError(err)
		}
		return inv.show(job, printTo(inv, "Sent to job %s. Follow it with: cove job logs -f %s", job.ID, job.ID))
	})
	cmd.Flags().BoolVar(&done, "close", false, "send no more messages: the agent ends when it is done")
	return cmd
}
