package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// withdrawLimit bounds one try. It may have to wait for a supervisor that still runs: that one
// ends its agent, and collects what it did.
const withdrawLimit = time.Minute

// withdrawals take the settings of jobs, with the values of the variables, out of their
// sprites. A job's supervisor does that itself; withdrawals are for jobs that have ended
// without it. Anything that could still begin by the settings is ended before. The job's row
// says that this must be done (Job.Handed), so that the next server goes on with it.
type withdrawals struct {
	jobs        *store.Jobs
	client      *cove.Client
	supervisors *supervisors
	logger      *slog.Logger
}

// after does so for a job that has just ended. A failure is not an error: it is tried again.
func (w *withdrawals) after(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	job, err := w.jobs.Get(ctx, id)
	if err == nil {
		err = w.one(ctx, job)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		w.logger.Warn("taking the settings of a job out of its sprite; it will be tried again", append(about(job), "err", err)...)
	}
}

// all does so for all jobs that still need it. A backend that does not answer is asked once.
func (w *withdrawals) all(ctx context.Context) error {
	jobs, err := w.jobs.List(ctx, store.JobFilter{Handed: true})
	errs, silent := []error{err}, map[string]bool{}
	for _, job := range jobs {
		if silent[job.Backend] {
			continue
		}
		if err := w.one(ctx, job); err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
			silent[job.Backend] = job.Backend != "" && unheard(err)
		}
	}
	return errors.Join(errs...)
}

// one does so for one job, if that is needed. A sprite that is gone, or is another one by now,
// has nothing of the job.
func (w *withdrawals) one(ctx context.Context, job cove.Job) error {
	if !job.Handed || !job.State.Terminal() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawLimit)
	defer cancel()
	info, err := w.client.At(job.Backend).Get(ctx, job.Sprite)
	there := err == nil && (job.SpriteID == "" || info.ID == job.SpriteID)
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return err
	}
	if there && info.Cove != nil && info.Cove.Elsewhere {
		return nil // nothing runs by the settings, and the sprite is not booted for this; it is tried again
	}
	if there {
		if err := w.clear(ctx, job); err != nil {
			return err
		}
	}
	return w.jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.Handed = false; return nil })
}

// clear ends the supervisor of a job, and removes its settings.
func (w *withdrawals) clear(ctx context.Context, job cove.Job) error {
	sprite := spriteOf(w.client, job)
	err := sprite.DeleteService(ctx, serviceName(job.ID))
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		switch e.StatusCode {
		case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented: // none is there, or the sprite has no services
			err = nil
		}
	}
	if err == nil {
		job.Service = "" // it is not there any more
		err = w.supervisors.kill(ctx, job)
	}
	for _, name := range []string{"job.json", "mcp"} {
		if err != nil {
			return err
		}
		if err = sprite.Remove(ctx, dir(job.ID)+"/"+name, true); errors.Is(err, sprites.ErrNotFound) {
			err = nil
		}
	}
	return err
}
