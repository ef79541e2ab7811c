package server

import (
	"net/http"
	"runtime"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// version tells what server this is, and how it is. info has what stays the same.
func version(info sprites.ServerInfo, host *sprite.Host) handlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) error {
		now := info
		now.Goroutines, now.Pool = runtime.NumGoroutine(), host.PoolState()
		now.DiskFree, now.DiskReserve = host.DiskFree(), host.DiskReserve
		writeJSON(w, http.StatusOK, now)
		return nil
	}
}
