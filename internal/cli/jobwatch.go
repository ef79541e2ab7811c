package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// showWaiting shows on a terminal what a command waits for, until the job has ended or
// done is called. Elsewhere, it says if the sprite is held, or the server is gone.
func showWaiting(ctx context.Context, inv *invocation, c *cove.Client, id string) (done func()) {
	if inv.global.quiet || inv.global.json || !isTerminal(inv.Err) {
		return watchHeld(ctx, inv, jobHeld(c, id)).stop
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for shown := false; ; shown = true {
			job, err := c.Job(ctx, id)
			if ctx.Err() != nil || err == nil && job.State.Terminal() {
				if shown {
					fmt.Fprint(inv.Err, "\r\x1b[K")
				}
				return
			}
			fmt.Fprintf(inv.Err, "\r%s\x1b[K", waitingText(job, err, time.Now()))
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// waitingText says in a line what the job does that a command waits for.
func waitingText(job cove.Job, err error, now time.Time) string {
	if err != nil {
		return "waiting: the server does not answer …"
	}
	text := fmt.Sprintf("waiting for job %s: %s", job.ID, jobStateText(job))
	if job.StartedAt != nil {
		text += ", began " + ago(*job.StartedAt, now)
	}
	switch {
	case job.Place > 0: // the state says it
	case job.Installing != nil:
		text += "; " + installText(job)
	case job.Held != nil:
		text += "; it is paused: " + job.Held.Message
	case job.Unknown != nil:
		text += ": " + job.Unknown.Message
	case job.State == cove.JobQueued:
		text += "; it waits for its repository: if its push is gone, push again"
	case job.State == cove.JobWaiting:
		text += "; answer it: cove job answer " + job.ID
	}
	return printable.Line(text) + " …"
}

// jobHeld returns a function that asks why a job's sprite is held.
func jobHeld(c *cove.Client, id string) func(context.Context) (*sprites.Held, error) {
	return func(ctx context.Context) (*sprites.Held, error) {
		job, err := c.Job(ctx, id)
		return job.Held, err
	}
}
