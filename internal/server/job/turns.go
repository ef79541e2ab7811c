package job

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
)

// turns lets as many jobs of a profile work at once as the profile says. A job in an existing
// sprite does not wait: it goes on with what somebody has begun. The store knows which jobs
// have their turn: a server that ends changes nothing.
type turns struct {
	jobs     *store.Jobs
	profiles *store.Profiles

	mu    sync.Mutex
	ended chan struct{} // closed when a job has ended, or is gone; guarded by mu
}

func newTurns(s *store.Store) *turns {
	return &turns{jobs: s.Jobs, profiles: s.Profiles, ended: make(chan struct{})}
}

// turnInterval is how often turns looks even without news: a profile's limit may change.
const turnInterval = 5 * time.Second

// wait returns when it is the job's turn. The job is as the store has it. Show is told each place
// that the job has until then, and that the store does not have yet.
func (t *turns) wait(ctx context.Context, job cove.Job, show func(place int) error) error {
	if job.Profile == "" || !job.OwnsSprite {
		return nil
	}
	tick := time.NewTicker(turnInterval)
	defer tick.Stop()
	for last := job.Place; ; {
		ended := t.next()
		limit, err := t.limit(ctx, job.Profile)
		if err != nil {
			return err
		}
		place, err := t.jobs.TakeTurn(ctx, job.ID, job.Profile, limit)
		if err != nil {
			return err
		}
		if place == 0 {
			return nil
		}
		if place != last {
			if err := show(place); err != nil {
				return err
			}
			last = place
		}
		select {
		case <-ended:
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// limit is how many jobs of a profile may be at work at once; 0: any number.
func (t *turns) limit(ctx context.Context, profile string) (int, error) {
	p, err := t.profiles.Get(ctx, profile)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	return p.MaxJobs, err
}

// maxWait is how long a job of a profile may stand still while others wait; 0: as long as it likes.
func (t *turns) maxWait(ctx context.Context, profile string) (time.Duration, error) {
	p, err := t.profiles.Get(ctx, profile)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	return seconds(p.MaxWaitSec), err
}

// limited reports whether a job may have to wait for its turn.
func (t *turns) limited(ctx context.Context, req cove.JobRequest) (bool, error) {
	if req.Profile == "" || req.Sprite != "" {
		return false, nil
	}
	limit, err := t.limit(ctx, req.Profile)
	return limit > 0, err
}

func (t *turns) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// over has those that wait look again: a job has ended, or is gone.
func (t *turns) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.ended)
	t.ended = make(chan struct{})
}
