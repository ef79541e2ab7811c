package job

import (
	"context"
	"errors"
	"slices"

	"github.com/cove-dev/cove/internal/store"
	"github.com/cove-dev/cove/sprites"
)

// grant lets the connectors that there are of an agent's serve its job's sprite, for
// the job's time.
func (m *Manager) grant(ctx context.Context, job sprites.Job, connectors []string) error {
	if job.Backend != "" {
		return nil // it is not this server's network
	}
	for _, name := range connectors {
		if there, err := m.hasConnector(ctx, name); err != nil {
			return err
		} else if !there {
			continue
		}
		if err := m.Client.GrantConnector(ctx, name, sprites.ConnectorGrant{Sprite: job.Sprite, Job: job.ID}); err != nil {
			return err
		}
	}
	return nil
}

// canHave reports whether hasConnector would find a connector, or make it.
func (m *Manager) canHave(ctx context.Context, name string) (bool, error) {
	_, err := m.Store.Connectors.Get(ctx, name)
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return err == nil, err
	}
	secrets, err := m.Client.Secrets(ctx)
	return slices.ContainsFunc(secrets, func(s sprites.Secret) bool { return s.Name == name }), err
}

// hasConnector reports whether there is a connector. One of an agent's that is known
// by name is made where there is its secret: who has set that need do no more.
func (m *Manager) hasConnector(ctx context.Context, name string) (bool, error) {
	can, err := m.canHave(ctx, name)
	if err != nil || !can {
		return false, err
	}
	if _, err := m.Store.Connectors.Get(ctx, name); !errors.Is(err, store.ErrNotFound) {
		return err == nil, err
	}
	_, err = m.Client.PutConnector(ctx, sprites.Connector{Name: name})
	return err == nil, err
}

// finish is the store's Finish, for a job that has its connectors no more.
func (m *Manager) finish(ctx context.Context, id string, state sprites.JobState, outcome sprites.Outcome, edit func(*sprites.Job)) (bool, error) {
	m.revoke(ctx, id)
	return m.Store.Jobs.Finish(ctx, id, state, outcome, func(j *sprites.Job) {
		j.Question = nil // nobody waits for the answer
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
