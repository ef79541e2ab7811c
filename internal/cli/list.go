package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newListCommand(inv *invocation) *cobra.Command {
	var prefix string
	var labels []string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the sprites",
		Long: `Lists the sprites with their states:

  cold      only a disk
  warm      a disk, and an image of its memory
  paused    its processes are in memory, and do not run
  running   its processes run

In JSON, a paused sprite is warm, with cove.paused.`,
		Example: `  cove list
  cove list --prefix web- --label team=shop
  cove list --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if e, ok := errors.AsType[*fail.Error](err); ok && errors.Is(err, errNothing) {
				return inv.show(sprites.ListResponse{Sprites: []sprites.Info{}}, func(io.Writer) { inv.say("%s. %s", e, e.Hint) })
			}
			if err != nil {
				return err
			}
			list, err := listAll(ctx, c, prefix, labels)
			if err != nil {
				return err
			}
			return inv.show(list, func(w io.Writer) {
				if len(list.Sprites) == 0 && (prefix != "" || len(labels) > 0) {
					inv.tell(w, "No such sprites. See all: cove list")
					return
				}
				if len(list.Sprites) == 0 {
					inv.tell(w, "No sprites. Make one: cove create NAME")
					return
				}
				printSprites(w, list.Sprites, time.Now())
			})
		}),
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only those whose names begin so")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only those with this `LABEL`, such as K=V (repeatable)")
	return cmd
}

// listAll puts all pages into one, of the sprites that have all the labels.
func listAll(ctx context.Context, c *cove.Client, prefix string, labels []string) (sprites.ListResponse, error) {
	all := sprites.ListResponse{Sprites: []sprites.Info{}}
	opts := sprites.ListOptions{Prefix: prefix, MaxResults: sprites.MaxPage}
	seen := map[string]bool{}
	for {
		page, err := c.List(ctx, opts)
		if err != nil {
			return all, err
		}
		all.Totals, all.Org = page.Totals, page.Org
		for _, info := range page.Sprites {
			if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(info.Labels, l) }) {
				all.Sprites = append(all.Sprites, info)
			}
		}
		if !page.HasMore || page.NextToken == nil || *page.NextToken == "" {
			return all, nil
		}
		opts.Token = *page.NextToken
		if seen[opts.Token] {
			return all, fmt.Errorf("list sprites: the server gave the same page twice")
		}
		seen[opts.Token] = true
	}
}

// baseText is what a sprite's disk starts from, for a table.
func baseText(s sprites.Info) string {
	switch {
	case s.Config != nil && strings.HasPrefix(s.Config.Image, "sha256:"):
		return shortDigest(s.Config.Image)
	case s.Config != nil && s.Config.Image != "":
		name, _, _ := strings.Cut(s.Config.Image, "@")
		return printable.Line(name)
	case s.Cove != nil && s.Cove.Base != "":
		return printable.Line(s.Cove.Base)
	}
	return "-"
}

func printSprites(w io.Writer, list []sprites.Info, now time.Time) {
	rows := [][]string{{"NAME", "STATUS", "CREATED", "LAST START", "IMAGE", "OWNER", "LABELS"}}
	for _, s := range list {
		used, owner := "-", "-"
		if s.LastRunning != nil {
			used = ago(*s.LastRunning, now)
		}
		if s.Cove != nil && s.Cove.Owner != "" {
			owner = s.Cove.Owner
		}
		rows = append(rows, []string{s.Name, s.StateText(), ago(s.CreatedAt, now), used, baseText(s), owner, strings.Join(s.Labels, ",")})
	}
	table(w, rows)
}
