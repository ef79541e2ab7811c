package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

func (a *app) newSuspend() *cobra.Command {
	return a.sleepVerb("suspend", "Have a sprite sleep now, with its memory",
		`Has a sprite sleep now, as it does by itself when nobody uses it: its programs stop where they
are, its memory goes to disk, and it takes no memory and no processor of this machine. Its
next use wakes it, and they go on. One that is in use is refused.`,
		"  cove suspend paint", (*sprites.Sprite).Suspend, "%s sleeps.")
}

func (a *app) newWake() *cobra.Command {
	return a.sleepVerb("wake", "Wake a sprite",
		`Wakes a sprite that sleeps, as its next use would. What ran goes on; where its memory can't
be used, because cove was upgraded say, it boots, and cove info says why.`,
		"  cove wake paint", (*sprites.Sprite).Wake, "%s is awake.")
}

func (a *app) sleepVerb(verbName, short, long, example string, f func(*sprites.Sprite, context.Context) (sprites.Info, error), said string) *cobra.Command {
	cmd := &cobra.Command{
		Use: verbName + " [NAME...]", Short: short, Long: long, Example: example,
		ValidArgsFunction: a.completeSprite,
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		args, err := a.namedAll(ctx, cmd, args)
		if err != nil {
			return err
		}
		c, err := a.client(ctx)
		if err != nil {
			return err
		}
		var doc struct {
			sprites.ListResponse
			Error *errorJSON `json:"error,omitempty"`
		}
		doc.Sprites = []sprites.Info{}
		failed, exit := a.each(ctx, args, func(name string) error {
			info, err := f(c.Sprite(name), ctx)
			if err != nil {
				return spriteError(unseen(err, verbName+" sprite "+name, "cove info "+name))
			}
			doc.Sprites = append(doc.Sprites, info)
			return nil
		})
		doc.Error = failed
		if err := a.show(doc, func(io.Writer) {
			for _, info := range doc.Sprites {
				a.say(said, sanitizeLine(info.Name))
			}
		}); err != nil || exit == exitOK {
			return err
		}
		return reportedError{exit}
	})
	return cmd
}
