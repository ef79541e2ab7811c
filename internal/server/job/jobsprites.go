package job

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// label marks the sprites that jobs have made.
const label = store.JobLabel

// owner is how a sprite names the job that it was made for.
func owner(id string) string { return ownerPrefix + id }

const ownerPrefix = "job:"

// spriteName is what a sprite is called that is made for a job.
func spriteName(id string) string { return "job-" + id }

// spriteOf is a job's sprite, wherever it is. It may be at a backend: a server that is
// reached by the protocol alone, which knows nothing of jobs, connectors or cove-guest.
func spriteOf(client *cove.Client, job cove.Job) *sprites.Sprite {
	return client.At(job.Backend).Sprite(job.Sprite)
}

// jobSprites looks after the sprites in which jobs work. It makes them, hands them on to
// other jobs, and removes them. From a sprite that was not made for a job, it removes the
// job's folders only.
type jobSprites struct {
	jobs   *store.Jobs
	rows   *store.Sprites
	client *cove.Client
	steps  *steps
	lease  time.Duration // of a new one

	patience     *patience
	installation string // of this server: see name
}

// installationSetting is the setting that tells this server from others. It is made once.
const installationSetting = "installation"

// name is what the sprite of a job is called that is to be made. At a backend, where other
// servers may have theirs, the server's installation is a part of it.
func (js *jobSprites) name(job cove.Job) string {
	if job.Backend == "" {
		return spriteName(job.ID)
	}
	return "job-" + js.installation + "-" + job.ID
}

// mark is the label by which the sprite of a job at a backend is known to be that: no other
// job has it, and no other server's.
func (js *jobSprites) mark(job cove.Job) string {
	return "cove-" + js.installation + "-" + job.Execution
}

// errLeft says that a sprite could not be taken back. Its job stays until then.
var errLeft = errors.New("its sprite is still there, and will be deleted later")

// furnish makes the job's sprite, or gives the one that is there the job's policy.
// Nothing runs in a new one before it has that. A call that is cut may still be
// carried out: it is waited for instead, and what was made is taken back.
func (js *jobSprites) furnish(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	asked := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	made, err := js.furnishAll(ctx, job, req)
	if err == nil {
		err = checkGit(asked, js.client, job)
	}
	if err == nil {
		err = context.Cause(asked)
	}
	if err == nil || !made {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(asked), undoLimit)
	defer cancel()
	undoErr := js.client.At(job.Backend).Delete(undo, job.Sprite, sprites.DeleteOptions{Force: true})
	if undoErr != nil && !errors.Is(undoErr, sprites.ErrNotFound) {
		err = errors.Join(err, fmt.Errorf("%w: %w", errLeft, undoErr))
	}
	return err
}

// checkGit refuses a sprite over an image if it has no git, without which a job can't clone
// the repository. The caller has not uploaded that yet.
func checkGit(ctx context.Context, client *cove.Client, job cove.Job) error {
	if job.Backend != "" {
		return nil // a backend has no images
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	info, err := client.Get(ctx, job.Sprite)
	if err != nil || info.Cove == nil || info.Cove.Base == sprites.HostBase {
		return err
	}
	err = client.Sprite(job.Sprite).CommandContext(ctx, "git", "--version").Run()
	exit, ended := errors.AsType[*sprites.ExitError](err)
	switch {
	case !ended:
		return err
	case exit.Code != notFound:
		return nil // the clone fails with git's own words
	case !job.OwnsSprite:
		return fail.Newf("no_git", "install it there; in one over Debian: cove exec -s "+job.Sprite+" -- sudo apt-get install --yes git",
			"the sprite %s has no git, and a job clones the repository with it", job.Sprite)
	}
	image := info.Cove.Base
	if info.Config != nil && info.Config.Image != "" {
		image = info.Config.Image
	}
	return fail.Newf("no_git", "choose an image with git, or add git to its Dockerfile (over Debian: RUN apt-get update && apt-get install --yes git); or use this server's own tools: --image host",
		"the image %s has no git, and a job clones the repository with it", image)
}

// notFound is the exit code of a command that is not there.
const notFound = 127

// furnishAll reports whether it has made a sprite.
func (js *jobSprites) furnishAll(ctx context.Context, job cove.Job, req cove.JobRequest) (made bool, err error) {
	err = js.steps.run(ctx, job.ID, cove.StepCreateSprite, func() (err error) {
		made, err = js.make(ctx, job, req)
		return err
	})
	if err != nil {
		return made, err
	}
	switch {
	case req.NetworkPolicy == nil && !job.OwnsSprite:
		js.steps.skip(ctx, job.ID, cove.StepApplyPolicy, "the sprite keeps its own rules")
	case req.NetworkPolicy == nil:
		js.steps.skip(ctx, job.ID, cove.StepApplyPolicy, "no rules were given")
	case job.Backend == "" && job.OwnsSprite:
		js.steps.complete(ctx, job.ID, cove.StepApplyPolicy, "the sprite was made with it")
	default:
		set := func() error { return spriteOf(js.client, job).SetNetworkPolicy(ctx, *req.NetworkPolicy) }
		err = js.steps.run(ctx, job.ID, cove.StepApplyPolicy, func() error {
			if job.Backend == "" {
				return set()
			}
			return js.patience.try(ctx, set)
		})
	}
	return made, err
}

// make makes the sprite of a job that names none, and looks for that of one at a backend.
func (js *jobSprites) make(ctx context.Context, job cove.Job, req cove.JobRequest) (made bool, err error) {
	at := js.client.At(job.Backend)
	switch {
	case job.Backend != "":
		return js.furnishAt(ctx, at, job, req)
	case !job.OwnsSprite:
		return false, nil
	}
	ask := sprites.CreateRequest{
		Name: job.Sprite, Labels: []string{label}, Config: req.Config, Include: req.Include, NetworkPolicy: req.NetworkPolicy,
		Owner: owner(job.ID), LeaseSeconds: int64(js.lease / time.Second), Install: key(job.Install),
	}
	_, err = at.Create(ctx, ask)
	if errors.Is(err, sprites.ErrNotFound) && ask.Install != "" { // the installation was dropped in between
		ask.Install = ""
		err = js.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Install = &cove.JobInstall{Detail: job.Agent + " is installed for this job alone: the shared installation was removed"}
			return nil
		})
		if err == nil {
			_, err = at.Create(ctx, ask)
		}
	}
	return err == nil, err
}

