package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/store"
)

// DestroyEnvironment destroys an environment, and returns its new state: gone, or destroying.
// If its place can't destroy it at once, that is no error: it is tried again. Without force,
// DestroyEnvironment refuses if a job works there, or has left work that nobody has pulled.
// With force these jobs end, and that work is lost.
func (m *Manager) DestroyEnvironment(ctx context.Context, id string, force bool) (cove.Environment, error) {
	env, err := m.jobSprites.environments.Store.Get(ctx, id)
	if err != nil || env.State == cove.EnvironmentGone {
		return env, err
	}
	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{Backend: env.Backend, Sprite: env.Name})
	if err != nil {
		return env, err
	}
	if env.State != cove.EnvironmentDestroying && !force {
		if err := needed(env, jobs); err != nil {
			return env, err
		}
		for _, job := range jobs {
			if n, err := m.jobSprites.needOf(ctx, job); err != nil {
				return env, err
			} else if n.why != "" {
				return env, n.refuse(job, loseWith(env))
			}
		}
	}
	for _, job := range jobs {
		if err := m.preparations.halt(ctx, job.ID); err != nil {
			return env, err
		}
	}
	ctx = context.WithoutCancel(ctx) // its jobs end, also if the place takes all the time that it has
	if env, err = m.jobSprites.destroyAsked(ctx, id); err != nil && env.State != cove.EnvironmentDestroying {
		return env, err
	}
	var errs []error
	for _, job := range jobs {
		if !job.State.Terminal() {
			ending, cancel := context.WithTimeout(ctx, undoLimit)
			errs = append(errs, m.endWithout(ending, job.ID, "its environment was destroyed"))
			cancel()
		}
	}
	now, err := m.jobSprites.environments.Store.Get(ctx, id) // where these jobs no longer work
	return now, errors.Join(append(errs, err)...)
}

// Orphans are the orphans at all places, and the places, by backend, that did not list theirs.
func (m *Manager) Orphans(ctx context.Context) ([]cove.Orphan, map[string]error, error) {
	return m.jobSprites.environments.Orphans(ctx, time.Now())
}

// DestroyOrphan destroys a sprite that Orphans has listed, if it is still an orphan.
func (m *Manager) DestroyOrphan(ctx context.Context, o cove.Orphan) error {
	err := m.jobSprites.environments.DestroyOrphan(ctx, o, time.Now())
	if errors.Is(err, environment.ErrNeeded) || errors.Is(err, environment.ErrForeign) {
		return fail.Newf("not_an_orphan", "see what there is now: cove environment list --orphans", "sprite %s is not an orphan any more, and was not deleted", o.Name)
	}
	if err == nil {
		m.Logger.Info("destroyed an orphan, as asked", "backend", o.Backend, "sprite", o.Name, "job", o.Job)
	}
	return err
}

// needed refuses to destroy an environment if a job works there, or has left work that nobody
// has pulled. The error says what would be lost.
func needed(env cove.Environment, jobs []cove.Job) error {
	lose := "; or lose it: " + loseWith(env)
	for _, job := range jobs {
		if !job.State.Terminal() {
			return fail.Newf("job_running", "stop it: cove job stop "+job.ID+lose,
				"job %s (%s, %s, branch %s) is at work in sprite %s", job.ID, job.PlanName, job.State, cmp.Or(job.Branch, "-"), env.Name)
		}
	}
	for _, job := range jobs {
		switch {
		case job.Bundle.Size > 0 && job.PulledAt == nil:
			left := ""
			if job.Leftover != "" {
				left = ", and uncommitted changes"
			}
			return fail.Newf("unpulled_work", "get it: "+job.Bring()+lose,
				"nobody has pulled the work of job %s (%s, branch %s), which only sprite %s has: %s%s", job.ID, job.PlanName, cmp.Or(job.Branch, "-"), env.Name, printable.Count(job.Commits, "commit"), left)
		case job.Uncollected != "" && env.SpriteID == job.SpriteID:
			return fail.Newf("uncollected_work", fmt.Sprintf("copy it out: cove sync pull -s %s %s ./job-%s%s", job.Sprite, job.Workdir, job.ID, lose),
				"the work of job %s (%s, branch %s) was not collected completely; only sprite %s has all of it: %s", job.ID, job.PlanName, cmp.Or(job.Branch, "-"), env.Name, job.Uncollected)
		}
	}
	return nil
}

// loseWith is the command that destroys an environment with what is needed there.
func loseWith(env cove.Environment) string {
	return "cove environment rm " + path.Join(env.Backend, env.Name) + " --force"
}

// endWithout ends a job whose sprite was taken from it.
func (m *Manager) endWithout(ctx context.Context, id, why string) error {
	unlock, err := m.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	job, err := m.Store.Jobs.Get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && job.State.Terminal():
		return nil
	case err != nil:
		return err
	case job.StartedAt == nil:
		return m.finisher.abandon(ctx, job, why)
	}
	return m.finisher.lose(ctx, id, why, "")
}
