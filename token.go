package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// The verbs of a token. They do not include each other.
const (
	VerbRead  = "read"  // look at sprites, files, jobs
	VerbWrite = "write" // create, change and delete sprites, files, jobs
	VerbExec  = "exec"  // run commands and open connections in sprites
	VerbAdmin = "admin" // tokens and the server itself
)

// TokenScope says which sprites a token reaches. They are all, those whose names begin with
// Prefix, one, or those made for the token's own jobs. Exactly one of the fields is set.
// With Profile, the token begins jobs by that profile alone.
type TokenScope struct {
	All     bool   `json:"all,omitempty"`
	Prefix  string `json:"prefix,omitempty"`
	Sprite  string `json:"sprite,omitempty"`
	Profile string `json:"profile,omitempty"`
}

// TokenRequest asks a cove server for a new token (POST /v1/tokens).
type TokenRequest struct {
	Name       string     `json:"name"`
	Scope      TokenScope `json:"scope"`
	Verbs      []string   `json:"verbs"`
	TTLSeconds int64      `json:"ttl_seconds,omitempty"` // 0: does not expire
}

// Token describes a token. Secret is in the answer to the request that made it,
// and never again: the server keeps a hash.
type Token struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Scope     TokenScope `json:"scope"`
	Verbs     []string   `json:"verbs"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	LastUsed  *time.Time `json:"last_used_at,omitempty"`
	Secret    string     `json:"token,omitempty"`
}

// TokenList answers GET /v1/tokens.
type TokenList struct {
	Tokens []Token `json:"tokens"`
}

// CreateToken makes a token. Its Secret is in the answer only.
func (c *Client) CreateToken(ctx context.Context, req TokenRequest) (Token, error) {
	var t Token
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "tokens"), JSON: req}, &t); err != nil {
		return Token{}, fmt.Errorf("create token %s: %w", req.Name, err)
	}
	return t, nil
}

// ListTokens describes all tokens.
func (c *Client) ListTokens(ctx context.Context) ([]Token, error) {
	var list TokenList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "tokens")}, &list); err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	return list.Tokens, nil
}

// DeleteToken makes a token useless.
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "tokens", id)}, nil); err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}
