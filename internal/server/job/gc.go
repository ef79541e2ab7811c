package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// sweepInterval is how often jobs that nobody needs any more are looked for.
const sweepInterval = time.Hour

// owner is how a sprite names the job that it was made for.
func owner(id string) string { return ownerPrefix + id }

const ownerPrefix = "job:"

// spriteName is what a sprite is called that is made for a job.
func spriteName(id string) string { return "job-" + id }

// Collect removes the jobs that have ended and that nobody needs any more, with
// the sprites that were made for them; and such sprites whose job is gone and
// whose lease is over. In others' sprites nothing is touched. mine says whether a sprite is the caller's to touch; the empty backend is this server.
func (m *Manager) Collect(ctx context.Context, req cove.JobGC, mine func(backend, sprite string) bool) (cove.JobGCResult, error) {
	result := cove.JobGCResult{Removed: []cove.JobGCItem{}, Kept: []cove.JobGCItem{}}
	if req.OlderThanSec < 0 {
		return result, fail.Newf("bad_request", "", "nothing is older than %d seconds", req.OlderThanSec)
	}
	made := map[string]sprites.Info{} // by name
	for info, err := range m.Client.All(ctx, "") {
		if err != nil {
			return result, err
		}
		if slices.Contains(info.Labels, label) && info.Cove != nil && mine("", info.Name) {
			made[info.Name] = info
		}
	}
	jobs, err := m.Store.Jobs.List(ctx, store.JobFilter{})
	if err != nil {
		return result, err
	}
	var errs []error
	for _, job := range jobs {
		info, there := made[job.Sprite]
		there = there && job.Backend == ""
		if there && info.Cove.Owner == owner(job.ID) {
			delete(made, job.Sprite)
		}
		if !mine(job.Backend, job.Sprite) {
			continue
		}
		item := cove.JobGCItem{Job: job.ID, State: job.State}
		if there && info.Cove.Owner == owner(job.ID) {
			item.Sprite = job.Sprite
		} else {
			info = sprites.Info{} // it is somebody else's
		}
		item.Reason, item.Why = verdict(job, info, req, time.Now())
		if item.Reason == "" && job.Backend != "" && job.OwnsSprite {
			item.Reason, item.Why = m.inUse(ctx, job, item.Why)
		}
		if item.Reason == "" && !req.DryRun {
			if err := m.remove(ctx, job.ID, req.Force, false); err != nil && !errors.Is(err, store.ErrNotFound) {
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
		dropped, err := m.dropInstalls(ctx, req)
		errs = append(errs, err)
		result.Removed = append(result.Removed, dropped...)
	}
	for _, info := range made {
		item, err := m.collectOrphan(ctx, info, req)
		errs = append(errs, err)
		if item.Sprite != "" && err == nil {
			result.Removed = append(result.Removed, item)
		}
	}
	return result, errors.Join(errs...)
}

// verdict decides on a job. The sprite is the one that was made for it, and empty if
// that is gone. The reason is the one to keep the job; empty: it may be removed.
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
		return cove.KeptUnpulled, fmt.Sprintf("its work has not been pulled: cove pull %s", job.ID)
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

// inUse reports whether anything runs in a backend's sprite, which is all that can be
// asked there; else the reason to remove its job stays.
func (m *Manager) inUse(ctx context.Context, job cove.Job, why string) (reason, text string) {
	sessions, err := m.sprite(job).Sessions(ctx)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return "", why
	case err != nil:
		return cove.KeptFailed, "its sprite can't be asked whether it is in use: " + err.Error()
	case len(sessions) > 0:
		return cove.KeptInUse, fmt.Sprintf("its sprite is in use, by this number of commands: %d", len(sessions))
	}
	return "", why
}

// seconds is bounded by what a duration can be.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(maxTimeout/time.Second))) * time.Second
}

