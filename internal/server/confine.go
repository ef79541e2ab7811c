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

// of is confinedBy for the sprite of a name. If there is none, that is an error (noSprite): one may
// be made for a job before the caller changes it. For the same reason, the caller makes the
// change with the context judged, which knows no other sprite of that name.
func (c *confines) of(ctx context.Context, name string) (judged context.Context, job *cove.Job, p cove.Profile, err error) {
	row, err := c.sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		err = sprite.NoSprite(name)
	}
	if err == nil {
		job, p, err = c.confinedBy(ctx, row)
	}
	return sprite.Only(ctx, name, row.ID), job, p, err
}

// confinedBy returns the job that a sprite was made for, and the job's profile as it is now. The
// job is nil if there is none, or if it has no profile. Of a deleted profile only the name is
// left.
func (c *confines) confinedBy(ctx context.Context, row store.Sprite) (*cove.Job, cove.Profile, error) {
	id, ok := strings.CutPrefix(row.Owner, store.JobOwnerPrefix)
	if !ok {
		return nil, cove.Profile{}, nil
	}
	job, err := c.jobs.Get(ctx, id)
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
// something that only the verb admin may ask for. The change is made with the context judged.
func (c *confines) mayOpen(r *http.Request, name string) (judged context.Context, err error) {
	if principalOf(r).may(admin) {
		return r.Context(), nil
	}
	judged, job, p, err := c.of(r.Context(), name)
	if err != nil || job == nil {
		return judged, err
	}
	has := job.URL != "" || job.Publish != "" || job.Definition != nil || len(job.Secrets) > 0 ||
		slices.ContainsFunc(job.MCP, func(s cove.MCPServer) bool { return s.Connector != "" })
	if !has && p.Revision != 0 && !profile.Gives(p) {
		if p.NetworkPolicy == nil && !job.ProfilePolicy {
			return judged, nil
		}
		return judged, fail.New("forbidden", "the profile "+p.Name+" sets the network policy of its jobs; only the verb admin may change it", "use a token with the verb admin")
	}
	return judged, fail.New("forbidden", "the profile "+p.Name+" gives what only the verb admin may ask for, so only the verb admin may change the network policy of its jobs' sprites", "use a token with the verb admin")
}

// mayCopy refuses to copy a sprite if mayOpen or mayGrow could refuse to change it. The copy
// would belong to no job, so no profile would confine it.
func (c *confines) mayCopy(r *http.Request, name string) (judged context.Context, err error) {
	if principalOf(r).may(admin) {
		return r.Context(), nil
	}
	if judged, err = c.mayOpen(r, name); err != nil {
		return judged, err
	}
	_, job, p, err := c.of(r.Context(), name)
	if err != nil || job == nil || p.Config == nil {
		return judged, err
	}
	return judged, fail.New("forbidden", "the profile "+p.Name+" limits its jobs' sprites, so they can't be forked", "use a token with the verb admin")
}

// mayGrow refuses a machine that is beyond the limits of the profile of a sprite's job.
func (c *confines) mayGrow(r *http.Request, name string, req sprites.UpdateRequest) (judged context.Context, err error) {
	if principalOf(r).may(admin) || req.RAMMB == nil && req.CPUs == nil && req.StorageMB == nil {
		return r.Context(), nil
	}
	judged, job, p, err := c.of(r.Context(), name)
	if err != nil || job == nil || p.Config == nil {
		return judged, err
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
		return judged, fail.Newf("forbidden", "ask for no more, or use a token with the verb admin", "%s of sprites of the profile %s is limited to %s", e.What, p.Name, e.Most)
	}
	return judged, nil
}
