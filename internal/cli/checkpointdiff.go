package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newCheckpointDiffCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A [B]",
		Short: "List the files that differ between two states",
		Long: `Lists the files that differ between checkpoint A and checkpoint B. Without B, A is compared with
the present disk. A file is added (+), changed (~) or removed (-), with its size and what has
changed.

Contents are not compared. A file is changed if its kind, mode, owner, size, time, target or
attributes differ. So a file that was written again with the same content is listed. The files
that cove writes at each start (/.sprite/git/config, /.sprite/policy/network.json) are left out.

The sprite is not woken. If it is awake, files that are being written may appear half-written, or
not yet.`,
		Example: `  cove checkpoint diff v1 -s paint           what has changed since v1
  cove checkpoint diff v1 v3 -s paint
  cove checkpoint diff v1 --json | jq -r '.changes[] | select(.change == "added") | .path'`,
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeDiff(inv),
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return exactArgs([]string{"the checkpoint's id", "the other checkpoint's id"}[:max(1, min(len(args), 2))]...)(cmd, args)
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		s, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		to := ""
		if len(args) > 1 {
			to = args[1]
		}
		if inv.global.json {
			return diffJSON(ctx, inv, s, args[0], to)
		}
		sum, err := s.Diff(ctx, args[0], to, func(e sprites.DiffEntry) error {
			_, err := fmt.Fprintln(inv.text(), diffText(e))
			return err
		})
		if err != nil {
			return checkpointError(err)
		}
		inv.say("%d added, %d changed, %d removed; %s more, %s less", sum.Added, sum.Changed, sum.Removed, printable.Bytes(sum.AddedBytes), printable.Bytes(sum.RemovedBytes))
		return nil
	})
	return cmd
}

// diffText is a line of a diff. The path comes last.
func diffText(e sprites.DiffEntry) string {
	sign, size := "~", printable.Bytes(e.Size)
	switch {
	case e.Change == sprites.DiffAdded:
		sign = "+"
	case e.Change == sprites.DiffRemoved:
		sign, size = "-", printable.Bytes(e.OldSize)
	case e.Size != e.OldSize:
		size = printable.Bytes(e.OldSize) + " → " + size
	}
	name := printable.Line(e.Name())
	if e.Type != "file" {
		size = printable.Line(e.Type)
	}
	if e.Type == "directory" {
		name += "/"
	}
	if len(e.What) > 0 {
		size += " (" + printable.Line(strings.Join(e.What, ", ")) + ")"
	}
	return fmt.Sprintf("%s %-24s %s", sign, size, name)
}

// diffJSON writes a diff as one JSON document, entry by entry as it arrives. An error
// on the way is the document's last field.
func diffJSON(ctx context.Context, inv *invocation, s *sprites.Sprite, from, to string) error {
	n := 0
	sum, err := s.Diff(ctx, from, to, func(e sprites.DiffEntry) error {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		before := ",\n    "
		if n++; n == 1 {
			before = "{\n  \"changes\": [\n    "
		}
		_, err = fmt.Fprintf(harmlessJSON{inv.Out}, "%s%s", before, text)
		return err
	})
	if n == 0 && err == nil {
		_, err = io.WriteString(inv.Out, "{\n  \"changes\": [")
	}
	if err != nil && n == 0 {
		return checkpointError(err)
	}
	key, last, exit := "summary", any(sum), error(nil)
	if err != nil {
		f := inv.classify(checkpointError(err))
		key, last, exit = "error", f.document(), reportedError{f.exit}
	}
	text, err := json.Marshal(last)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(harmlessJSON{inv.Out}, "\n  ],\n  %q: %s\n}\n", key, text); err != nil {
		return err
	}
	return exit
}

func completeDiff(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeCheckpoint(inv)(cmd, args, prefix)
	}
}
