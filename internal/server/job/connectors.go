package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// connectors looks after the connectors of the server for jobs. It knows which ones there
// are, and what their models cost. It grants them to a job, and takes them back.
type connectors struct {
	store  *store.Connectors
	client *cove.Client
	logger *slog.Logger
}

// grant lets those of an agent's connectors that exist serve its job's sprite, for the job's
// time.
func (cs *connectors) grant(ctx context.Context, job cove.Job, names []string) error {
	if job.Backend != "" {
		return nil // it is not this server's network
	}
	for _, name := range names {
		if there, err := cs.has(ctx, name); err != nil {
			return err
		} else if !there {
			continue
		}
		if err := cs.client.GrantConnector(ctx, name, cove.ConnectorGrant{Sprite: job.Sprite, Job: job.ID}); err != nil {
			return err
		}
	}
	return nil
}

// missing says what to type before a connector can serve a job; empty: nothing. Then it exists
// with its secrets, or the method has would make it.
func (cs *connectors) missing(ctx context.Context, name string) (missing string, err error) {
	c, err := cs.store.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		c, err = connect.Complete(cove.Connector{Name: name}), nil
	}
	if err != nil {
		return "", err
	}
	if c.Upstream == "" {
		return "cove connector put " + name + " --upstream URL", nil
	}
	set, err := cs.client.Secrets(ctx)
	for _, needed := range connect.SecretsOf(c) {
		if !slices.ContainsFunc(set, func(s cove.Secret) bool { return s.Name == needed }) {
			return "cove secret set " + needed, err
		}
	}
	return "", err
}

// has reports whether there is a connector. If it is an agent's, known by name, and its secret
// is set, has makes it, so that a person need only set the secret.
func (cs *connectors) has(ctx context.Context, name string) (bool, error) {
	if _, err := cs.store.Get(ctx, name); !errors.Is(err, store.ErrNotFound) {
		return err == nil, err
	}
	secrets, err := cs.client.Secrets(ctx)
	if err != nil || !slices.ContainsFunc(secrets, func(s cove.Secret) bool { return s.Name == name }) {
		return false, err
	}
	c := connect.Complete(cove.Connector{Name: name})
	if err := connect.Check(c); err != nil {
		return false, fmt.Errorf("make the connector %s: %w", name, err)
	}
	err = cs.store.Add(ctx, c) // whoever defines it meanwhile knows better
	return err == nil, err
}

// revoke takes back the connectors granted to a job. The end of a job does not wait for a
// sandbox that can't be told: when the sandbox ends, so do its grants.
func (cs *connectors) revoke(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	all, err := cs.store.List(ctx)
	if err != nil {
		cs.logger.Error("taking back the connectors of a job", "job", id, "err", err)
	}
	for _, c := range all {
		for _, g := range c.Grants {
			if g.Job != id {
				continue
			}
			if err := cs.client.RevokeConnector(ctx, c.Name, g); err != nil {
				cs.logger.Error("taking back a connector of a job", "job", id, "connector", c.Name, "err", err)
			}
		}
	}
}

// price is the price of a request's model, from the connector of its provider; nil: the
// connector has none.
func (cs *connectors) price(ctx context.Context, req cove.JobRequest) (*cove.ConnectorPrice, error) {
	provider, model, _ := strings.Cut(req.Model, "/")
	if req.Model == "" || req.Backend != "" {
		return nil, nil
	}
	c, err := cs.store.Get(ctx, provider)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	for _, p := range c.Prices {
		if connect.Match(p.Model, model) {
			return &p, err
		}
	}
	return nil, err
}
