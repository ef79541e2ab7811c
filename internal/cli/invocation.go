package cli

import (
	"context"
	"io"

	"github.com/cove-dev/cove/sprites"
)

// Streams are the input and outputs of a command line. All three are set. A stream can be
// recognised as a terminal only if it is an *os.File.
type Streams struct {
	In  io.Reader
	Out io.Writer // the result, and nothing else
	Err io.Writer // for people
}

// globals are the flags that every verb has.
type globals struct {
	url, token, data, sprite, backend string
	json, quiet, verbose              bool
}

// invocation is one run of the command line, with all that a verb works with. A verb's
// constructor gets it before the flags are parsed, and must not use it until the verb runs.
type invocation struct {
	*printer               // streams, remarks and results
	server   *chosenServer // the server in use
	sprite   *chosenSprite // the sprite in use
	child    int           // exit code of a command in a sprite, which is ours then too
}

func newInvocation(streams Streams) *invocation {
	global := &globals{}
	hints := &hinter{global: global}
	out := &printer{Streams: streams, global: global, hints: hints}
	return &invocation{
		printer: out,
		server:  &chosenServer{global: global, out: out},
		sprite:  &chosenSprite{global: global, out: out, hints: hints},
	}
}

// spriteHandle is the sprite in use, of the server in use.
func (inv *invocation) spriteHandle(ctx context.Context) (*sprites.Sprite, error) {
	if _, err := inv.sprite.name(ctx); err != nil {
		return nil, err // before a server is started for it
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return nil, err
	}
	return inv.sprite.handle(ctx, c)
}
