package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/sprites"
)

// A job's sprite may be at a backend: a server that is reached by the protocol
// alone, which knows nothing of jobs, connectors or cove-guest.

// sprite is a job's sprite, wherever it is.
func (m *Manager) sprite(job cove.Job) *sprites.Sprite {
	return m.Client.At(job.Backend).Sprite(job.Sprite)
}

// command is a command of the supervisor's, about a job. At a backend the supervisor
// is this server's own, which is brought there where it is missing.
func (m *Manager) command(ctx context.Context, job cove.Job, verb string, args ...string) (*sprites.Cmd, error) {
	guest := boot.BinDir + "/cove-guest"
	if job.Backend != "" {
		var err error
		if guest, err = guestbin.Bring(ctx, m.sprite(job)); err != nil {
			return nil, err
		}
	}
	return m.sprite(job).CommandContext(ctx, guest, slices.Concat([]string{"job", verb, dir(job.ID)}, args)...), nil
}

// elsewhere makes of a request one that can be fulfilled at its backend.
func (m *Manager) elsewhere(ctx context.Context, req cove.JobRequest, work agents.Work) (cove.JobRequest, error) {
	if len(req.Include) > 0 {
		return req, fail.Newf("bad_request", "leave out --include", "folders of this machine can't be in a sprite of the backend %s", req.Backend)
	}
	given := func(name string) bool {
		return slices.ContainsFunc(req.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if len(work.Keys) > 0 && !slices.ContainsFunc(work.Keys, given) {
		return req, fail.Newf("no_key", "give it one, which will be inside: --env "+work.Keys[0]+"=…, or a line in .cove/sandbox.env",
			"the agent %s needs a key: connectors, which keep it outside, are not at the backend %s", req.Agent, req.Backend)
	}
	if req.NetworkPolicy == nil {
		return req, nil
	}
	if m.NamesOnly == nil {
		return req, fail.Newf("bad_request", "", "this server has no policies for backends")
	}
	plain, err := m.NamesOnly(ctx, *req.NetworkPolicy)
	req.NetworkPolicy = &plain
	return req, err
}

// furnishAt makes the job's sprite at a backend, or finds the one that is there, and
// notes its id. It reports whether it has made one.
func (m *Manager) furnishAt(ctx context.Context, at *cove.Client, job cove.Job, req cove.JobRequest) (made bool, err error) {
	info, err := at.Get(ctx, job.Sprite)
	switch {
	case job.OwnsSprite && err == nil:
		return false, fmt.Errorf("sprite %s: %w", job.Sprite, sprites.ErrNameTaken)
	case job.OwnsSprite && errors.Is(err, sprites.ErrNotFound):
		info, err = at.Create(ctx, sprites.CreateRequest{Name: job.Sprite, Labels: []string{label}, Config: req.Config})
		made = err == nil
		if _, refused := errors.AsType[*sprites.Error](err); err != nil && !refused {
			err = fmt.Errorf("%w, if it was made: %w", errLeft, err)
		}
	}
	if err != nil {
		return made, err
	}
	return made, m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.SpriteID = info.ID; return nil })
}
