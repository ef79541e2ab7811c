package cli

import (
	"context"
	"fmt"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/printable"
)

const identityUsage = "commit inside under your git name and address; nothing else of your git configuration"

// giveIdentity has git in a sprite commit as the person does. Neither a credential
// nor anything else of the person's configuration goes there.
func giveIdentity(ctx context.Context, c *cove.Client, sprite string, who cove.Person) error {
	for key, value := range map[string]string{"user.name": who.Name, "user.email": who.Email} {
		said := &tail{}
		set := c.Sprite(sprite).CommandContext(ctx, "git", "config", "--global", "--replace-all", key, value)
		set.Stdout, set.Stderr = said, said
		if err := set.Run(); err != nil {
			err = fmt.Errorf("set %s in %s: %w", key, sprite, err)
			if text := said.text(); text != "" {
				err = fmt.Errorf("%w: %s", err, printable.Line(text))
			}
			return hinted(err, "is git in the sprite? cove exec -s "+sprite+" git version")
		}
	}
	return nil
}

// identityAndClient returns the person's identity, if asked for, and a client of the server. A create
// needs both before it makes a sprite.
func identityAndClient(ctx context.Context, inv *invocation, asked bool) (cove.Person, *cove.Client, error) {
	who, err := identity(ctx, asked)
	if err != nil {
		return who, nil, err
	}
	c, err := inv.server.client(ctx)
	return who, c, err
}

// identity is the person's, if it is asked for.
func identity(ctx context.Context, asked bool) (cove.Person, error) {
	if !asked {
		return cove.Person{}, nil
	}
	return gitwork.Identity(ctx, "")
}
