package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const (
	janitorInterval = time.Minute // how often the janitor looks around
	sweepInterval   = time.Hour   // how often it looks for jobs that nobody needs any more
)

// janitor takes up the jobs that were being prepared, and ends jobs whose repository never
// came, with their sprites. It deletes environments and jobs that could not be deleted before,
// and takes settings out of sprites that could not be reached. It removes what nobody needs
// any more.
type janitor struct {
	jobs       *store.Jobs
	client     *cove.Client
	installs   *installs
	jobSprites *jobSprites
	finisher   *finisher
	preparer   *preparer
	collector  *collector
	turns      *turns
	stop       func(ctx context.Context, id string, note func(*cove.Job) error) (cove.Job, error) // stopJob
	locks      *keylock.Mutex                                                                     // of jobs
	lease      time.Duration                                                                      // how long a job may wait for its repository
	keep       time.Duration                                                                      // how long jobs that nobody needs any more are kept; 0: for ever
	since      time.Time                                                                          // jobs queued before were queued by an earlier server
	logger     *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Start has the janitor work until Close, or until ctx ends.
func (j *janitor) Start(ctx context.Context) {
	j.ctx, j.cancel = context.WithCancel(ctx)
	j.wg.Go(j.run)
}

// Close stops the janitor, if it has begun, and waits.
func (j *janitor) Close() {
	if j.cancel == nil {
		return
	}
	j.cancel()
	j.wg.Wait()
}

// run does all of that, each janitorInterval.
func (j *janitor) run() {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	var swept time.Time
	for {
		if err := j.preparer.takeUp(j.ctx); err != nil && j.ctx.Err() == nil {
			j.logger.Error("preparing the jobs that were being prepared", "err", err)
		}
		if now := time.Now(); now.Sub(swept) >= sweepInterval {
			swept = now
			if err := j.sweep(j.ctx); err != nil && j.ctx.Err() == nil {
				j.logger.Error("removing old jobs", "err", err)
			}
		}
		if err := j.installs.clear(j.ctx); err != nil && j.ctx.Err() == nil {
			j.logger.Error("removing what installations of agents have left", "err", err)
		}
		if err := j.expire(j.ctx, time.Now()); err != nil && j.ctx.Err() == nil {
			j.logger.Error("ending jobs whose repository never came", "err", err)
		}
		if err := j.endWaits(j.ctx, time.Now()); err != nil && j.ctx.Err() == nil {
			j.logger.Warn("ending jobs that keep others from their turn", "err", err)
		}
		if err := j.leftovers(j.ctx); err != nil && j.ctx.Err() == nil {
			j.logger.Warn("removing the environments of jobs that never began", "err", err)
		}
		if err := j.finisher.withdrawals.all(j.ctx); err != nil && j.ctx.Err() == nil {
			j.logger.Warn("taking the settings of jobs out of their sprites", "err", err)
		}
		if err := j.jobSprites.environments.Sweep(j.ctx, time.Now()); err != nil && j.ctx.Err() == nil {
			j.logger.Warn("destroying environments", "err", err)
		}
		if err := j.collector.goOn(j.ctx); err != nil && j.ctx.Err() == nil {
			j.logger.Warn("deleting jobs whose deletion did not end", "err", err)
		}
		select {
		case <-tick.C:
		case <-j.ctx.Done():
			return
		}
	}
}

// leftovers destroys the environments of jobs that have ended before they began: a server may
// have died between the two.
func (j *janitor) leftovers(ctx context.Context) error {
	all, err := j.jobSprites.environments.Store.List(ctx, cove.EnvironmentFilter{})
	errs := []error{err}
	for _, env := range all {
		switch env.State {
		case cove.EnvironmentReady, cove.EnvironmentAsleep, cove.EnvironmentDestroying:
			continue
		}
		if env.Busy {
			continue
		}
		if err := j.leftover(ctx, env.Job); err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", env.Job, err))
		}
	}
	return errors.Join(errs...)
}

func (j *janitor) leftover(ctx context.Context, id string) error {
	unlock, err := j.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	job, err := j.jobs.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && (!job.State.Terminal() || job.StartedAt != nil) {
		return nil
	}
	if err == nil {
		err = j.jobSprites.discard(ctx, job, cove.DestroyNeverUsed)
	}
	return err
}

