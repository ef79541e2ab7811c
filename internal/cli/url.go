package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newURLCommand(inv *invocation) *cobra.Command {
	var public, private, link bool
	var path string
	cmd := &cobra.Command{
		Use:   "url [NAME]",
		Short: "Show a sprite's URL, and who may open it",
		Long: `Shows the URL of a sprite's HTTP service. It leads to the port of the service that has an HTTP
port, or else to 8080. A request wakes the sprite and starts that service.

If the sprite is not public, its URL needs a token as the bearer. A browser needs a link that
--link makes: it works once, within two minutes, and lets that browser in for twelve hours. Pages
there have no service workers, because these would see later links.`,
		Example: `  cove url paint
  cove url --link paint
  cove url --public paint
  curl -H "Authorization: Bearer $COVE_TOKEN" "$(cove url paint)"`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if public && private {
			return usagef(cmd, "--public and --private can't both be")
		}
		if path != "" && !link {
			return usagef(cmd, "--path is for --link")
		}
		if err := inv.sprite.nameOnce(cmd, args); err != nil {
			return err
		}
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		if public || private {
			auth := "sprite"
			if public {
				auth = "public"
			}
			if _, err := c.Update(ctx, sprite.Name(), sprites.UpdateRequest{URLSettings: &sprites.URLSettings{Auth: auth}}); err != nil {
				return spriteError(err)
			}
		}
		info, err := c.Get(ctx, sprite.Name())
		if err != nil {
			return spriteError(err)
		}
		var visit *sprites.VisitRequest
		if link {
			visit = &sprites.VisitRequest{Path: path}
		}
		return showURL(ctx, inv, c, info, visit)
	})
	f := cmd.Flags()
	f.BoolVar(&public, "public", false, "let anybody open it who can reach the server")
	f.BoolVar(&private, "private", false, "let only those with a token open it")
	f.BoolVar(&link, "link", false, "print a link that lets a browser in, once")
	f.StringVar(&path, "path", "", "where --link leads, such as /admin")
	return cmd
}

// showURL prints a sprite's URL. If visit is not nil, it makes a link, and prints that.
func showURL(ctx context.Context, inv *invocation, c *cove.Client, info sprites.Info, visit *sprites.VisitRequest) error {
	doc := struct {
		URL  string         `json:"url"`
		Auth string         `json:"auth"`
		Link *sprites.Visit `json:"link,omitempty"`
	}{URL: info.URL, Auth: info.URLSettings.Auth}
	if info.URL == "" {
		return errors.New("the server gives this sprite no URL")
	}
	if visit != nil {
		v, err := c.Visit(ctx, info.Name, *visit)
		if err != nil {
			return err
		}
		doc.Link = &v
	}
	err := inv.show(doc, func(w io.Writer) {
		if doc.Link != nil {
			fmt.Fprintln(w, printable.Line(doc.Link.URL))
		} else {
			fmt.Fprintln(w, printable.Line(doc.URL))
		}
	})
	switch {
	case err != nil || visit != nil:
	case doc.Auth == "public":
		inv.say("It is public.")
	default:
		inv.say("It takes a token. For a browser: cove url --link %s", info.Name)
	}
	return err
}
