package environment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// place is an Executor over the client of a server of the protocol. Its fields are the
// differences between this server and others.
type place struct {
	client *cove.Client
	prefix string // of the names of all sprites that this server makes there
	retry  func(context.Context, func() error) error

	request func(cove.Environment, Plan) sprites.CreateRequest
	owns    func(cove.Environment, sprites.Info) bool // the sprite is the environment's
	ours    func(sprites.Info) bool                   // it is one of this server's environments
	job     func(sprites.Info) string                 // the job that has one that is ours
	can     func(context.Context) (Capabilities, error)
}

// spriteName is the name of the sprite that is made for a job of this server's.
func spriteName(job string) string { return "job-" + job }

// here is the executor of this server. The owner of a sprite says which job has it.
func here(client *cove.Client) *place {
	return &place{
		client: client,
		prefix: spriteName(""),
		retry:  func(_ context.Context, f func() error) error { return f() },
		request: func(env cove.Environment, plan Plan) sprites.CreateRequest {
			return sprites.CreateRequest{
				Name: env.Name, Labels: []string{store.JobLabel}, Config: plan.Config, Include: plan.Include, NetworkPolicy: plan.Policy,
				Owner: store.JobOwner(env.Job), LeaseSeconds: int64(plan.Lease / time.Second), Install: plan.Install,
			}
		},
		owns: func(env cove.Environment, info sprites.Info) bool {
			return info.Cove != nil && info.Cove.Owner == store.JobOwner(env.Job)
		},
		ours: func(info sprites.Info) bool {
			return info.Cove != nil && strings.HasPrefix(info.Cove.Owner, store.JobOwnerPrefix)
		},
		job: func(info sprites.Info) string { return strings.TrimPrefix(info.Cove.Owner, store.JobOwnerPrefix) },
		can: func(context.Context) (Capabilities, error) {
			return Capabilities{Suspend: true, Policy: true, Install: true, Include: true}, nil
		},
	}
}

// there is the executor of a backend, which knows the protocol only. Several servers may have
// sprites there: a name and a label have the server's installation. A call that fails in
// passing is tried again by retry.
func there(client *cove.Client, installation string, retry func(context.Context, func() error) error) *place {
	marks := "cove-" + installation + "-"
	mark := func(env cove.Environment) string { return marks + env.ID }
	return &place{
		client: client,
		prefix: spriteName(installation + "-"),
		retry:  retry,
		request: func(env cove.Environment, plan Plan) sprites.CreateRequest {
			return sprites.CreateRequest{Name: env.Name, Labels: []string{store.JobLabel, mark(env)}, Config: plan.Config}
		},
		owns: func(env cove.Environment, info sprites.Info) bool {
			if env.SpriteID != "" {
				return info.ID == env.SpriteID
			}
			return slices.Contains(info.Labels, mark(env)) // a server may have died before it noted the id
		},
		ours: func(info sprites.Info) bool {
			return slices.ContainsFunc(info.Labels, func(l string) bool { return strings.HasPrefix(l, marks) })
		},
		job: func(info sprites.Info) string { return strings.TrimPrefix(info.Name, spriteName(installation+"-")) },
		can: func(ctx context.Context) (Capabilities, error) {
			_, err := client.Version(ctx)
			if errors.Is(err, sprites.ErrNotFound) || errors.Is(err, errors.ErrUnsupported) {
				return Capabilities{}, nil // no cove
			}
			return Capabilities{Suspend: err == nil}, err
		},
	}
}

