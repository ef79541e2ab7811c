package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

// keepFlags are the flags that say which checkpoints stay.
func keepFlags(cmd *cobra.Command, r *sprites.Retention, of string) {
	f := cmd.Flags()
	f.IntVar(&r.Last, "keep-last", 0, "keep the newest `N` checkpoints"+of+"; 0: no rule")
	f.IntVar(&r.Daily, "keep-daily", 0, "keep the newest of each of `N` days that have one"+of+"; 0: no rule")
}

// keepGiven reports whether one of keepFlags was given.
func keepGiven(cmd *cobra.Command, r sprites.Retention) (bool, error) {
	for name, n := range map[string]int{"keep-last": r.Last, "keep-daily": r.Daily} {
		if n < 0 {
			return false, usagef(cmd, "--%s %d: at least 0", name, n)
		}
	}
	return cmd.Flags().Changed("keep-last") || cmd.Flags().Changed("keep-daily"), nil
}

func newCheckpointPruneCommand(inv *invocation) *cobra.Command {
	var req sprites.PruneRequest
	var keep sprites.Retention
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete the checkpoints that no rule keeps",
		Long: `Deletes a sprite's automatic checkpoints (such as those that restore makes) that no rule keeps.
With --all, it also deletes checkpoints that you have made: each rule then keeps as many of
yours, and as many of the automatic ones. It never deletes a checkpoint with a label, or the one
that the sprite goes on from. Days are those of UTC.

Without a rule here, the sprite's own rules count (cove update NAME --keep-last 10). cove also
applies those to automatic checkpoints after each new checkpoint.`,
		Example: `  cove checkpoint prune -s paint --keep-last 5 --dry-run
  cove checkpoint prune -s paint --all --keep-last 5 --keep-daily 7`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		given, err := keepGiven(cmd, keep)
		if err != nil {
			return err
		}
		if given {
			req.Retention = &keep
		}
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		shown := inv.newProgress("deleting", 0)
		result, err := s.PruneCheckpoints(ctx, req)
		shown.Close()
		if err != nil {
			return spriteError(err)
		}
		return inv.show(result, func(w io.Writer) { printPrune(w, result, req.DryRun) })
	})
	keepFlags(cmd, &keep, "")
	cmd.Flags().BoolVar(&req.All, "all", false, "also those that were asked for")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be deleted")
	return asksFirst(inv, cmd, func(ctx context.Context, _ *cobra.Command, _ []string) ([]string, error) {
		if req.DryRun {
			return nil, nil
		}
		given, err := keepGiven(cmd, keep)
		if err != nil {
			return nil, err
		}
		look := sprites.PruneRequest{All: req.All, DryRun: true}
		if given {
			look.Retention = &keep
		}
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return nil, err
		}
		result, err := s.PruneCheckpoints(ctx, look)
		var lines []string
		for _, i := range result.Removed {
			lines = append(lines, fmt.Sprintf("checkpoint %s of sprite %s, made %s", i.ID, s.Name(), ago(i.CreateTime, time.Now())))
		}
		return lines, spriteError(err)
	})
}

func printPrune(w io.Writer, r sprites.PruneResult, dry bool) {
	did := "deleted"
	if dry {
		did = "would delete"
	}
	if len(r.Removed)+len(r.Kept) == 0 {
		fmt.Fprintln(w, "There are no checkpoints.")
		return
	}
	printDecided(w, []string{"ID", "CREATED", "WHY"}, did, r.Removed, r.Kept, func(i sprites.PruneItem) []string {
		return []string{i.ID, ago(i.CreateTime, time.Now()), orDash(i.Why)}
	})
}

// printDecided prints the removed items, marked with the word did, and those that were kept.
func printDecided[T any](w io.Writer, head []string, did string, removed, kept []T, row func(T) []string) {
	rows := [][]string{append([]string{""}, head...)}
	for _, item := range removed {
		rows = append(rows, append([]string{did}, row(item)...))
	}
	for _, item := range kept {
		rows = append(rows, append([]string{"kept"}, row(item)...))
	}
	table(w, rows)
}
