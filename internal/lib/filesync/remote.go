package filesync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/sprites"
)

const (
	finishLimit = 10 * time.Minute // for what a sprite's end has begun to write, when its client is gone
	closeLimit  = 5 * time.Second
)

// Dialer finds guestbin's program in a sprite, and returns what starts it there: the
// end of a sync, over one exec session.
func Dialer(ctx context.Context, sprite *sprites.Sprite) (func(context.Context) (*Remote, error), error) {
	program, err := guestbin.Find(ctx, sprite)
	return func(ctx context.Context) (*Remote, error) { return dial(ctx, sprite, program) }, err
}

func dial(ctx context.Context, sprite *sprites.Sprite, program string) (*Remote, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := sprite.CommandContext(ctx, program, "sync")
	limit := finishLimit
	cmd.MaxRunAfterDisconnect = &limit
	said := &guestbin.Said{}
	cmd.Stderr = said
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if exit, ok := errors.AsType[*sprites.ExitError](err); ok && said.String() != "" {
			err = fmt.Errorf("%s: %w", said, exit)
		}
		ended <- err
	}()
	var once sync.Once
	var result error
	closeAll := func() error {
		once.Do(func() {
			defer cancel()
			_ = in.Close()
			_ = out.Close()
			select {
			case result = <-ended:
			case <-time.After(closeLimit):
				cancel()
				result = <-ended
			}
		})
		return result
	}
	return &Remote{R: out, W: in, Close: closeAll}, nil
}
