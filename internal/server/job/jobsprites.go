package job

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// label marks the sprites that jobs have made.
const label = store.JobLabel

// spriteOf is a job's sprite, wherever it is. It may be at a backend: a server that is
// reached by the protocol alone, which knows nothing of jobs, connectors or cove-guest.
func spriteOf(client *cove.Client, job cove.Job) *sprites.Sprite {
	return client.At(job.Backend).Sprite(job.Sprite)
}

// jobSprites looks after the sprites that jobs work in. It gives a job its environment, and
// hands the environment on to other jobs. From a sprite that was not made for a job, it
// removes only the job's folders.
type jobSprites struct {
	jobs         *store.Jobs
	client       *cove.Client
	environments *environment.Keeper
	steps        *steps
	patience     *patience
	differ       *differ
	lease        time.Duration // of a new one
}

// installationSetting is the setting that tells this server from others. It is made once.
const installationSetting = "installation"

// errLeft says that a sprite could not be taken back. Its job stays until then.
var errLeft = errors.New("its sprite is still there, and will be deleted later")

// of is the environment that a job has; store.ErrNotFound if it has none.
func (js *jobSprites) of(ctx context.Context, job string) (cove.Environment, error) {
	return js.environments.Store.OfJob(ctx, job)
}

// furnish makes the job's sprite, or gives the one that is there the job's policy.
// Nothing runs in a new sprite before it has the policy. If the caller goes away, the calls
// are not cut, since they might still be carried out. Then furnish waits for them, and takes
// back what was made.
func (js *jobSprites) furnish(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	asked := ctx
	ctx = context.WithoutCancel(ctx) // its steps have limits
	err := js.furnishAll(ctx, job, req)
	if err == nil {
		err = checkGit(asked, js.client, job)
	}
	if err == nil {
		err = context.Cause(asked)
	}
	if err == nil || !job.OwnsSprite {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(asked), undoLimit)
	defer cancel()
	env, undoErr := js.of(undo, job.ID)
	if undoErr == nil {
		_, undoErr = js.environments.Destroy(undo, env.ID, cove.DestroyNeverUsed)
	}
	if undoErr != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errLeft, undoErr))
	}
	return err
}

// checkGit refuses a sprite over an image if it has no git: a job could not clone the
// repository. The caller has not uploaded that yet.
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
		return fail.Newf("no_git", "install git there; if it is based on Debian: cove exec -s "+job.Sprite+" -- sudo apt-get install --yes git",
			"the sprite %s has no git, and a job clones the repository with it", job.Sprite)
	}
	image := info.Cove.Base
	if info.Config != nil && info.Config.Image != "" {
		image = info.Config.Image
	}
	return fail.Newf("no_git", "choose an image with git, or add git to its Dockerfile (for one based on Debian: RUN apt-get update && apt-get install --yes git); or use this server's own tools: --image host",
		"the image %s has no git, and a job clones the repository with it", image)
}

// notFound is the exit code of a command that is not there.
const notFound = 127

// furnishAll makes the sprite, and sees that it has its policy.
func (js *jobSprites) furnishAll(ctx context.Context, job cove.Job, req cove.JobRequest) error {
	var env cove.Environment
	err := js.steps.run(ctx, job, cove.StepCreateSprite, func(ctx context.Context) (err error) {
		env, err = js.make(ctx, job, req)
		return err
	})
	if err != nil {
		return err
	}
	switch {
	case req.NetworkPolicy == nil && !job.OwnsSprite:
		js.steps.skip(ctx, job.ID, cove.StepApplyPolicy, "the sprite keeps its own rules")
	case req.NetworkPolicy == nil:
		js.steps.skip(ctx, job.ID, cove.StepApplyPolicy, "no rules were given")
	case job.Backend == "" && job.OwnsSprite: // environment.Capabilities.Policy
		js.steps.complete(ctx, job.ID, cove.StepApplyPolicy, "the sprite was made with it")
	default:
		err = js.steps.run(ctx, job, cove.StepApplyPolicy, func(ctx context.Context) error {
			set := func() error { return spriteOf(js.client, job).SetNetworkPolicy(ctx, *req.NetworkPolicy) }
			if job.Backend == "" {
				return set()
			}
			return js.patience.try(ctx, set)
		})
	}
	if err != nil || !job.OwnsSprite {
		return err
	}
	return js.environments.Furnished(ctx, env.ID)
}

