package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newCheckpointVerifyCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [ID]",
		Short: "Check that checkpoints are undamaged",
		Long: `Reads all files of a checkpoint, or of all checkpoints of a sprite, on the server's disk. It
compares them with the digests that were taken when they were sealed. It names all that was
changed, removed or added behind the server's back, or by a failing disk. Such a checkpoint can't
be restored or forked until it is found whole again. The sprite is not woken.

Digests are taken in the background, so a new checkpoint may have none yet. Then they are taken
now, and there is nothing to compare with.`,
		Example: `  cove checkpoint verify -s paint
  cove checkpoint verify v3 -s paint --json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeCheckpoint(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		id := ""
		if len(args) > 0 {
			id = args[0]
		}
		doc := struct {
			Problems []sprites.VerifyProblem `json:"problems"`
			sprites.VerifySummary
		}{Problems: []sprites.VerifyProblem{}}
		p := inv.newProgress("reading", 0)
		doc.VerifySummary, err = s.Verify(ctx, id, func(line sprites.VerifyLine) {
			switch {
			case line.Progress != nil:
				p.set(line.Progress.Bytes, line.Progress.Total, false)
			case line.Problem != nil && len(doc.Problems) < maxShownProblems:
				doc.Problems = append(doc.Problems, *line.Problem)
			}
		})
		p.Close()
		if err != nil {
			return checkpointError(err)
		}
		err = inv.show(doc, func(w io.Writer) {
			for _, p := range doc.Problems {
				fmt.Fprintf(w, "%s: %s\n", printable.Line(p.Name()), printable.Line(p.What))
			}
			inv.say("%s, %s read; %s", printable.Count(int(doc.Files), "file"), printable.Bytes(doc.Bytes), printable.Count(int(doc.VerifySummary.Problems), "problem"))
			if doc.Unlisted > 0 {
				inv.say("%s had no digests yet; now the digests are stored.", printable.Count(int(doc.Unlisted), "layer"))
			}
			if len(doc.Damaged) > 0 {
				inv.say("Damaged: %s. Go back to another checkpoint: cove restore ID; or delete the damaged ones: cove checkpoint rm %s", strings.Join(doc.Damaged, ", "), strings.Join(doc.Damaged, " "))
			}
		})
		if err == nil && doc.VerifySummary.Problems > 0 {
			err = reportedError{exitFailed}
		}
		return err
	})
	return cmd
}

// maxShownProblems is more than anybody reads.
const maxShownProblems = 1000
