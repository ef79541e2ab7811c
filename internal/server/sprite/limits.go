package sprite

import (
	"context"
	"errors"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// limiter changes limits of memory and processors, one after the other of each sprite.
type limiter struct {
	store    *store.Sprites
	machines *machines

	changing keyedMutex // by the sprite's ID
}

// update changes the limits of memory and processors that req names, of a sandbox
// that is awake too. If that can't be, the sprite has those that it had.
func (l *limiter) update(ctx context.Context, id string, req sprites.UpdateRequest) error {
	done, err := l.changing.lock(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	var before sprites.Config
	row, err := l.store.Update(ctx, id, func(s *store.Sprite) error {
		before = s.Config
		if req.RAMMB != nil {
			s.Config.RAMMB = *req.RAMMB
		}
		if req.CPUs != nil {
			s.Config.CPUs = *req.CPUs
		}
		s.UpdatedAt = time.Now()
		return checkConfig(&sprites.Config{RAMMB: s.Config.RAMMB, CPUs: s.Config.CPUs})
	})
	if err != nil {
		return err
	}
	sb := l.machines.booted(id)
	if sb == nil {
		return nil
	}
	// From here on, the sandbox and the store must agree, whether the client stays or not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setNetworkLimit)
	defer cancel()
	err = sb.Limit(ctx, row.Config.RAMMB, row.Config.CPUs)
	if err == nil || endsSoon(ctx, sb) {
		return nil
	}
	_, undone := l.store.Update(context.WithoutCancel(ctx), id, func(s *store.Sprite) error {
		s.Config.RAMMB, s.Config.CPUs = before.RAMMB, before.CPUs
		return nil
	})
	if errors.Is(err, ErrMemoryUsed) {
		return errors.Join(fail.Newf(CodeTooMuch, "end programs that need the memory, or set a higher limit", "sprite %s keeps its limits: %v", row.Name, err), undone)
	}
	e := fail.Newf(CodeUnavailable, "change them while it sleeps: cove suspend "+row.Name, "the running sandbox of %s did not get its new limits", row.Name)
	e.Err = errors.Join(err, undone)
	return e
}
