package server

import (
	"net/http"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
)

// listInstalls lists the installations of agents that sprites share.
func listInstalls(host *sprite.Host) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		list, err := host.Installs(r.Context())
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, cove.AgentInstallList{Installs: list})
		return nil
	}
}