// expire ends the jobs whose repository did not come in time, or will not come any more.
func (j *janitor) expire(ctx context.Context, now time.Time) error {
	queued, err := j.jobs.List(ctx, store.JobFilter{States: []cove.JobState{cove.JobQueued}})
	if err != nil {
		return err
	}
	var errs []error
	for _, job := range queued {
		since := job.CreatedAt
		if job.ReadyAt != nil {
			since = *job.ReadyAt
		}
		cut, err := j.pushCut(ctx, job, since, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
			continue
		}
		if cut == nil && now.Sub(since) < j.lease {
			continue
		}
		if err := j.expireJob(ctx, job.ID, cut); err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
		}
	}
	return errors.Join(errs...)
}

// expireJob ends a job that is still queued. Cut says how its push was cut off; nil: it was not.
func (j *janitor) expireJob(ctx context.Context, id string, cut error) error {
	unlock, err := j.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	job, err := j.jobs.Get(ctx, id)
	switch {
	case err != nil || job.State != cove.JobQueued:
		return err
	case cut != nil:
		return j.finisher.giveUp(ctx, job, cut)
	}
	return j.finisher.abandon(ctx, job, fmt.Sprintf("its repository did not arrive within %v", j.lease))
}

// endWaits stops the jobs that have waited for a person, or were held, for longer than their
// profile lets them. It does so only while other jobs of the profile wait for their turn.
func (j *janitor) endWaits(ctx context.Context, now time.Time) error {
	jobs, err := j.jobs.List(ctx, store.JobFilter{States: []cove.JobState{cove.JobInstalling, cove.JobPreparing, cove.JobRunning, cove.JobWaiting}})
	errs, queued := []error{err}, map[string]bool{}
	for _, job := range jobs {
		queued[job.Profile] = queued[job.Profile] || job.Place > 0
	}
	for _, job := range jobs {
		if job.StandsSince == nil || job.Stopping || job.Profile == "" || !queued[job.Profile] {
			continue
		}
		limit, err := j.turns.maxWait(ctx, job.Profile)
		if err == nil && limit > 0 && now.Sub(*job.StandsSince) >= limit {
			err = j.endWait(ctx, job.ID, limit)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", job.ID, err))
		}
	}
	return errors.Join(errs...)
}

// endWait stops a job that stands still, if it still does when nobody else acts on it: an answer
// may just be on its way.
func (j *janitor) endWait(ctx context.Context, id string, limit time.Duration) error {
	moved := errors.New("it has gone on")
	_, err := j.stop(ctx, id, func(job *cove.Job) error {
		if job.StandsSince == nil || job.State.Terminal() {
			return moved
		}
		job.StopReason = fmt.Sprintf("it waited or was paused for longer than %v, and other jobs of its profile wait for their turn", limit)
		return nil
	})
	if errors.Is(err, moved) {
		return nil
	}
	return err
}

// pushPatience is how long a push has, after a start of the server, to go on with what it
// began under the earlier server. It has as long after its job's turn has come, while others
// wait for theirs.
const pushPatience = 2 * time.Minute

var (
	errPushCut  = errors.New("the server ended while its repository was on its way")
	errPushGone = errors.New("its turn came, but nobody sent its repository: its push had ended")
)

// pushCut says why nobody is at work on a queued job any more; nil: somebody may be. Nobody is
// if an earlier server queued it, or it keeps others from their turn, and nobody uses its
// sprite. At a backend that can't be told.
func (j *janitor) pushCut(ctx context.Context, job cove.Job, since, now time.Time) (cut error, err error) {
	switch {
	case job.Backend != "":
		return nil, nil
	case !since.Before(j.since):
		if job.TurnAt == nil || now.Sub(since) < pushPatience {
			return nil, nil
		}
		return j.unused(ctx, job, errPushGone)
	case job.RetryOf != "" || job.ResumeOf != "": // the server itself was to bring it
		return errPushCut, nil
	case now.Sub(j.since) < pushPatience:
		return nil, nil
	}
	return j.unused(ctx, job, errPushCut)
}

// unused is why, if nobody uses a job's sprite.
func (j *janitor) unused(ctx context.Context, job cove.Job, why error) (cut error, err error) {
	info, err := j.client.Get(ctx, job.Sprite)
	if errors.Is(err, sprites.ErrNotFound) {
		return why, nil
	}
	if err != nil || info.Cove != nil && len(info.Cove.AwakeBy) > 0 {
		return nil, err
	}
	return why, nil
}

// sweep is a collection by the server's own rule.
func (j *janitor) sweep(ctx context.Context) error {
	if j.keep == 0 {
		return nil
	}
	result, err := j.collector.collect(ctx, cove.JobGC{OlderThanSec: int64(j.keep / time.Second)}, func(string, string) bool { return true })
	for _, item := range result.Removed {
		j.logger.Info("removed what nobody needs any more", "job", item.Job, "sprite", item.Sprite, "why", item.Why)
	}
	return err
}
