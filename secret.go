package cove

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Secret describes a secret of a cove server: a value that the server keeps encrypted. The
// server adds it to requests through a connector, or to a variable of a job. No call
// returns the value.
type Secret struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`

	// Ends are the last four characters of the value, so that a person can tell one key
	// from another. It is "" if the value has fewer than 24 characters, has others than
	// printable ASCII, or can't be decrypted.
	Ends string `json:"ends,omitempty"`

	Login *SecretLogin `json:"login,omitempty"` // nil: the value is none of a login's
}

// SecretLogin describes the login that a secret's value is the token of. A person has
// signed in to a model's provider with a program. The program renews its login itself; the
// server has the token alone, until it expires.
type SecretLogin struct {
	Client    string     `json:"client"`               // the program, such as codex
	Account   string     `json:"account,omitempty"`    // the provider's name for the account
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // of the token; nil: unknown
}

// Expired reports whether the token has expired at a time.
func (l *SecretLogin) Expired(at time.Time) bool {
	return l != nil && l.ExpiresAt != nil && !at.Before(*l.ExpiresAt)
}

// SecretList answers GET /v1/secrets.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
}

// SecretRequest sets a secret (PUT /v1/secrets/NAME).
type SecretRequest struct {
	Value string       `json:"value"`
	Login *SecretLogin `json:"login,omitempty"` // nil: the value is none of a login's
}

// SetSecret stores a secret, in place of one of the same name.
func (c *Client) SetSecret(ctx context.Context, name, value string) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "secrets", name), JSON: SecretRequest{Value: value}}, nil); err != nil {
		return fmt.Errorf("set secret %s: %w", name, err)
	}
	return nil
}

// SetLogin stores the token of a login as a secret, in place of one of the same name.
func SetLogin(ctx context.Context, c *Client, name, token string, login SecretLogin) error {
	req := SecretRequest{Value: token, Login: &login}
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "secrets", name), JSON: req}, nil); err != nil {
		return fmt.Errorf("set secret %s: %w", name, err)
	}
	return nil
}

// Secrets describes all secrets, by name.
func (c *Client) Secrets(ctx context.Context) ([]Secret, error) {
	var list SecretList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "secrets"), Retry: true}, &list); err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	return list.Secrets, nil
}

// DeleteSecret forgets a secret. If a connector names it, or a job that has not ended, the
// server forgets it only by force. The connector then serves nobody until the secret is set
// again, and the job can't begin.
func (c *Client) DeleteSecret(ctx context.Context, name string, opts sprites.DeleteOptions) error {
	query := url.Values{}
	if opts.Force {
		query.Set("force", "true")
	}
	if err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "secrets", name), Query: query}, nil); err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	return nil
}