// furnishAt makes the job's sprite at a backend, or finds the one that is there, and
// notes its id. It reports whether it has made one.
func (js *jobSprites) furnishAt(ctx context.Context, at *cove.Client, job cove.Job, req cove.JobRequest) (made bool, err error) {
	var info sprites.Info
	if job.OwnsSprite {
		info, err = js.createAt(ctx, at, job, req)
		made = err == nil
	} else {
		err = js.patience.try(ctx, func() (err error) { info, err = at.Get(ctx, job.Sprite); return err })
	}
	if err != nil {
		return made, err
	}
	return made, js.jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.SpriteID = info.ID; return nil })
}

// createAt makes a sprite at a backend. Before each try it looks whether an earlier one has
// made it, whose answer did not come: that one has the job's mark, and is taken. A sprite
// of that name without the mark is ErrNameTaken.
func (js *jobSprites) createAt(ctx context.Context, at *cove.Client, job cove.Job, req cove.JobRequest) (info sprites.Info, err error) {
	unclear := false // a call may have made it, and did not say so
	look := func() (there bool, err error) {
		info, err = at.Get(ctx, job.Sprite)
		switch {
		case errors.Is(err, sprites.ErrNotFound):
			return false, nil
		case err == nil && !slices.Contains(info.Labels, js.mark(job)):
			return true, fmt.Errorf("sprite %s: %w", job.Sprite, sprites.ErrNameTaken)
		}
		return err == nil, err
	}
	err = js.patience.try(ctx, func() error {
		if there, err := look(); there || err != nil {
			return err
		}
		var err error
		info, err = at.Create(ctx, sprites.CreateRequest{Name: job.Sprite, Labels: []string{label, js.mark(job)}, Config: req.Config})
		if errors.Is(err, sprites.ErrNameTaken) { // by an earlier call that took its time, perhaps
			if there, lookErr := look(); there && lookErr == nil {
				return nil
			}
		}
		unclear = unclear || err != nil && !errors.Is(err, sprites.ErrLimited) && (passing(err) || ctx.Err() != nil)
		return err
	})
	if err != nil && unclear && !errors.Is(err, sprites.ErrNameTaken) {
		err = fmt.Errorf("%w, if it was made: %w", errLeft, err)
	}
	return info, err
}

// discard is remove, for a caller who does not wait until the sprite is gone.
func (js *jobSprites) discard(ctx context.Context, job cove.Job) error {
	_, err := js.remove(ctx, job)
	if now, getErr := js.jobs.Get(ctx, job.ID); err == nil || getErr != nil || now.SpriteRemoval == nil {
		return err
	}
	js.steps.logger.Warn("deleting the sprite of a job; it will be tried again", append(about(job), "err", err)...)
	return nil
}

