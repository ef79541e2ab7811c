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

func (s *Server) listConnectors(w http.ResponseWriter, r *http.Request) error {
	all, err := s.Store.Connectors.List(r.Context())
	if err != nil {
		return err
	}
	if all == nil {
		all = []cove.Connector{}
	}
	writeJSON(w, http.StatusOK, cove.ConnectorList{Connectors: all})
	return nil
}

func (s *Server) getConnector(w http.ResponseWriter, r *http.Request) error {
	c, err := s.Store.Connectors.Get(r.Context(), r.PathValue("connector"))
	if err != nil {
		return noConnector(r, err)
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

// noConnector says what is not found.
func noConnector(r *http.Request, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		name, hint := clean(r.PathValue("connector"), maxGuestText), "see which there are with: cove connector list"
		if slices.Contains(connect.Presets(), name) {
			hint = "it is known, and made by: cove connector put " + name
		}
		return fail.New(sprite.CodeNotFound, "there is no connector "+name, hint)
	}
	return err
}

// putConnector replaces a whole definition, or nothing.
func (s *Server) putConnector(w http.ResponseWriter, r *http.Request) error {
	var c cove.Connector
	if err := readStrict(w, r, &c, "the connector", `such as {"upstream":"https://api.example.org","headers":{"X-Api-Key":"{secret}"}}`); err != nil {
		return err
	}
	c.Name = r.PathValue("connector")
	c = connect.Complete(c)
	if err := connect.Check(c); err != nil {
		return fail.New(sprite.CodeBadRequest, err.Error(), "see how it is written with: cove help connector put")
	}
	if err := s.Store.Connectors.Put(r.Context(), c); err != nil {
		return err
	}
	if err := s.Host.SyncConnectors(r.Context()); err != nil {
		return err
	}
	return s.getConnector(w, r)
}

func (s *Server) deleteConnector(w http.ResponseWriter, r *http.Request) error {
	if err := s.Store.Connectors.Delete(r.Context(), r.PathValue("connector")); err != nil {
		return noConnector(r, err)
	}
	return s.synced(w, r)
}

func (s *Server) grantConnector(w http.ResponseWriter, r *http.Request) error {
	var g cove.ConnectorGrant
	if err := readJSON(w, r, maxBody, &g); err != nil {
		return err
	}
	if (g.Sprite == "") == (g.Label == "") || g.Job != "" && g.Sprite == "" {
		return fail.New(sprite.CodeBadRequest, "a connector is granted to a sprite or to a label, and for a job to its sprite", "")
	}
	if g.Label == "" && len(g.Reaches) > 0 {
		return fail.New(sprite.CodeBadRequest, "only a grant to a label says which sprites it reaches", "")
	}
	if _, err := s.Store.Connectors.Get(r.Context(), r.PathValue("connector")); err != nil {
		return noConnector(r, err)
	}
	if g.Sprite != "" {
		if _, err := s.Host.Get(r.Context(), g.Sprite); err != nil {
			return err
		}
	}
	if err := s.rights.labels.grant(g.Label, func() error { return s.Store.Connectors.Grant(r.Context(), r.PathValue("connector"), g) }); err != nil {
		return unnamed(r.PathValue("connector"), err)
	}
	return s.synced(w, r)
}

func (s *Server) revokeConnector(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	g := cove.ConnectorGrant{Sprite: q.Get("sprite"), Label: q.Get("label"), Job: q.Get("job")}
	if g.Sprite == "" && g.Label == "" && g.Job == "" || g.Sprite != "" && g.Label != "" {
		return fail.New(sprite.CodeBadRequest, "a connector is revoked from a sprite, a label or a job", "")
	}
	if err := s.Store.Connectors.Revoke(r.Context(), r.PathValue("connector"), g); err != nil {
		return err
	}
	return s.synced(w, r)
}

// connectorLog tells what a sprite asked of its connectors.
func (s *Server) connectorLog(w http.ResponseWriter, r *http.Request) error {
	paths, err := s.Host.RequestLogs(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return tellEvents(s, w, r, [][]string{paths}, func(e cove.ConnectorEvent) time.Time { return e.Time })
}
