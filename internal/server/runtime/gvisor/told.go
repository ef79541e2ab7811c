package gvisor

import (
	"context"
	"time"

	"github.com/cove-dev/cove/internal/shim"
)

// nextShim is how long a call waits for the shim that takes the place of one that died.
const nextShim = time.Minute

// told makes a call to the sandbox's shim. If that died, by what lost says of the error, it
// makes the call again, until the next shim takes it. A call that the dead one may have begun
// is made again only if that does no harm: lost is shim.Died then, and else shim.IsNoShim.
func (s *sandbox) told(ctx context.Context, lost func(error) bool, call func() error) error {
	limit := time.After(nextShim)
	for {
		err := call()
		if !lost(err) {
			return err
		}
		select {
		case <-s.done:
			return err
		case <-ctx.Done():
			return err
		case <-limit:
			return err
		case <-time.After(stopPause):
		}
	}
}

// Stop ends the sandbox. If its shim has died, the next one is told.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	for {
		_, err := s.client.Stop(ctx, grace)
		var again <-chan time.Time // never, once it was told
		switch {
		case shim.Died(err):
			again = time.After(stopPause)
		case err != nil:
			select {
			case <-s.done:
				return nil
			default:
				return err
			}
		}
		select {
		case <-s.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
		}
	}
}

// stopPause is between two tries to tell a shim.
const stopPause = 20 * time.Millisecond
