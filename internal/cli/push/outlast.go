package push

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// outlastLimit is how long a push that New has made waits for a server that went away in its
// middle. The next server gives a push as long before it fails its job.
const outlastLimit = 2 * time.Minute

// Pauses between tries to reach a server that is away.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// outlast repeats a call that may be repeated while the server is away, for c.Outlast.
// It returns the last error.
func (c *Courier) outlast(ctx context.Context, call func() error) error {
	var since time.Time
	pause := firstPause
	for {
		err := call()
		if !away(err) || ctx.Err() != nil || c.Outlast == 0 {
			return err
		}
		now := time.Now()
		switch {
		case since.IsZero():
			since = now
			if c.Away != nil {
				c.Away(err)
			}
		case now.Sub(since) > c.Outlast:
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		pause = min(2*pause, longestPause)
	}
}

// away reports whether an error says that nobody answered, or no longer.
func away(err error) bool {
	if _, answered := errors.AsType[*sprites.Error](err); answered {
		return false
	}
	return brokeOff(err) || errors.Is(err, syscall.ECONNREFUSED)
}

// start starts a job once. Before a second call, it checks whether the server carried out the
// first one. known is false if it can't tell.
func (c *Courier) start(ctx context.Context, id string, req cove.JobStart) (known bool, err error) {
	asked := false
	err = c.outlast(ctx, func() error {
		known = true
		if asked {
			job, err := c.Jobs.Job(ctx, id)
			if err != nil {
				known = false
				return fmt.Errorf("see whether job %s has begun: %w", id, err)
			}
			if job.State != cove.JobQueued {
				return nil
			}
		}
		asked = true
		_, err := c.Jobs.StartJob(ctx, id, req)
		if _, refused := errors.AsType[*sprites.Error](err); err != nil && !refused {
			known = false
		}
		return err
	})
	if err == nil || known {
		return true, err
	}
	if _, refused := errors.AsType[*sprites.Error](err); refused {
		return true, err // of the look: it is gone
	}
	// The call may have been cut by the caller: one last look.
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	job, lookErr := c.Jobs.Job(look, id)
	switch _, refused := errors.AsType[*sprites.Error](lookErr); {
	case lookErr == nil && job.State != cove.JobQueued:
		return true, nil
	case lookErr == nil, refused:
		return true, err
	}
	return false, err
}

// lastLook bounds the check whether a job has begun, when its push ends.
const lastLook = 10 * time.Second