// make makes the sprite of a job that names none. If the job names one, make finds it.
func (js *jobSprites) make(ctx context.Context, job cove.Job, req cove.JobRequest) (env cove.Environment, err error) {
	if !job.OwnsSprite {
		return env, js.find(ctx, job)
	}
	if env, err = js.of(ctx, job.ID); err != nil {
		return env, err
	}
	if env.State == cove.EnvironmentGone { // an earlier server's attempt was taken back
		if err := js.environments.Store.Replan(ctx, job.ID, randomID(8)); err != nil {
			return env, err
		}
		if env, err = js.of(ctx, job.ID); err != nil {
			return env, err
		}
	}
	plan := environment.Plan{Config: req.Config, Policy: req.NetworkPolicy, Include: req.Include, Install: key(job.Install), Lease: js.lease}
	made, err := js.environments.Make(ctx, env.ID, plan)
	if errors.Is(err, sprites.ErrNotFound) && made.State == cove.EnvironmentCreating && plan.Install != "" { // the installation was dropped in between
		plan.Install = ""
		err = js.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Install = &cove.JobInstall{Detail: job.Agent + " is installed for this job alone: the shared installation was removed"}
			return nil
		})
		if err == nil {
			made, err = js.environments.Make(ctx, env.ID, plan)
		}
	}
	return made, err
}

// find looks for the sprite that a job at a backend names, and notes its id.
func (js *jobSprites) find(ctx context.Context, job cove.Job) error {
	if job.Backend == "" {
		return nil
	}
	var info sprites.Info
	err := js.patience.try(ctx, func() (err error) { info, err = js.client.At(job.Backend).Get(ctx, job.Sprite); return err })
	if err != nil {
		return err
	}
	return js.jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.SpriteID = info.ID; return nil })
}

// there reports whether an earlier server had made a job's sprite here, with its policy.
func (js *jobSprites) there(ctx context.Context, job cove.Job) (bool, error) {
	if job.Backend != "" {
		return false, nil
	}
	own, err := js.owned(ctx, job)
	if !own {
		return false, err
	}
	env, err := js.of(ctx, job.ID)
	if err == nil {
		env, err = js.environments.Make(ctx, env.ID, environment.Plan{})
	}
	if err == nil {
		err = js.environments.Furnished(ctx, env.ID)
	}
	return err == nil, err
}

// owned reports whether the sprite that was made for a job is there. If it is not, that is no
// error.
func (js *jobSprites) owned(ctx context.Context, job cove.Job) (bool, error) {
	env, err := js.of(ctx, job.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && env.State == cove.EnvironmentGone {
		return false, nil
	}
	if err == nil {
		_, err = js.environments.At(env.Backend).Status(ctx, env)
	}
	if errors.Is(err, environment.ErrGone) || errors.Is(err, environment.ErrForeign) {
		return false, nil
	}
	return err == nil, err
}

// discard is remove, for a caller who does not wait until the sprite is gone.
func (js *jobSprites) discard(ctx context.Context, job cove.Job, reason cove.DestroyReason) error {
	_, err := js.remove(ctx, job, reason)
	if err == nil {
		return nil
	}
	if env, getErr := js.of(context.WithoutCancel(ctx), job.ID); getErr != nil || env.State != cove.EnvironmentDestroying {
		return err
	}
	js.steps.logger.Warn("deleting the sprite of a job; it will be tried again", append(about(job), "err", err)...)
	return nil
}

// remove destroys the environment that a job has, and reports whether its sprite is gone. If
// another job works there, or has left work that nobody has pulled, the environment becomes
// that job's. If remove fails, it is tried again, by the next server too, until the sprite is
// known to be gone.
func (js *jobSprites) remove(ctx context.Context, job cove.Job, reason cove.DestroyReason) (gone bool, err error) {
	for {
		env, err := js.of(ctx, job.ID)
		if errors.Is(err, store.ErrNotFound) {
			return false, nil
		}
		if err != nil || env.State == cove.EnvironmentGone {
			return err == nil, err
		}
		heir := ""
		if env.State != cove.EnvironmentDestroying {
			if heir, err = js.heir(ctx, job); err != nil {
				return false, err
			}
		}
		if heir == "" {
			_, err = js.environments.Destroy(ctx, env.ID, reason)
			return err == nil, err
		}
		err = js.environments.Store.Inherit(ctx, env, heir)
		if !errors.Is(err, store.ErrRevision) && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
	}
}

// destroyAsked tries for a while to destroy an environment, as somebody asked.
func (js *jobSprites) destroyAsked(ctx context.Context, id string) (cove.Environment, error) {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	return js.environments.Destroy(ctx, id, cove.DestroyAsked)
}

// heir is another job that works in a job's sprite, or has left work there that nobody has
// pulled; empty: there is none.
func (js *jobSprites) heir(ctx context.Context, job cove.Job) (string, error) {
	others, err := js.jobs.List(ctx, store.JobFilter{Backend: job.Backend, Sprite: job.Sprite})
	for _, heir := range others {
		if heir.ID != job.ID && (!heir.State.Terminal() || heir.Bundle.Size > 0 && heir.PulledAt == nil) {
			return heir.ID, err
		}
	}
	return "", err
}

// clear removes what a job has in its sprite, or the sprite.
func (js *jobSprites) clear(ctx context.Context, job cove.Job, running bool) error {
	if gone, err := js.remove(ctx, job, cove.DestroyJobGone); gone || err != nil {
		return err
	}
	sprite := spriteOf(js.client, job)
	if running {
		if err := endSupervisor(ctx, sprite, job); err != nil {
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