// Provision looks, before each try, whether an earlier one has made the sprite.
func (p *place) Provision(ctx context.Context, env cove.Environment, plan Plan) (status Status, err error) {
	open := 0 // calls that may have made it, or may still do so, and did not say
	if plan.Asked {
		open++
	}
	found := func(s Status) { // one of the open calls has made it
		open = max(0, open-1)
		status = s
	}
	err = p.retry(ctx, func() error {
		there, err := p.Status(ctx, env)
		if err == nil {
			found(there)
			return nil
		}
		if errors.Is(err, ErrForeign) {
			return fmt.Errorf("sprite %s: %w", env.Name, sprites.ErrNameTaken)
		}
		if !errors.Is(err, ErrGone) {
			return err
		}
		info, err := p.client.Create(ctx, p.request(env, plan))
		if errors.Is(err, sprites.ErrNameTaken) { // by an earlier call that took its time, perhaps
			if there, lookErr := p.Status(ctx, env); lookErr == nil {
				found(there)
				return nil
			}
		}
		if err == nil {
			status = statusOf(info)
		}
		if err != nil && !refused(err) {
			open++
		}
		return err
	})
	if err != nil && open > 0 && !errors.Is(err, sprites.ErrNameTaken) {
		err = fmt.Errorf("%w: %w", ErrUnclear, err)
	}
	status.Late = open > 0
	return status, err
}

// refused reports whether a place has said that it does not make a sprite. Any other error
// leaves open whether it has.
func refused(err error) bool {
	_, said := errors.AsType[*sprites.Error](err)
	return errors.Is(err, sprites.ErrLimited) || said && !Passing(err)
}

// statusOf is the Status in a place's answer about a sprite.
func statusOf(info sprites.Info) Status {
	s := Status{Name: info.Name, SpriteID: info.ID, State: cove.EnvironmentAsleep, Said: info.Status, CreatedAt: info.CreatedAt}
	if info.Status == sprites.StatusRunning {
		s.State = cove.EnvironmentReady
	}
	return s
}

func (p *place) Status(ctx context.Context, env cove.Environment) (Status, error) {
	info, err := p.client.Get(ctx, env.Name)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return Status{}, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return Status{}, err
	case !p.owns(env, info):
		return Status{}, fmt.Errorf("sprite %s: %w", env.Name, ErrForeign)
	}
	return statusOf(info), nil
}

func (p *place) Attach(ctx context.Context, env cove.Environment) (*sprites.Sprite, error) {
	if _, err := p.Status(ctx, env); err != nil {
		return nil, err
	}
	return p.client.Sprite(env.Name), nil
}

func (p *place) Suspend(ctx context.Context, env cove.Environment) error {
	can, err := p.Capabilities(ctx)
	if err != nil {
		return err
	}
	if !can.Suspend {
		return fmt.Errorf("suspend environment %s: %w", env.ID, errors.ErrUnsupported)
	}
	sprite, err := p.Attach(ctx, env)
	if err != nil {
		return err
	}
	_, err = sprite.Suspend(ctx)
	return err
}

func (p *place) Destroy(ctx context.Context, env cove.Environment, reason cove.DestroyReason) error {
	if !reason.Valid() {
		return fmt.Errorf("destroy environment %s for %q: %w", env.ID, reason, ErrReason)
	}
	if _, err := p.Status(ctx, env); errors.Is(err, ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	err := p.client.Delete(ctx, env.Name, sprites.DeleteOptions{Force: true})
	if errors.Is(err, sprites.ErrNotFound) {
		return nil
	}
	return err
}

func (p *place) List(ctx context.Context) ([]Status, error) {
	var all []Status
	for info, err := range p.client.All(ctx, p.prefix) {
		if err != nil {
			return nil, err
		}
		if p.made(info) { // a server may ignore the prefix
			s := statusOf(info)
			s.Job = p.job(info)
			all = append(all, s)
		}
	}
	return all, nil
}

// made reports whether this server has made a sprite, by its name and its mark.
func (p *place) made(info sprites.Info) bool {
	return strings.HasPrefix(info.Name, p.prefix) && p.ours(info)
}

func (p *place) Remove(ctx context.Context, sprite Status) error {
	info, err := p.client.Get(ctx, sprite.Name)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return nil
	case err != nil:
		return err
	case info.ID != sprite.SpriteID || !p.made(info) || p.job(info) != sprite.Job:
		return fmt.Errorf("sprite %s: %w", sprite.Name, ErrForeign)
	}
	err = p.client.Delete(ctx, sprite.Name, sprites.DeleteOptions{Force: true})
	if errors.Is(err, sprites.ErrNotFound) {
		return nil
	}
	return err
}

func (p *place) Capabilities(ctx context.Context) (Capabilities, error) { return p.can(ctx) }
