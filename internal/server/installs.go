package server

import (
	"net/http"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// listInstalls lists the installations of agents that sprites share.
func listInstalls(host *sprite.Host) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		list, err := host.Installs(r.Context())
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, sprites.AgentInstallList{Installs: list})
		return nil
	}
}
