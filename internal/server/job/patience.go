package job

import (
	"context"
	"errors"
	"time"

	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/sprites"
)

const (
	patientTries = 6 // of a call, the first among them
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// patience tries calls to backends again, if what failed may pass. The calls may be made
// twice.
type patience struct {
	pause func(context.Context, time.Duration) error // nil: it waits
}

// try calls f, and again after a pause that doubles, or as long as the backend asks. It gives
// up after patientTries, and before a pause that would outlast ctx or startLimit.
func (p *patience) try(ctx context.Context, f func() error) error {
	wait := firstPause
	for n := 1; ; n++ {
		err := f()
		if err == nil || n == patientTries || ctx.Err() != nil || !environment.Passing(err) {
			return err
		}
		pause := wait
		if e, ok := errors.AsType[*sprites.Error](err); ok {
			pause = max(pause, e.RetryAfter())
		}
		deadline, limited := ctx.Deadline()
		if pause > startLimit || limited && time.Until(deadline) < pause || p.sleep(ctx, pause) != nil {
			return err
		}
		wait = min(2*wait, longestPause)
	}
}

func (p *patience) sleep(ctx context.Context, d time.Duration) error {
	if p.pause != nil {
		return p.pause(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
