package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// WebLink logs a browser in to the server's web page (POST /v1/web/links), with the rights of the
// token that asked for it. It works once, until ExpiresAt.
type WebLink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// WebSession is a browser that is logged in to the server's web page.
type WebSession struct {
	ID          string    `json:"id"`
	Token       string    `json:"token,omitempty"` // that gives it its rights, by ID; empty: the server's owner
	Browser     string    `json:"browser"`         // as it calls itself
	Address     string    `json:"address"`         // from which it logged in
	CreatedAt   time.Time `json:"created_at"`
	ConfirmedAt time.Time `json:"confirmed_at"` // when it last came by a link
	LastUsed    time.Time `json:"last_used_at"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// WebSessionList answers GET /v1/web/sessions.
type WebSessionList struct {
	Sessions []WebSession `json:"sessions"`
}

// Web are the calls about a server's web page: Web{client}.Link makes a link.
type Web struct{ Client *Client }

// Link makes a link that logs a browser in once.
func (w Web) Link(ctx context.Context) (WebLink, error) {
	var link WebLink
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "web", "links")}, &link); err != nil {
		return WebLink{}, fmt.Errorf("make a link to the web page: %w", err)
	}
	return link, nil
}

// Sessions describes the browsers that are logged in by the client's token; with the verb
// admin, all.
func (w Web) Sessions(ctx context.Context) ([]WebSession, error) {
	var list WebSessionList
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "web", "sessions")}, &list); err != nil {
		return nil, fmt.Errorf("list the web page's sessions: %w", err)
	}
	return list.Sessions, nil
}

// End logs a browser out.
func (w Web) End(ctx context.Context, id string) error {
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "web", "sessions", id)}, nil); err != nil {
		return fmt.Errorf("end the web page's session %s: %w", id, err)
	}
	return nil
}

// EndAll logs out all browsers that are logged in by the client's token; with the verb admin, all: those that
// Sessions describes. Links that were not used yet are void.
func (w Web) EndAll(ctx context.Context) error {
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "web", "sessions")}, nil); err != nil {
		return fmt.Errorf("end the web page's sessions: %w", err)
	}
	return nil
}
