package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// collector removes jobs, with what they have in their sprites.
type collector struct {
	jobs         *store.Jobs
	client       *cove.Client
	connectors   *connectors
	installs     *installs
	jobSprites   *jobSprites
	preparations *preparations
	turns        *turns
	withdrawals  *withdrawals
	locks        *keylock.Mutex // of jobs
	removing     sync.Map       // the ids of jobs that remove is about, as keys
}

// collect is Manager.Collect.
func (c *collector) collect(ctx context.Context, req cove.JobGC, mine func(backend, sprite string) bool) (cove.JobGCResult, error) {
	result := cove.JobGCResult{Removed: []cove.JobGCItem{}, Kept: []cove.JobGCItem{}}
	if req.OlderThanSec < 0 {
		return result, fail.Newf("bad_request", "", "the age can't be %d seconds", req.OlderThanSec)
	}
	made := map[string]sprites.Info{} // by name
	for info, err := range c.client.All(ctx, "") {
		if err != nil {
			return result, err
		}
		if slices.Contains(info.Labels, label) && info.Cove != nil && mine("", info.Name) {
			made[info.Name] = info
		}
	}
	jobs, err := c.jobs.List(ctx, store.JobFilter{})
	if err != nil {
		return result, err
	}
	var errs []error
	for _, job := range jobs {
		info, there := made[job.Sprite]
		there = there && job.Backend == ""
		if there && info.Cove.Owner == store.JobOwner(job.ID) {
			delete(made, job.Sprite)
		}
		if !mine(job.Backend, job.Sprite) {
			continue
		}
		item := cove.JobGCItem{Job: job.ID, State: job.State}
		if there && info.Cove.Owner == store.JobOwner(job.ID) {
			item.Sprite = job.Sprite
		} else {
			info = sprites.Info{} // it is somebody else's
		}
		item.Reason, item.Why = verdict(job, info, req, time.Now())
		if item.Reason == "" && info.ID != "" { // the list may be minutes old, and somebody at work there
			if info, err = c.made(ctx, job); err != nil {
				errs = append(errs, err)
				item.Reason, item.Why = cove.KeptFailed, "its sprite can't be asked whether it is in use: "+err.Error()
			} else {
				item.Reason, item.Why = verdict(job, info, req, time.Now())
			}
		}
		if item.Reason == "" && job.Backend != "" && job.OwnsSprite {
			item.Reason, item.Why = inUse(ctx, c.client, job, item.Why)
		}
		if item.Reason == "" && !publishing(job) { // else it goes by force
			n, err := c.jobSprites.needOf(ctx, job)
			if errs = append(errs, err); err != nil || n.why != "" {
				item.Reason, item.Why = cove.KeptInUse, n.why
			}
		}
		if item.Reason == "" && !req.DryRun {
			if err := c.remove(ctx, job.ID, req.Force, false); err != nil && !errors.Is(err, store.ErrNotFound) {
				errs = append(errs, err)
				item.Reason, item.Why = cove.KeptFailed, "it can't be removed: "+err.Error()
			}
		}
		if item.Reason != "" {
			result.Kept = append(result.Kept, item)
		} else {
			result.Removed = append(result.Removed, item)
		}
	}
	if mine("", "") {
		dropped, err := c.installs.drop(ctx, req)
		errs = append(errs, err)
		result.Removed = append(result.Removed, dropped...)
	}
	for _, info := range made {
		item, err := c.collectOrphan(ctx, info, req)
		errs = append(errs, err)
		if item.Sprite != "" && err == nil {
			result.Removed = append(result.Removed, item)
		}
	}
	return result, errors.Join(errs...)
}

// made is the sprite that was made for a job, as it is now, and empty if that is gone. As in all
// lists, only what the server knows keeps it awake: programs inside could keep it for ever.
func (c *collector) made(ctx context.Context, job cove.Job) (sprites.Info, error) {
	for info, err := range c.client.All(ctx, job.Sprite) {
		if err != nil {
			return sprites.Info{}, err
		}
		if info.Name == job.Sprite && info.Cove != nil && info.Cove.Owner == store.JobOwner(job.ID) {
			return info, nil
		}
	}
	return sprites.Info{}, nil
}

