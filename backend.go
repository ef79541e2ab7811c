package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Backend is another server of the protocol, for which a cove server has a token. Jobs may
// work in its sprites.
type Backend struct {
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// BackendList answers GET /v1/backends.
type BackendList struct {
	Backends []Backend `json:"backends"`
}

// BackendRequest names a backend (PUT /v1/backends/NAME). No call returns the token.
type BackendRequest struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// At returns a client of a backend of the server that c calls, through that server
// and with its token. The empty name is the server itself.
func (c *Client) At(backend string) *Client {
	if backend == "" {
		return c
	}
	far := *c.Client
	far.URL += sprites.Path("v1", "backends", backend)
	return &Client{&far}
}

// PutBackend names a backend, or changes one.
func (c *Client) PutBackend(ctx context.Context, name string, req BackendRequest) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "backends", name), JSON: req}, nil); err != nil {
		return fmt.Errorf("name the backend %s: %w", name, err)
	}
	return nil
}

// Backends describes all backends, by name.
func (c *Client) Backends(ctx context.Context) ([]Backend, error) {
	var list BackendList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "backends")}, &list); err != nil {
		return nil, fmt.Errorf("list backends: %w", err)
	}
	return list.Backends, nil
}

// DeleteBackend forgets a backend and its token. The server refuses it while jobs
// there have not ended, or have work that nobody has pulled.
func (c *Client) DeleteBackend(ctx context.Context, name string) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "backends", name)}, nil); err != nil {
		return fmt.Errorf("forget the backend %s: %w", name, err)
	}
	return nil
}
