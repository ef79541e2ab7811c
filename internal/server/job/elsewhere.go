package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/sprites"
)

// A job's sprite may be at a backend: a server that is reached by the protocol
// alone, which knows nothing of jobs, connectors or cove-guest.

// sprite is a job's sprite, wherever it is.
func (m *Manager) sprite(job sprites.Job) *sprites.Sprite {
	return m.Client.At(job.Backend).Sprite(job.Sprite)
}

// command is a command of the supervisor's, about a job. At a backend the supervisor
// is this server's own, which is brought there where it is missing.
func (m *Manager) command(ctx context.Context, job sprites.Job, verb string, args ...string) (*sprites.Cmd, error) {
	guest := boot.BinDir + "/cove-guest"
	if job.Backend != "" {
		var err error
		if guest, err = guestbin.Bring(ctx, m.sprite(job)); err != nil {
			return nil, err
		}
	}
	return m.sprite(job).CommandContext(ctx, guest, slices.Concat([]string{"job", verb, dir(job.ID)}, args)...), nil
}

// furnishAt makes the job's sprite at a backend, or finds the one that is there, and
// notes its id. It reports whether it has made one.
func (m *Manager) furnishAt(ctx context.Context, at *sprites.Client, job sprites.Job, req sprites.JobRequest) (made bool, err error) {
	info, err := at.Get(ctx, job.Sprite)
	switch {
	case job.OwnsSprite && err == nil:
		return false, fmt.Errorf("sprite %s: %w", job.Sprite, sprites.ErrNameTaken)
	case job.OwnsSprite && errors.Is(err, sprites.ErrNotFound):
		info, err = at.Create(ctx, sprites.CreateRequest{Name: job.Sprite, Labels: []string{label}, Config: req.Config})
		made = err == nil
		if _, refused := errors.AsType[*sprites.Error](err); err != nil && !refused {
			err = fmt.Errorf("%w, if it was made: %w", errLeft, err)
		}
	}
	if err != nil {
		return made, err
	}
	return made, m.Store.Jobs.Update(ctx, job.ID, func(j *sprites.Job) error { j.SpriteID = info.ID; return nil })
}
