package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// grant lets the connectors that there are of an agent's serve its job's sprite, for
// the job's time.
func (m *Manager) grant(ctx context.Context, job cove.Job, connectors []string) error {
	if job.Backend != "" {
		return nil // it is not this server's network
	}
	for _, name := range connectors {
		if there, err := m.hasConnector(ctx, name); err != nil {
			return err
		} else if !there {
			continue
		}
		if err := m.Client.GrantConnector(ctx, name, cove.ConnectorGrant{Sprite: job.Sprite, Job: job.ID}); err != nil {
			return err
		}
	}
	return nil
}

// canHave says what to type before a connector can serve a job; empty: it is there with
// its secrets, or hasConnector would make it.
func (m *Manager) canHave(ctx context.Context, name string) (missing string, err error) {
	c, err := m.Store.Connectors.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		c, err = connect.Complete(cove.Connector{Name: name}), nil
	}
	if err != nil {
		return "", err
	}
	if c.Upstream == "" {
		return "cove connector put " + name + " --upstream URL", nil
	}
	set, err := m.Client.Secrets(ctx)
	for _, needed := range connect.SecretsOf(c) {
		if !slices.ContainsFunc(set, func(s cove.Secret) bool { return s.Name == needed }) {
			return "cove secret set " + needed, err
		}
	}
	return "", err
}

// checkKey refuses a request whose agent has nothing to ask its model with, or what else
// it was given: it would be installed first, and each fails in words of its own. What a folder, a sprite that is
// there already or a variable of the agent's may bring is not looked into.
func (m *Manager) checkKey(ctx context.Context, req cove.JobRequest, work agents.Work) error {
	own := envNames(work.Env, work.Keys) // which may say where the model is, or have its key
	if len(work.Keys) == 0 || req.Backend != "" || req.Sprite != "" || len(req.Include) > 0 ||
		slices.ContainsFunc(envNames(req.Env), func(name string) bool { return slices.Contains(own, name) }) {
		return nil
	}
	for _, name := range work.Connectors {
		if missing, err := m.canHave(ctx, name); err != nil {
			return err
		} else if missing != "" {
			return fail.Newf("no_key", missing, "the connector %s, which the agent %s needs, has no key", name, req.Agent)
		}
	}
	return nil
}

// hasConnector reports whether there is a connector. One of an agent's that is known
// by name is made where there is its secret: who has set that need do no more.
func (m *Manager) hasConnector(ctx context.Context, name string) (bool, error) {
	if _, err := m.Store.Connectors.Get(ctx, name); !errors.Is(err, store.ErrNotFound) {
		return err == nil, err
	}
	secrets, err := m.Client.Secrets(ctx)
	if err != nil || !slices.ContainsFunc(secrets, func(s cove.Secret) bool { return s.Name == name }) {
		return false, err
	}
	c := connect.Complete(cove.Connector{Name: name})
	if err := connect.Check(c); err != nil {
		return false, fmt.Errorf("make the connector %s: %w", name, err)
	}
	err = m.Store.Connectors.Add(ctx, c) // whoever defines it meanwhile knows better
	return err == nil, err
}

// finish is the store's Finish, for a job that has its connectors no more.
func (m *Manager) finish(ctx context.Context, id string, state cove.JobState, outcome cove.Outcome, edit func(*cove.Job)) (bool, error) {
	m.revoke(ctx, id)
	return m.Store.Jobs.Finish(ctx, id, state, outcome, func(j *cove.Job) {
		j.Question, j.Installing = nil, nil // nobody waits for the answer
		j.JobEnding = cove.JobEnding{RanSec: j.RanSec}
		if edit != nil {
			edit(j)
		}
	})
}

// revoke takes back what a job was granted. The end of a job does not wait for a
// sandbox that can't be told: with that, none of its grants holds.
func (m *Manager) revoke(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	all, err := m.Store.Connectors.List(ctx)
	if err != nil {
		m.Logger.Error("taking back the connectors of a job", "job", id, "err", err)
	}
	for _, c := range all {
		for _, g := range c.Grants {
			if g.Job != id {
				continue
			}
			if err := m.Client.RevokeConnector(ctx, c.Name, g); err != nil {
				m.Logger.Error("taking back a connector of a job", "job", id, "connector", c.Name, "err", err)
			}
		}
	}
}
