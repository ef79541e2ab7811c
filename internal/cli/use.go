package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newUseCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "use [NAME]",
		Short: "Choose the sprite for commands in this folder",
		Long: `Writes the file .sprite into this folder. Commands here and in the folders below then mean that
sprite, unless they name one themselves (an argument NAME, or -s) or COVE_SPRITE is set. In a git
repository, the file is added to .git/info/exclude.

A .sprite file that git tracks, or that is another user's, is ignored: somebody else could choose
where your commands go.

Without NAME, it shows which sprite commands here mean, and what chooses it.`,
		Example: `  cove use paint
  cove use                                        which one it is now
  cove exec go test ./...`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if len(args) == 0 && inv.global.sprite == "" {
			return showUsed(ctx, inv)
		}
		args, err := inv.sprite.namedOrFlag(cmd, args, "the sprite's name")
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		if _, err := c.Get(ctx, args[0]); err != nil {
			return spriteError(err)
		}
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		if tracked, err := gitwork.Tracks(ctx, filepath.Join(dir, spriteFileName)); err != nil {
			return fmt.Errorf("note the sprite: %w", err)
		} else if tracked {
			return fail.New("tracked", "git tracks the .sprite file here, so no command uses it", "git rm --cached .sprite && cove use "+args[0]+"; or choose with each command: -s "+args[0])
		}
		file, err := writeSpriteFile(dir, args[0])
		if errors.Is(err, syscall.EROFS) || errors.Is(err, os.ErrPermission) {
			return hinted(fmt.Errorf("note the sprite: %w", err), "choose it without a file: export COVE_SPRITE="+args[0]+"; or with each command: -s "+args[0])
		}
		if err != nil {
			return fmt.Errorf("note the sprite: %w", err)
		}
		if exclude, err := gitwork.Exclude(ctx, file); err != nil {
			inv.say("cove: git shows the file .sprite as new: %v", err)
		} else if exclude != "" {
			inv.say("cove: git ignores the file .sprite from now on, by %s", exclude)
		}
		doc := struct {
			Sprite string `json:"sprite"`
			File   string `json:"file"`
		}{args[0], file}
		return inv.show(doc, func(w io.Writer) {
			if !inv.global.quiet {
				fmt.Fprintf(w, "Commands in %s now mean %s.\n", printable.Line(dir), args[0])
			}
		})
	})
	return cmd
}

// showUsed says which sprite the commands in this folder use, and what chooses it.
func showUsed(ctx context.Context, inv *invocation) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	name, err := inv.sprite.name(ctx)
	if err != nil {
		return err
	}
	from := "COVE_SPRITE"
	doc := struct {
		Sprite string `json:"sprite"`
		File   string `json:"file,omitempty"` // empty: COVE_SPRITE chooses it
	}{Sprite: name}
	if environmentSprite() == "" {
		if doc.File, _, err = inv.sprite.findFile(ctx, dir); err != nil {
			return err
		}
		from = doc.File
	}
	return inv.show(doc, func(w io.Writer) { fmt.Fprintf(w, "%s, by %s\n", name, printable.Line(from)) })
}