// collectOrphan removes a sprite that was made for a job which is gone: a server
// may have died between the two. It is left alone as long as its lease lasts.
func (m *Manager) collectOrphan(ctx context.Context, info sprites.Info, req cove.JobGC) (cove.JobGCItem, error) {
	id, ours := strings.CutPrefix(info.Cove.Owner, ownerPrefix)
	// A fork says the same of its owner, and is a person's.
	if !ours || info.Name != spriteName(id) || info.Cove.LeaseUntil != nil && time.Now().Before(*info.Cove.LeaseUntil) {
		return cove.JobGCItem{}, nil
	}
	if _, err := m.Store.Jobs.Get(ctx, id); !errors.Is(err, store.ErrNotFound) {
		return cove.JobGCItem{}, err
	}
	item := cove.JobGCItem{Sprite: info.Name, Why: "its job " + id + " is gone"}
	if req.DryRun {
		return item, nil
	}
	err := m.Client.Delete(ctx, info.Name, sprites.DeleteOptions{}) // not where other jobs have work in it
	if e, ok := errors.AsType[*sprites.Error](err); ok && (e.Code == "job_running" || e.Code == "unpulled_work") {
		return cove.JobGCItem{}, nil
	}
	if errors.Is(err, sprites.ErrNotFound) {
		err = nil
	}
	return item, err
}

// sweep is Collect by the server's own rule.
func (m *Manager) sweep(ctx context.Context) error {
	if m.Keep == 0 {
		return nil
	}
	result, err := m.Collect(ctx, cove.JobGC{OlderThanSec: int64(m.Keep / time.Second)}, func(string, string) bool { return true })
	for _, item := range result.Removed {
		m.Logger.Info("removed what nobody needs any more", "job", item.Job, "sprite", item.Sprite, "why", item.Why)
	}
	return err
}

// removeSprite deletes the sprite that was made for a job, and reports whether it
// is gone. Another one that has its name by now is left alone. So is one in which
// another job works, or has left what nobody has pulled: it is that job's then.
func (m *Manager) removeSprite(ctx context.Context, job cove.Job) (gone bool, err error) {
	own, err := m.owned(ctx, job)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, sprites.ErrNotFound) {
		return true, nil
	}
	if err != nil || !own {
		return false, err
	}
	others, err := m.Store.Jobs.List(ctx, store.JobFilter{Backend: job.Backend, Sprite: job.Sprite})
	if err != nil {
		return false, err
	}
	for _, heir := range others {
		if heir.ID != job.ID && (!heir.State.Terminal() || heir.Bundle.Size > 0 && heir.PulledAt == nil) {
			return false, m.inherit(ctx, job, heir.ID)
		}
	}
	err = m.Client.At(job.Backend).Delete(ctx, job.Sprite, sprites.DeleteOptions{Force: true})
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return false, err
	}
	return true, nil
}

// owned reports whether a job's sprite is still the one that was made for it.
func (m *Manager) owned(ctx context.Context, job cove.Job) (bool, error) {
	if job.Backend != "" {
		info, err := m.Client.At(job.Backend).Get(ctx, job.Sprite)
		// A server may have died between its creation and the note of its id.
		ours := info.ID == job.SpriteID || job.SpriteID == "" && slices.Contains(info.Labels, label)
		return job.OwnsSprite && ours, err
	}
	row, err := m.Store.Sprites.Get(ctx, job.Sprite)
	return job.OwnsSprite && row.Owner == owner(job.ID), err
}

// inherit makes a job's sprite another's.
func (m *Manager) inherit(ctx context.Context, from cove.Job, to string) error {
	if from.Backend == "" {
		row, err := m.Store.Sprites.Get(ctx, from.Sprite)
		if err != nil {
			return err
		}
		if _, err := m.Store.Sprites.Update(ctx, row.ID, func(s *store.Sprite) error { s.Owner = owner(to); return nil }); err != nil {
			return err
		}
	}
	// The heir first: what nobody owns, nobody removes.
	err := m.Store.Jobs.Update(ctx, to, func(j *cove.Job) error { j.OwnsSprite, j.SpriteID = true, from.SpriteID; return nil })
	if err != nil {
		return err
	}
	return m.Store.Jobs.Update(ctx, from.ID, func(j *cove.Job) error { j.OwnsSprite = false; return nil })
}
