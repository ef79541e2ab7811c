package cove

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/cove-dev/cove/sprites"
)

// OpenAPI asks a server for the OpenAPI document that describes its API.
func OpenAPI(ctx context.Context, c *Client) (json.RawMessage, error) {
	var text json.RawMessage
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "openapi.json"), Retry: true}, &text); err != nil {
		return nil, fmt.Errorf("get the API's description: %w", err)
	}
	return text, nil
}
