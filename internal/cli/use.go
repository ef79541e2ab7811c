package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func (a *app) newUse() *cobra.Command {
	return &cobra.Command{
		Use:   "use NAME",
		Short: "Note which sprite the commands in this folder mean",
		Long: `Writes the file .sprite into this folder. Commands without -s, here and in the folders
below, then mean that sprite.`,
		Example: `  cove use paint
  cove exec go test ./...`,
		Args:              exactArgs("the sprite's name"),
		ValidArgsFunction: a.completeOneSprite,
		RunE: verb(func(ctx context.Context, args []string) error {
			if err := checkName(args[0]); err != nil {
				return err
			}
			c, err := a.client(ctx)
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
			file, err := writeSpriteFile(dir, args[0])
			if err != nil {
				return fmt.Errorf("note the sprite: %w", err)
			}
			doc := struct {
				Sprite string `json:"sprite"`
				File   string `json:"file"`
			}{args[0], file}
			return a.show(doc, func(w io.Writer) {
				if !a.global.quiet {
					fmt.Fprintf(w, "Commands in %s now mean %s.\n", sanitizeLine(dir), args[0])
				}
			})
		}),
	}
}
