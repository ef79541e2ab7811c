package server

import (
	"net/http"

	"github.com/cove-dev/cove"
)

// listInstalls lists the installations of agents that sprites share.
func (s *Server) listInstalls(w http.ResponseWriter, r *http.Request) error {
	list, err := s.Host.Installs(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, cove.AgentInstallList{Installs: list})
	return nil
}