// verdict decides on a job. sprite is the one that was made for it, and empty if that is gone.
// The reason says why the job is kept; empty: it may be removed.
func verdict(job cove.Job, sprite sprites.Info, req cove.JobGC, now time.Time) (reason, why string) {
	unpulled := job.Bundle.Size > 0 && job.PulledAt == nil
	used := job.CreatedAt
	for _, t := range []*time.Time{job.EndedAt, job.PulledAt, sprite.LastRunning} {
		if t != nil && t.After(used) {
			used = *t
		}
	}
	age := now.Sub(used)
	switch {
	case !job.State.Terminal():
		return cove.KeptRunning, "it has not ended"
	case unpulled && !req.Force:
		return cove.KeptUnpulled, "its work has not been pulled: " + job.Bring()
	case publishing(job) && !req.Force:
		return cove.KeptInUse, unpublished
	case sprite.Cove != nil && len(sprite.Cove.AwakeBy) > 0:
		return cove.KeptInUse, "its sprite is in use: " + strings.Join(sprite.Cove.AwakeBy, ", ")
	case age < seconds(req.OlderThanSec):
		return cove.KeptRecent, fmt.Sprintf("it was used %v ago", age.Round(time.Second))
	case job.Uncollected != "" && sprite.ID != "" && !req.Force:
		return cove.KeptUncollected, "not all that its agent left could be collected: cove console -s " + job.Sprite
	case unpulled:
		return "", "its work has not been pulled, and is lost"
	case job.PulledAt != nil:
		return "", "pulled"
	}
	return "", "it left nothing"
}

// inUse returns a reason to keep the job if anything runs in a backend's sprite: nothing else
// can be asked there. Otherwise it returns why as the text.
func inUse(ctx context.Context, client *cove.Client, job cove.Job, why string) (reason, text string) {
	sessions, err := spriteOf(client, job).Sessions(ctx)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return "", why
	case err != nil:
		return cove.KeptFailed, "its sprite can't be asked whether it is in use: " + err.Error()
	case len(sessions) > 0:
		return cove.KeptInUse, fmt.Sprintf("its sprite is in use (commands: %d)", len(sessions))
	}
	return "", why
}

// seconds is n seconds, at most maxTimeout.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(maxTimeout/time.Second))) * time.Second
}

// collectOrphan removes a sprite that was made for a job which is gone: a server
// may have died between the two. It is left alone as long as its lease lasts.
func (c *collector) collectOrphan(ctx context.Context, info sprites.Info, req cove.JobGC) (cove.JobGCItem, error) {
	id, ours := strings.CutPrefix(info.Cove.Owner, store.JobOwnerPrefix)
	// A fork has the same owner, but belongs to a person.
	if !ours || info.Name != c.jobSprites.environments.Name("", id) || info.Cove.LeaseUntil != nil && time.Now().Before(*info.Cove.LeaseUntil) {
		return cove.JobGCItem{}, nil
	}
	if _, err := c.jobs.Get(ctx, id); !errors.Is(err, store.ErrNotFound) {
		return cove.JobGCItem{}, err
	}
	item := cove.JobGCItem{Sprite: info.Name, Why: "its job " + id + " is gone"}
	if req.DryRun {
		return item, nil
	}
	err := c.client.Delete(ctx, info.Name, sprites.DeleteOptions{}) // not where other jobs have work in it
	if e, ok := errors.AsType[*sprites.Error](err); ok && (e.Code == "job_running" || e.Code == "unpulled_work") {
		return cove.JobGCItem{}, nil
	}
	if errors.Is(err, sprites.ErrNotFound) {
		err = nil
	}
	return item, err
}

