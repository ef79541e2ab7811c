package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Check is a sprite's sign of life (protocol section 17.3).
type Check struct {
	Name      string    `json:"sprite_name"`
	ID        string    `json:"sprite_id"`
	Status    string    `json:"status"` // healthy, hibernated, unhealthy
	Reason    string    `json:"reason,omitempty"`
	CheckedAt time.Time `json:"checked_at"`
	Elapsed   int64     `json:"elapsed"` // milliseconds

	Cove *CheckTimes `json:"cove,omitempty"` // of one that was asked; nil from other servers
}

// CheckTimes are the server's own part of the way, in milliseconds.
type CheckTimes struct {
	Shim  float64 `json:"shim_ms"`  // until the guest's port was reached, through the shim and its gateway
	Guest float64 `json:"guest_ms"` // from there to the guest's answer
}

// Check asks a sprite for a sign of life, and does not wake it.
func (c *Client) Check(ctx context.Context, name string) (Check, error) {
	var check Check
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "sprites", name, "check")}, &check); err != nil {
		return Check{}, fmt.Errorf("check sprite %s: %w", name, err)
	}
	return check, nil
}
