package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/script"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const (
	cleanupTime    = time.Minute // of a script that says none
	maxCleanupTime = 10 * time.Minute
)

// cleanups run the cleanup scripts of jobs, each once, before the sprites are deleted. How a script
// ends is in the job and in the log, and does not hold up the deletion.
type cleanups struct {
	jobs    *store.Jobs
	secrets *store.Secrets
	logger  *slog.Logger

	attach func(context.Context, cove.Environment) (*sprites.Sprite, error)
}

// before runs the cleanup script of the job that has an environment, unless it has run, or the
// job never began. It reports whether the script ran. The script's time does not end with ctx.
func (c *cleanups) before(ctx context.Context, env cove.Environment) bool {
	job, err := c.jobs.Get(ctx, env.Job)
	if err != nil || job.StartedAt == nil || job.Cleanup != nil {
		return false
	}
	log := c.logger.With("job", job.ID, "sprite", env.Name)
	req, err := settingsOf(ctx, c.jobs, job.ID)
	if err != nil {
		log.Warn("looking for the cleanup script of a job", "err", err)
		return false
	}
	if req.CleanupScript == nil {
		return false
	}
	sprite, err := c.attach(ctx, env)
	if err != nil {
		log.Warn("a cleanup script did not run: its sprite is not there", "err", err)
		return false
	}
	now := stepTime()
	result := cove.JobCleanup{StartedAt: now}
	if err := c.note(ctx, job.ID, result); err != nil { // else the next server would run it again
		log.Error("noting that the cleanup script of a job begins", "err", err)
		return false
	}
	limit := cmp.Or(min(seconds(req.CleanupScript.TimeoutSec), maxCleanupTime), cleanupTime)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var out stepLog
	err = c.do(limited, sprite, job, req, &out)
	switch exit, ended := errors.AsType[*sprites.ExitError](err); {
	case limited.Err() != nil:
		err = fmt.Errorf("it did not end within %v", limit)
	case ended:
		err = fmt.Errorf("it ended with exit code %d", exit.Code)
	}
	end := stepTime()
	result.EndedAt, result.Output = &end, out.out
	if err != nil {
		result.Error = clip(err.Error())
	}
	log.Info("ran the cleanup script of a job", "took", end.Sub(now), "err", err, "output", result.Output.String())
	if err := c.note(context.WithoutCancel(ctx), job.ID, result); err != nil {
		log.Error("noting how the cleanup script of a job ended", "err", err)
	}
	return true
}

func (c *cleanups) note(ctx context.Context, id string, result cove.JobCleanup) error {
	return c.jobs.Update(ctx, id, func(j *cove.Job) error { j.Cleanup = &result; return nil })
}

// do runs a script. Out gets what it prints, without the secrets that its variables have.
func (c *cleanups) do(ctx context.Context, sprite *sprites.Sprite, job cove.Job, req cove.JobRequest, out io.Writer) error {
	env, secrets, err := resolved(ctx, c.secrets, req.Env)
	if err != nil {
		return err
	}
	return script.Script{Text: req.CleanupScript.Text, File: dir(job.ID) + "/cleanup", Dir: job.Workdir, Env: env, Secrets: secrets}.Run(ctx, sprite, out)
}