// remove is Manager.Delete. If the job worked in a sprite that is not its own, its files
// there go too if everywhere is set.
func (c *collector) remove(ctx context.Context, id string, force, everywhere bool) error {
	c.removing.Store(id, true)
	defer c.removing.Delete(id)
	if force {
		if err := c.preparations.halt(ctx, id); err != nil {
			return err
		}
	} else if c.preparations.of(id) != nil {
		return fail.Newf("job_running", "stop it with: cove job stop "+id, "the agent of job %s is being installed", id)
	}
	unlock, err := c.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	job, err := c.jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	running := !job.State.Terminal()
	switch {
	case force:
	case running && job.Stopping && job.Held != nil:
		return fail.Newf("job_running", job.Held.Hint+"; or lose its work with --force", "the work of job %s is not collected yet: %s", id, job.Held.Message)
	case running:
		return fail.Newf("job_running", "stop it with: cove job stop "+id, "job %s is at work (%s)", id, job.State)
	case job.Bundle.Size > 0 && job.PulledAt == nil:
		return fail.Newf("unpulled_work", fmt.Sprintf("get it with: %s; or lose it with --force", job.Bring()), "nobody has pulled the work of job %s", id)
	}
	if !force {
		if n, err := c.jobSprites.needOf(ctx, job); err != nil {
			return err
		} else if n.why != "" {
			return n.refuse(job, "cove job rm --force "+id)
		}
		alone, err := holdsAlone(ctx, c.client, job, everywhere)
		if err != nil {
			return err
		}
		if alone {
			return fail.Newf("uncollected_work", fmt.Sprintf("copy it out: cove sync pull -s %s %s ./job-%s; or lose it: cove job rm --force %s", job.Sprite, job.Workdir, id, id),
				"the work of job %s was not collected completely; only its sprite %s has all of it: %s", id, job.Sprite, job.Uncollected)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	c.connectors.revoke(ctx, id)
	if job.OwnsSprite || everywhere {
		if err := c.noteRemoving(ctx, id, true); err != nil {
			return err
		}
		if err := c.jobSprites.clear(ctx, job, running); err != nil {
			after := context.WithoutCancel(ctx) // the place may have taken all the time
			env, getErr := c.jobSprites.of(after, id)
			if getErr != nil && !errors.Is(getErr, store.ErrNotFound) {
				err = errors.Join(err, getErr)
			} else if env.State != cove.EnvironmentDestroying { // nothing is gone
				err = errors.Join(err, c.noteRemoving(after, id, false))
			}
			return fmt.Errorf("delete job %s: %w", id, err)
		}
	} else if err := c.withdrawals.one(ctx, job); err != nil { // nobody would know of them
		return fmt.Errorf("delete job %s: take its settings out of sprite %s: %w", id, job.Sprite, err)
	}
	defer c.turns.over()
	return c.jobs.Delete(context.WithoutCancel(ctx), id) // a cleanup script may have taken all the time
}

// noteRemoving notes that a job is being deleted, or is not.
func (c *collector) noteRemoving(ctx context.Context, id string, is bool) error {
	return c.jobs.Update(ctx, id, func(j *cove.Job) error { j.Removing = is; return nil })
}

// goOn deletes the jobs whose deletion was begun, by an earlier server perhaps, and did not end.
// The checks against it were made then. An environment that is being destroyed is left to the
// keeper, which has times for that.
func (c *collector) goOn(ctx context.Context) error {
	jobs, err := c.jobs.List(ctx, store.JobFilter{Removing: true})
	errs := []error{err}
	for _, job := range jobs {
		if _, busy := c.removing.Load(job.ID); busy {
			continue
		}
		if env, err := c.jobSprites.of(ctx, job.ID); err == nil && env.State == cove.EnvironmentDestroying {
			continue
		}
		err := c.remove(ctx, job.ID, true, !job.OwnsSprite)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// holdsAlone reports whether the files that go with a job are the only copy of something
// that could not be collected.
func holdsAlone(ctx context.Context, client *cove.Client, job cove.Job, everywhere bool) (bool, error) {
	if job.Uncollected == "" || !job.OwnsSprite && !everywhere {
		return false, nil
	}
	info, err := client.At(job.Backend).Get(ctx, job.Sprite)
	if errors.Is(err, sprites.ErrNotFound) {
		return false, nil
	}
	return err == nil && (job.SpriteID == "" || info.ID == job.SpriteID), err
}
