package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// losses says what a command would destroy, a line for each thing; none: nothing to ask about.
type losses func(ctx context.Context, cmd *cobra.Command, args []string) ([]string, error)

// asksFirst has a command that destroys something ask first, if a person sits at a terminal
// and has not given --yes. Without a terminal, and with --json, nothing is asked.
func asksFirst(inv *invocation, cmd *cobra.Command, lost losses) *cobra.Command {
	var yes bool
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask, on a terminal")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes && !inv.global.json && isTerminal(inv.In) && isTerminal(inv.Err) {
			if err := verb(func(ctx context.Context, args []string) error { return confirm(ctx, inv, cmd, args, lost) })(cmd, args); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
	return cmd
}

// confirm shows what would be lost, and returns an error unless the answer is yes.
func confirm(ctx context.Context, inv *invocation, cmd *cobra.Command, args []string, lost losses) error {
	lines, err := lost(ctx, cmd, args)
	if err != nil || len(lines) == 0 {
		return err
	}
	head, declined := "This will be deleted for good:", "nothing was deleted"
	if cmd.Name() == "restart" {
		head, declined = "This will end:", "nothing was ended"
	}
	fmt.Fprintln(inv.Err, head)
	for _, line := range lines {
		fmt.Fprintf(inv.Err, "  %s\n", printable.Line(line))
	}
	fmt.Fprint(inv.Err, "Go on? [y/N] ")
	answer, err := readAnswer(ctx, inv)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fail.New("declined", declined, "")
}

// readAnswer reads the line that the person types. The end of the input is an empty one.
func readAnswer(ctx context.Context, inv *invocation) (string, error) {
	type typed struct {
		line string
		err  error
	}
	got := make(chan typed, 1)
	go func() { // ends with this process at the latest
		line, err := bufio.NewReader(io.LimitReader(inv.In, 1<<10)).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		got <- typed{line, err}
	}()
	select {
	case t := <-got:
		return t.line, t.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// eachLost is losses of one line for each argument.
func eachLost(format string) losses {
	return func(_ context.Context, _ *cobra.Command, args []string) (lines []string, _ error) {
		for _, arg := range args {
			lines = append(lines, fmt.Sprintf(format, arg))
		}
		return lines, nil
	}
}

// eachOfSprite is eachLost for what belongs to the sprite in use, which format names last.
func eachOfSprite(inv *invocation, format string) losses {
	return func(ctx context.Context, _ *cobra.Command, args []string) (lines []string, _ error) {
		sprite, err := inv.sprite.name(ctx)
		if err != nil {
			return nil, err
		}
		for _, arg := range args {
			lines = append(lines, fmt.Sprintf(format, arg, sprite))
		}
		return lines, nil
	}
}

// lostSprites says of each sprite what goes with it. One that is not there is left to the
// call that deletes it.
func lostSprites(inv *invocation) losses {
	return func(ctx context.Context, cmd *cobra.Command, args []string) (lines []string, _ error) {
		names, err := inv.sprite.namedOrFlag(cmd, args, "the name of a sprite")
		if err != nil {
			return nil, err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return nil, err
		}
		jobs, _ := c.Jobs(ctx) // another server of the protocol has none
		for _, name := range names {
			info, err := c.Get(ctx, name)
			if errors.Is(err, sprites.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			line := "sprite " + name + ": its disk"
			if info.Cove != nil && info.Cove.DiskUsed > 0 {
				line += " (" + printable.Bytes(info.Cove.DiskUsed) + ")"
			}
			if list, err := c.Sprite(name).Checkpoints(ctx, true); err == nil && len(list) > 1 {
				line += ", " + printable.Count(len(list)-1, "checkpoint") // one of them is Current
			}
			if info.Status == sprites.StatusRunning {
				line += ", the programs that run in it"
			}
			for _, j := range jobs {
				if j.Backend == "" && j.Sprite == name && j.PulledAt == nil && j.Bundle.Size > 0 {
					line += ", the work of job " + j.ID + ", which nobody has pulled"
				}
			}
			lines = append(lines, line)
		}
		return lines, nil
	}
}

// runningJobs are the jobs at work in a sprite of this server; none if that is not known.
func runningJobs(ctx context.Context, c *cove.Client, sprite string) (running []cove.Job) {
	jobs, _ := c.Jobs(ctx) // another server of the protocol has none
	for _, j := range jobs {
		if j.Backend == "" && j.Sprite == sprite && !j.State.Terminal() && j.StartedAt != nil && jobPattern().MatchString(j.ID) {
			running = append(running, j)
		}
	}
	return running
}

// lostCheckpoints says of each checkpoint when it was made, and what for.
func lostCheckpoints(inv *invocation) losses {
	return func(ctx context.Context, _ *cobra.Command, args []string) (lines []string, _ error) {
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range args {
			line := "checkpoint " + id + " of sprite " + s.Name()
			c, err := s.CheckpointInfo(ctx, id)
			if err != nil {
				return nil, checkpointError(err)
			}
			line += ", made " + ago(c.CreateTime, time.Now())
			if c.Comment != "" {
				line += ": " + c.Comment
			}
			lines = append(lines, line)
		}
		return lines, nil
	}
}

// lostJobs says of each job what goes with it.
func lostJobs(inv *invocation) losses {
	return func(ctx context.Context, _ *cobra.Command, args []string) (lines []string, _ error) {
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range args {
			if err := checkJob(id); err != nil {
				return nil, err
			}
			job, err := c.Job(ctx, id)
			if err != nil {
				return nil, jobError(err)
			}
			line := fmt.Sprintf("job %s (%s): its log", id, jobStateText(job))
			if job.PulledAt == nil && job.Bundle.Size > 0 {
				line += ", its commits, which nobody has pulled"
			}
			if job.Uncollected != "" {
				line += ", the part of its work that could not be collected"
			}
			lines = append(lines, line+"; and sprite "+job.Sprite+", if it was made for the job")
		}
		return lines, nil
	}
}

// lostRefs is for job refs --prune --force.
func lostRefs(_ context.Context, cmd *cobra.Command, _ []string) ([]string, error) {
	prune, _ := cmd.Flags().GetBool("prune")
	force, _ := cmd.Flags().GetBool("force")
	if !prune || !force {
		return nil, nil
	}
	dir, err := os.Getwd()
	return []string{"in " + dir + ": the refs of all jobs that have ended, also if no branch has their commits"}, err
}
