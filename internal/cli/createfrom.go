package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// withFrom are the flags of create that go with --from. A copy has all other settings of its
// source.
var withFrom = []string{"from", "label", "git-identity"}

// createFrom makes a sprite that is a copy of another, as fork does.
func createFrom(ctx context.Context, inv *invocation, cmd *cobra.Command, name string, o *createOptions) error {
	from, checkpoint, at := strings.Cut(o.from, "@")
	switch {
	case at && checkpoint == "":
		return usagef(cmd, "--from %q names no checkpoint after the @", o.from)
	case from == "":
		return usagef(cmd, "--from needs the name of a sprite")
	}
	for _, name := range []string{name, from} {
		if err := checkName(name); err != nil {
			return err
		}
	}
	var other string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(withFrom, f.Name) {
			other = f.Name
		}
	})
	if other != "" {
		err := usagef(cmd, "--%s does not go with --from: the new sprite has the settings of %s", other, from)
		if slices.Contains([]string{"memory", "cpus", "disk", "idle", "hibernate"}, other) {
			return hinted(err, "leave it out here, and afterwards: cove update "+name+" --"+other+" VALUE")
		}
		return err
	}
	who, c, err := identityAndClient(ctx, inv, o.gitID)
	if err != nil {
		return err
	}
	made, err := c.Sprite(from).Fork(ctx, sprites.ForkRequest{Name: name, Checkpoint: checkpoint, Labels: o.labels})
	if err != nil {
		inv.hints.about = from // its checkpoints are what a hint lists
		return checkpointError(unseen(err, "make sprite "+name, "cove list"))
	}
	inv.hints.about = name
	if o.gitID {
		if err := giveIdentity(ctx, c, made.Name, who); err != nil {
			return fmt.Errorf("sprite %s is created, but %w", made.Name, err)
		}
	}
	return inv.show(made, func(w io.Writer) {
		if made.Status != sprites.StatusCold {
			inv.say("Running programs of %s go on in it, too. %s", from, repeatedRandom)
		}
		if !inv.global.quiet {
			inv.tell(w, "Sprite %s created from %s. Use it with: cove exec -s %s CMD", printable.Line(made.Name), printable.Line(o.from), printable.Line(made.Name))
		}
	})
}
