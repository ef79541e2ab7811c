package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// confines keep a profile's decisions for the sprites of its jobs after they are made.
// Changing such a sprite is not a way around the profile.
type confines struct {
	sprites  *store.Sprites
	jobs     *store.Jobs
	profiles *store.Profiles
}

// of returns the job that a sprite was made for, and the job's profile as it is now. The job
// is nil if there is none, or if it has no profile. Of a deleted profile only the name is
// left. If there is no sprite, that is an error (noSprite): one may be made for a job before
// the caller changes it.
func (c *confines) of(ctx context.Context, name string) (*cove.Job, cove.Profile, error) {
	row, err := c.sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, cove.Profile{}, sprite.NoSprite(name)
	}
	id, ok := strings.CutPrefix(row.Owner, store.JobOwnerPrefix)
	if err == nil && !ok {
		return nil, cove.Profile{}, nil
	}
	var job cove.Job
	if err == nil {
		job, err = c.jobs.Get(ctx, id)
	}
	if errors.Is(err, store.ErrNotFound) || err == nil && job.Profile == "" {
		return nil, cove.Profile{}, nil
	}
	if err != nil {
		return nil, cove.Profile{}, err
	}
	p, err := c.profiles.Get(ctx, job.Profile)
	if errors.Is(err, store.ErrNotFound) {
		return &job, cove.Profile{Name: job.Profile}, nil
	}
	return &job, p, err
}

// noSprite reports whether a refusal says that there is no such sprite.
func noSprite(err error) bool {
	e, ok := errors.AsType[*fail.Error](err)
	return ok && e.Code == sprite.CodeNotFound
}

// mayOpen refuses other rules for a sprite if its job has, from its profile, rules or
// something that only the verb admin may ask for.
func (c *confines) mayOpen(r *http.Request, sprite string) error {
	if principalOf(r).may(admin) {
		return nil
	}
	job, p, err := c.of(r.Context(), sprite)
	if err != nil || job == nil {
		return err
	}
	has := job.URL != "" || job.Publish != "" || job.Definition != nil || len(job.Secrets) > 0 ||
		slices.ContainsFunc(job.MCP, func(s cove.MCPServer) bool { return s.Connector != "" })
	if !has && p.Revision != 0 && !profile.Gives(p) {
		if p.NetworkPolicy == nil && !job.ProfilePolicy {
			return nil
		}
		return fail.New("forbidden", "the profile "+p.Name+" sets the network policy of its jobs; only the verb admin may change it", "use a token with the verb admin")
	}
	return fail.New("forbidden", "the profile "+p.Name+" gives what only the verb admin may ask for, so only the verb admin may change the network policy of its jobs' sprites", "use a token with the verb admin")
}

// mayCopy refuses to copy a sprite if mayOpen or mayGrow could refuse to change it. The copy
// would belong to no job, so no profile would confine it.
func (c *confines) mayCopy(r *http.Request, sprite string) error {
	if principalOf(r).may(admin) {
		return nil
	}
	if err := c.mayOpen(r, sprite); err != nil {
		return err
	}
	job, p, err := c.of(r.Context(), sprite)
	if err != nil || job == nil || p.Config == nil {
		return err
	}
	return fail.New("forbidden", "the profile "+p.Name+" limits its jobs' sprites, so they can't be forked", "use a token with the verb admin")
}

// mayGrow refuses a machine that is beyond the limits of the profile of a sprite's job.
func (c *confines) mayGrow(r *http.Request, sprite string, req sprites.UpdateRequest) error {
	if principalOf(r).may(admin) || req.RAMMB == nil && req.CPUs == nil && req.StorageMB == nil {
		return nil
	}
	job, p, err := c.of(r.Context(), sprite)
	if err != nil || job == nil || p.Config == nil {
		return err
	}
	asked := *p.Config // values that are not asked for stay as they are
	for of, n := range map[*int]*int{&asked.RAMMB: req.RAMMB, &asked.CPUs: req.CPUs, &asked.StorageMB: req.StorageMB} {
		if n != nil {
			*of = *n
		}
	}
	if req.StorageMB != nil {
		asked.StorageGB = 0
	}
	only := cove.Profile{Name: p.Name, ProfileSettings: cove.ProfileSettings{Config: p.Config}}
	if e := profile.Exceeds(only, cove.JobRequest{Config: &asked}); e != nil {
		return fail.Newf("forbidden", "ask for no more, or use a token with the verb admin", "%s of sprites of the profile %s is limited to %s", e.What, p.Name, e.Most)
	}
	return nil
}
