package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

func newRmCommand(inv *invocation) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete sprites with their disks",
		Long: `Deletes sprites: their processes end, and their disks are gone. On a terminal it asks you first,
unless you give --yes. Without --force, it keeps a sprite with the work of a job that nobody has
pulled. It also keeps one that only cove use or COVE_SPRITE chooses: name that, or give -s.`,
		Example: `  cove rm paint web-1 web-2
  cove rm --force paint`,
		ValidArgsFunction: completeSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		args, err := inv.sprite.namedOrFlag(cmd, args, "the name of a sprite")
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		return removeEach(ctx, inv, args, func(name string) error {
			return unpulledHint(ctx, c, name, spriteError(c.Delete(ctx, name, sprites.DeleteOptions{Force: force})))
		})
	})
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also if that loses work that nobody has pulled")
	return asksFirst(inv, cmd, lostSprites(inv))
}

// unpulledHint names the jobs whose work a delete would lose.
func unpulledHint(ctx context.Context, c *cove.Client, name string, err error) error {
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.Code != "unpulled_work" {
		return err
	}
	lose := "or lose it: cove rm --force " + name
	jobs, listErr := c.Jobs(ctx)
	for _, job := range jobs { // none after an error
		if job.Backend == "" && job.Sprite == name && job.PulledAt == nil && job.Bundle.Size > 0 && jobPattern().MatchString(job.ID) {
			return hinted(err, "bring its work home: cove pull "+job.ID+"; "+lose)
		}
	}
	if listErr != nil {
		return hinted(err, "see what there is: cove job list; "+lose)
	}
	return hinted(err, "look at what it has: cove console -s "+name+"; "+lose)
}

// forEach calls do with one name after the other. It tells the person each error, and goes
// on. It returns the first error, and the exit code.
func forEach(ctx context.Context, inv *invocation, names []string, do func(string) error) (first *errorJSON, exit int) {
	for _, name := range names {
		err := do(name)
		if err == nil {
			continue
		}
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = interruptedError{}
		}
		if f := inv.classify(err); exit == exitOK {
			doc := f.document()
			first, exit = &doc, f.exit
		}
		if !inv.global.json {
			reportError(inv, nil, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first, exit
}

// removeEach removes one thing after the other, and goes on after an error.
func removeEach(ctx context.Context, inv *invocation, names []string, remove func(string) error) error {
	doc := struct {
		Removed []string   `json:"removed"`
		Error   *errorJSON `json:"error,omitempty"`
	}{Removed: []string{}}
	failed, exit := forEach(ctx, inv, names, func(name string) error {
		err := remove(name)
		if err == nil {
			doc.Removed = append(doc.Removed, name)
		}
		return err
	})
	doc.Error = failed
	if err := inv.show(doc, func(w io.Writer) {
		if len(doc.Removed) > 0 && !inv.global.quiet {
			fmt.Fprintf(w, "Removed %s.\n", strings.Join(doc.Removed, ", "))
		}
	}); err != nil {
		return err
	}
	if exit != exitOK {
		return reportedError{exit}
	}
	return nil
}
