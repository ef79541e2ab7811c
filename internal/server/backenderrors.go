package server

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// ofBackend gives a code and a hint to an error of a call about a job at a backend. They hold
// for each service, whatever it answers. A failure there is not this server's fault: no status
// is 500. The empty backend leaves err as it is.
func ofBackend(backend string, err error) error {
	e, ok := errors.AsType[*sprites.Error](err)
	if _, own := errors.AsType[*fail.Error](err); backend == "" || !ok || own {
		return err
	}
	if e.Code == "backend_refused" || e.Code == "backend_unreachable" {
		return err // this server's own words
	}
	out := *e
	switch e.StatusCode {
	case http.StatusPaymentRequired:
		out.Code, out.Hint = cmp.Or(e.Code, "payment_required"), cmp.Or(e.Hint, "see what the account at the service pays for")
	case http.StatusForbidden:
		out.Hint = cmp.Or(e.Hint, "the backend's token lacks that right; give this server another one: cove backend put "+backend)
	case http.StatusNotFound:
		out.Hint = cmp.Or(e.Hint, "see what is there: cove list --backend "+backend)
	case http.StatusConflict:
		out.Hint = cmp.Or(e.Hint, "see how things are there: cove list --backend "+backend)
	case http.StatusTooManyRequests:
		out.Hint = cmp.Or(e.Hint, "delete a sprite there, or try again later: cove list --backend "+backend)
	case http.StatusGatewayTimeout:
		out.Code, out.Hint = "timeout", "check the connection: cove ping --backend "+backend
	default:
		if e.StatusCode >= http.StatusInternalServerError {
			out.StatusCode, out.Code, out.Hint = http.StatusBadGateway, "backend_failed", "check the connection: cove ping --backend "+backend
		} else {
			out.Hint = cmp.Or(e.Hint, "see what the service can do: cove ping --backend "+backend)
		}
	}
	out.Message = "the backend " + backend + ": " + cmp.Or(e.Message, e.Error())
	return &out
}
