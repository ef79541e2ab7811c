package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newSuspendCommand(inv *invocation) *cobra.Command {
	return newSleepCommand(inv, &cobra.Command{
		Use:   "suspend [NAME...]",
		Short: "Put a sprite to sleep now, with its memory",
		Long: `Puts a sprite to sleep now, as happens by itself when nobody uses it. Its programs stop where
they are, and its memory goes to disk. It then takes no memory and no processor of this machine.
Its next use wakes it, and the programs go on.

It is refused while a job is at work or Docker runs in it. It is also refused while somebody is
attached to a command, or a connection to the sprite is open (cove proxy, its URL). A task
(sprite-env tasks) or a command that nobody is attached to goes to sleep with it.`,
		Example: "  cove suspend paint",
	}, (*sprites.Sprite).Suspend, "%s sleeps.")
}

func newWakeCommand(inv *invocation) *cobra.Command {
	return newSleepCommand(inv, &cobra.Command{
		Use:   "wake [NAME...]",
		Short: "Wake a sprite",
		Long: `Wakes a sprite that sleeps, as its next use would. Its programs go on. If its memory can't be
used, such as after an upgrade of cove, it boots instead. cove info shows why.`,
		Example: "  cove wake paint",
	}, (*sprites.Sprite).Wake, "%s is awake.")
}

func newRestartCommand(inv *invocation) *cobra.Command {
	cmd := newSleepCommand(inv, &cobra.Command{
		Use:   "restart [NAME...]",
		Short: "End all programs in a sprite, and boot it",
		Long: `Ends all programs of a sprite, deletes the memory that it sleeps with, and boots it from its
disk. Its services start. Programs then see the limits of memory and CPUs that cove update has
set. If a job works in it, the job ends, and its work so far is collected. On a terminal you are
asked first, unless you give --yes.`,
		Example: "  cove restart paint",
	},
		func(s *sprites.Sprite, ctx context.Context) (sprites.Info, error) {
			running := runningJobs(ctx, &cove.Client{Client: s.Client()}, s.Name())
			if _, err := s.Client().Restart(ctx, s.Name()); err != nil {
				return sprites.Info{}, err
			}
			for _, j := range running {
				inv.warn("cove: job %[1]s ends with the programs of %[2]s; see: cove job show %[1]s", j.ID, s.Name())
			}
			return s.Wake(ctx)
		}, "%s has booted.")
	return asksFirst(inv, cmd, func(ctx context.Context, cmd *cobra.Command, args []string) (lines []string, _ error) {
		args, err := inv.sprite.namedAll(ctx, cmd, args)
		if err != nil {
			return nil, err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range args {
			for _, j := range runningJobs(ctx, c, name) {
				lines = append(lines, fmt.Sprintf("job %s (%s) in sprite %s; what it has done is collected", j.ID, jobStateText(j), name))
			}
		}
		return lines, nil
	})
}

// newSleepCommand completes a command that does something with one sprite after the other, and
// says so of each.
func newSleepCommand(inv *invocation, cmd *cobra.Command, do func(*sprites.Sprite, context.Context) (sprites.Info, error), said string) *cobra.Command {
	cmd.ValidArgsFunction = completeSprite(inv)
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		args, err := inv.sprite.namedAll(ctx, cmd, args)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		var doc struct {
			sprites.ListResponse
			Error *errorJSON `json:"error,omitempty"`
		}
		doc.Sprites = []sprites.Info{}
		failed, exit := forEach(ctx, inv, args, func(name string) error {
			info, err := do(c.Sprite(name), ctx)
			if err != nil {
				return spriteError(unseen(err, cmd.Name()+" sprite "+name, "cove info "+name))
			}
			doc.Sprites = append(doc.Sprites, info)
			return nil
		})
		doc.Error = failed
		if err := inv.show(doc, func(io.Writer) {
			for _, info := range doc.Sprites {
				if cmd.Name() == "suspend" && info.Status == sprites.StatusCold && info.LastRunning == nil {
					inv.say("%s has never run: nothing in it could be suspended.", printable.Line(info.Name))
					continue
				}
				inv.say(said, printable.Line(info.Name))
			}
		}); err != nil || exit == exitOK {
			return err
		}
		return reportedError{exit}
	})
	return cmd
}
