package job

import (
	"context"
	"errors"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// settle refuses a request that could not become a job, and puts in what it leaves to
// the server. It makes nothing.
func (m *Manager) settle(ctx context.Context, req cove.JobRequest) (_ cove.JobRequest, _ agents.Agent, work agents.Work, _ error) {
	agent, err := check(req)
	if err != nil {
		return req, nil, work, err
	}
	if err := checkSettings(req.Settings); err != nil {
		return req, nil, work, err
	}
	if req.Skill, err = checkSkill(req.Skill); err != nil {
		return req, nil, work, err
	}
	if err := m.checkMCP(ctx, req, agent); err != nil {
		return req, nil, work, err
	}
	if req, err = m.choose(ctx, req, agent); err != nil {
		return req, nil, work, err
	}
	work, err = agent.Prepare(task(req, "000000"))
	if err != nil {
		return req, nil, work, fail.Newf("bad_plan", "", "%v", err)
	}
	if req.Backend != "" {
		if req, err = m.elsewhere(ctx, req, work); err != nil {
			return req, nil, work, err
		}
	}
	if err := m.checkKey(ctx, req, work); err != nil {
		return req, nil, work, err
	}
	if req.Guards.Turns > 0 && work.Turn == nil {
		return req, nil, work, fail.Newf("bad_request", "leave out --max-turns", "the agent %s does not tell of its turns", req.Agent)
	}
	return req, agent, work, nil
}

// Preview says what Create would make of a request, or refuses it as that would. It
// makes nothing. Whether a sprite of a backend is there is for who asks to see.
func (m *Manager) Preview(ctx context.Context, req cove.JobRequest) (cove.JobPreview, error) {
	req, agent, work, err := m.settle(ctx, req)
	if err != nil {
		return cove.JobPreview{}, err
	}
	if req.Sprite != "" && req.Backend == "" {
		if _, err := m.Client.Get(ctx, req.Sprite); err != nil {
			return cove.JobPreview{}, err
		}
	}
	p := cove.JobPreview{
		Agent: agent.Name(), AgentVersion: work.Version, Model: req.Model, Backend: req.Backend, Sprite: req.Sprite,
		EnvNames: envNames(work.Env, req.Env), Settings: settingsPaths(req.Settings), Guards: req.Guards, TimeoutSec: req.TimeoutSec, NetworkPolicy: req.NetworkPolicy,
	}
	if req.Backend != "" {
		return p, nil // it has no connectors
	}
	secrets, err := m.Client.Secrets(ctx)
	for _, name := range work.Connectors {
		c, getErr := m.Store.Connectors.Get(ctx, name)
		if errors.Is(getErr, store.ErrNotFound) {
			c, getErr = connect.Complete(cove.Connector{Name: name}), nil
		}
		err = errors.Join(err, getErr)
		missing := slices.ContainsFunc(connect.SecretsOf(c), func(needed string) bool {
			return !slices.ContainsFunc(secrets, func(s cove.Secret) bool { return s.Name == needed })
		})
		p.Connectors = append(p.Connectors, cove.JobConnector{Name: name, Upstream: c.Upstream, SecretSet: !missing})
	}
	return p, err
}
