package job

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

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
		if err == nil || n == patientTries || ctx.Err() != nil || !passing(err) {
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

// Codes of this server's own, for backends, and of a service that has as many sprites as
// the account may have: none goes away by waiting.
const (
	backendRefused = "backend_refused"
	tooManySprites = "concurrent_sprite_limit_exceeded"
)

// passing reports whether a call that failed may succeed later: nobody answered, or a server
// that is overloaded or out of order. A refusal stays one.
func passing(err error) bool {
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		switch {
		case e.Code == backendRefused, e.Code == tooManySprites, heldError(err) != nil, e.StatusCode == http.StatusNotImplemented:
			return false
		}
		return e.StatusCode == http.StatusTooManyRequests || e.StatusCode >= http.StatusInternalServerError
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sprites.ErrNoExit)
}