// remove deletes the sprite that was made for a job, and reports whether it
// is gone. Another one that has its name by now is left alone. So is one in which
// another job works, or has left what nobody has pulled: it is that job's then.
// That the sprite is to be deleted is noted before. If it fails, it is tried again,
// by the next server too, until the sprite is known to be gone.
func (js *jobSprites) remove(ctx context.Context, job cove.Job) (gone bool, err error) {
	if !job.OwnsSprite {
		return js.removeNow(ctx, job)
	}
	err = js.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		if j.SpriteRemoval == nil {
			j.SpriteRemoval = &cove.SpriteRemoval{Since: time.Now().UTC()}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	gone, err = js.removeNow(ctx, job)
	noteErr := js.jobs.Update(context.WithoutCancel(ctx), job.ID, func(j *cove.Job) error {
		switch r := j.SpriteRemoval; {
		case err == nil:
			j.SpriteRemoval = nil
		case r != nil:
			next := *r
			next.Tries++
			next.NextAt = time.Now().UTC().Add(min(janitorInterval<<min(r.Tries, 10), longestWait))
			next.Error, next.Hint = clip(err.Error()), hintOf(err)
			j.SpriteRemoval = &next
		}
		return nil
	})
	return gone, errors.Join(err, noteErr)
}

// longestWait is how long the next try of deleting a sprite is waited for at most.
const longestWait = time.Hour

func (js *jobSprites) removeNow(ctx context.Context, job cove.Job) (gone bool, err error) {
	own, err := js.owned(ctx, job)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, sprites.ErrNotFound) {
		return true, nil
	}
	if err != nil || !own {
		return false, err
	}
	others, err := js.jobs.List(ctx, store.JobFilter{Backend: job.Backend, Sprite: job.Sprite})
	if err != nil {
		return false, err
	}
	for _, heir := range others {
		if heir.ID != job.ID && (!heir.State.Terminal() || heir.Bundle.Size > 0 && heir.PulledAt == nil) {
			return false, js.inherit(ctx, job, heir.ID)
		}
	}
	err = js.client.At(job.Backend).Delete(ctx, job.Sprite, sprites.DeleteOptions{Force: true})
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return false, err
	}
	return true, nil
}

// owned reports whether a job's sprite is still the one that was made for it.
func (js *jobSprites) owned(ctx context.Context, job cove.Job) (bool, error) {
	if job.Backend != "" {
		info, err := js.client.At(job.Backend).Get(ctx, job.Sprite)
		// A server may have died between its creation and the note of its id.
		ours := job.SpriteID != "" && info.ID == job.SpriteID || job.SpriteID == "" && slices.Contains(info.Labels, js.mark(job))
		return job.OwnsSprite && ours, err
	}
	row, err := js.rows.Get(ctx, job.Sprite)
	return job.OwnsSprite && row.Owner == owner(job.ID), err
}

// inherit makes a job's sprite another's.
func (js *jobSprites) inherit(ctx context.Context, from cove.Job, to string) error {
	if from.Backend == "" {
		row, err := js.rows.Get(ctx, from.Sprite)
		if err != nil {
			return err
		}
		if _, err := js.rows.Update(ctx, row.ID, func(s *store.Sprite) error { s.Owner = owner(to); return nil }); err != nil {
			return err
		}
	}
	// The heir first: what nobody owns, nobody removes.
	err := js.jobs.Update(ctx, to, func(j *cove.Job) error { j.OwnsSprite, j.SpriteID = true, from.SpriteID; return nil })
	if err != nil {
		return err
	}
	return js.jobs.Update(ctx, from.ID, func(j *cove.Job) error { j.OwnsSprite = false; return nil })
}

// clear removes what a job has in its sprite, or the sprite.
func (js *jobSprites) clear(ctx context.Context, job cove.Job, running bool) error {
	if gone, err := js.remove(ctx, job); gone || err != nil {
		return err
	}
	if now, err := js.jobs.Get(ctx, job.ID); err != nil || now.OwnsSprite {
		return err // the one that has its name is another's
	}
	sprite := spriteOf(js.client, job)
	if running && job.Session != "" {
		_, err := sprite.Kill(ctx, job.Session, sprites.SIGKILL, time.Second)
		if err != nil && !errors.Is(err, sprites.ErrGone) && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
	}
	folders := []string{dir(job.ID)}
	if others, err := inClone(ctx, js.jobs, job); err != nil {
		return err
	} else if len(others) == 0 {
		folders = append(folders, path.Dir(workdir(job.ID, job.Repository)))
	}
	for _, name := range folders {
		err := sprite.Remove(ctx, name, true)
		if err != nil && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
	}
	return nil
}
