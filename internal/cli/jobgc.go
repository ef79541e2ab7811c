package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

// defaultGC is how long a job is left alone after its last use.
const defaultGC = 24 * time.Hour

func newJobGCCommand(inv *invocation) *cobra.Command {
	var older time.Duration
	var req cove.JobGC
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove the jobs that nobody needs any more, with their sprites",
		Long: `Removes jobs that have ended and were pulled, or left nothing, with the sprites that were made
for them. It also removes sprites that were made for a job that is gone. All that was used in the
last 24 hours stays; --older-than sets another time, and 0 keeps none of it. The time counts from
the job's end, its pull, or the last use of its sprite, whichever was last.

A sprite that you made yourself is never removed, nor one in which another job has work. Shared
installations of agents (cove agent list) are removed, too, if no job has begun with them for
that long.

Work that nobody has pulled is kept, unless you give --force. gc says how many jobs stay, and
why; with --json, each of those has a "reason".`,
		Example: `  cove job gc --dry-run
  cove job gc --older-than 0
  cove job gc --older-than 168h --force`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if older < 0 {
			return usagef(cmd, "--older-than %v is negative", older)
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return err
		}
		req.OlderThanSec = int64(older / time.Second)
		shown := inv.newProgress("removing", 0)
		result, err := c.CollectJobs(ctx, req)
		shown.Close()
		if err != nil {
			return unseen(err, "remove jobs", "cove job list")
		}
		return inv.show(result, func(w io.Writer) { printGC(w, result, req.DryRun) })
	})
	f := cmd.Flags()
	f.DurationVar(&older, "older-than", defaultGC, "only those last used so long ago, a `DURATION`; 0 for all")
	f.BoolVar(&req.Force, "force", false, "also those whose work nobody has pulled: it is lost")
	f.BoolVar(&req.DryRun, "dry-run", false, "only say what would be removed")
	return asksFirst(inv, cmd, func(ctx context.Context, _ *cobra.Command, _ []string) ([]string, error) {
		if req.DryRun || older < 0 {
			return nil, nil
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return nil, err
		}
		result, err := c.CollectJobs(ctx, cove.JobGC{OlderThanSec: int64(older / time.Second), Force: req.Force, DryRun: true})
		var lines []string
		for _, i := range result.Removed {
			lines = append(lines, fmt.Sprintf("job %s, sprite or agent %s: %s", orDash(i.Job), orDash(cmp.Or(i.Sprite, i.Agent)), i.Why))
		}
		return lines, err
	})
}

func printGC(w io.Writer, r cove.JobGCResult, dry bool) {
	did := "removed"
	if dry {
		did = "would remove"
	}
	if len(r.Removed)+len(r.Kept) == 0 {
		fmt.Fprintln(w, "There are no jobs, and no sprites that jobs have left.")
		return
	}
	printDecided(w, []string{"JOB", "STATE", "SPRITE", "WHY"}, did, r.Removed, r.Kept, func(i cove.JobGCItem) []string {
		return []string{orDash(i.Job), orDash(string(i.State)), orDash(cmp.Or(i.Sprite, i.Agent)), i.Why}
	})
	if len(r.Kept) > 0 {
		fmt.Fprintf(w, "Kept %d: %s.\n", len(r.Kept), keptText(r.Kept))
	}
}

// keptText says how many jobs are kept for each reason.
func keptText(kept []cove.JobGCItem) string {
	n := map[string]int{}
	for _, i := range kept {
		n[i.Reason]++
	}
	var parts []string
	for _, reason := range []struct{ code, one, more string }{
		{cove.KeptRunning, "has not ended", "have not ended"},
		{cove.KeptUnpulled, "was not pulled", "were not pulled"},
		{cove.KeptInUse, "is in use", "are in use"},
		{cove.KeptRecent, "was used not long ago (see --older-than)", "were used not long ago (see --older-than)"},
		{cove.KeptUncollected, "was not fully collected", "were not fully collected"},
		{cove.KeptFailed, "can't be removed", "can't be removed"},
	} {
		switch n[reason.code] {
		case 0:
		case 1:
			parts = append(parts, "1 "+reason.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n[reason.code], reason.more))
		}
	}
	return strings.Join(parts, ", ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
