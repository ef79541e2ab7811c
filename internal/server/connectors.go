package server

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// connectorRoutes defines connectors, and grants them to sprites, labels and jobs.
type connectorRoutes struct {
	connectors *store.Connectors
	host       *sprite.Host // its running sandboxes get the changes
	labels     *labelRights
}

func (g *connectorRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.connectors.List(r.Context())
	if err != nil {
		return err
	}
	if all == nil {
		all = []cove.Connector{}
	}
	writeJSON(w, http.StatusOK, cove.ConnectorList{Connectors: all})
	return nil
}

func (g *connectorRoutes) get(w http.ResponseWriter, r *http.Request) error {
	c, err := g.connectors.Get(r.Context(), r.PathValue("connector"))
	if err != nil {
		return noConnector(r, err)
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

// noConnector turns store.ErrNotFound into an error about the path's connector.
func noConnector(r *http.Request, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		name, hint := clean(r.PathValue("connector"), maxGuestText), "see which there are with: cove connector list"
		if slices.Contains(connect.Presets(), name) {
			hint = "it is a known connector; make it: cove connector put " + name
		}
		return fail.New(sprite.CodeNotFound, "there is no connector "+name, hint)
	}
	return err
}

// put replaces a whole definition, or nothing.
func (g *connectorRoutes) put(w http.ResponseWriter, r *http.Request) error {
	var c cove.Connector
	if err := readObject(w, r, maxBody, &c, "the connector", `such as {"upstream":"https://api.example.org","headers":{"X-Api-Key":"{secret}"}}`); err != nil {
		return err
	}
	c.Name = r.PathValue("connector")
	c = connect.Complete(c)
	if err := connect.Check(c); err != nil {
		return fail.New(sprite.CodeBadRequest, err.Error(), "see how it is written with: cove help connector put")
	}
	if err := g.connectors.Put(r.Context(), c); err != nil {
		return err
	}
	if err := g.host.SyncConnectors(r.Context()); err != nil {
		return err
	}
	return g.get(w, r)
}

func (g *connectorRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	if err := g.connectors.Delete(r.Context(), r.PathValue("connector")); err != nil {
		return noConnector(r, err)
	}
	return synced(w, r, g.host)
}

func (g *connectorRoutes) grant(w http.ResponseWriter, r *http.Request) error {
	var grant cove.ConnectorGrant
	if err := readJSON(w, r, maxBody, &grant); err != nil {
		return err
	}
	if (grant.Sprite == "") == (grant.Label == "") || grant.Job != "" && grant.Sprite == "" {
		return fail.New(sprite.CodeBadRequest, "a grant needs either a sprite or a label; a grant for a job needs its sprite", "")
	}
	if grant.Label == "" && len(grant.Reaches) > 0 {
		return fail.New(sprite.CodeBadRequest, "only a grant to a label can say which sprites it reaches", "")
	}
	if grant.Git != (cove.GitGrant{}) {
		if err := connect.CheckGit(grant.Git); err != nil {
			return fail.New(sprite.CodeBadRequest, err.Error(), "")
		}
	}
	if _, err := g.connectors.Get(r.Context(), r.PathValue("connector")); err != nil {
		return noConnector(r, err)
	}
	if grant.Sprite != "" {
		if _, err := g.host.Get(r.Context(), grant.Sprite); err != nil {
			return err
		}
	}
	if err := g.labels.grant(grant.Label, func() error { return g.connectors.Grant(r.Context(), r.PathValue("connector"), grant) }); err != nil {
		return unnamed(r.PathValue("connector"), err)
	}
	return synced(w, r, g.host)
}

func (g *connectorRoutes) revoke(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	grant := cove.ConnectorGrant{Sprite: q.Get("sprite"), Label: q.Get("label"), Job: q.Get("job")}
	if grant.Sprite == "" && grant.Label == "" && grant.Job == "" || grant.Sprite != "" && grant.Label != "" {
		return fail.New(sprite.CodeBadRequest, "a connector can be revoked from a sprite, a label or a job; the request must name one", "")
	}
	if err := g.connectors.Revoke(r.Context(), r.PathValue("connector"), grant); err != nil {
		return err
	}
	return synced(w, r, g.host)
}

// log tells what a sprite asked of its connectors.
func (g *connectorRoutes) log(w http.ResponseWriter, r *http.Request) error {
	paths, err := g.host.Logs(r.Context(), r.PathValue("name"), sprite.LogRequests)
	if err != nil {
		return err
	}
	return tellEvents(w, r, [][]string{paths}, func(e cove.ConnectorEvent) time.Time { return e.Time })
}

// synced answers once the running sandboxes have the connectors that the store says.
func synced(w http.ResponseWriter, r *http.Request, host *sprite.Host) error {
	if err := host.SyncConnectors(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
