package cli

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// loopFound is GNU find's message about a folder that is reached again inside itself.
const loopFound = "find: File system loop detected; '"

// linkOf prints the last link on the way to a path, and where it leads.
const linkOf = `p=$1; while [ ! -L "$p" ] && [ "$p" != "${p%/*}" ]; do p=${p%/*}; done; printf '%s\n%s' "$p" "$(readlink -- "$p")"`

// findLoop returns an error if a link below a folder of a sprite leads to a folder that has
// the link in it. A copy that follows links would not end. The error names such a link.
func findLoop(ctx context.Context, sprite *sprites.Sprite, dir string) error {
	if !path.IsAbs(dir) {
		dir = "./" + dir // it may begin with "-"
	}
	find := sprite.CommandContext(ctx, "find", "-L", dir, "-type", "d", "-links", "0")
	find.Env = []string{"LC_ALL=C"}
	said := &tail{}
	find.Stderr = said
	err := find.Run()
	exit, ended := errors.AsType[*sprites.ExitError](err)
	switch {
	case err != nil && !ended:
		return err
	case ended && exit.Code >= exitNoCommand-1:
		return said.explain("look for loops of links in "+sprite.Name(), err)
	}
	_, rest, loop := strings.Cut(string(said.buf), loopFound)
	at, _, whole := strings.Cut(rest, "' is part of")
	if !loop || !whole {
		return nil // tar reports the other files that can't be read
	}
	found, printed := sprite.CommandContext(ctx, "sh", "-c", linkOf, "sh", at), &tail{}
	found.Stdout = printed
	if err := found.Run(); err != nil {
		return err
	}
	link, target, _ := strings.Cut(string(printed.buf), "\n")
	return fail.Newf("link_loop", "copy links that stay in the folder as links: --links skip; or remove that link in the sprite", "%s is a link to %q, a folder that it is in: following it would never end; nothing was copied", printable.Line(link), printable.Line(target))
}
