package cove

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Connector is a named upstream of a cove server. If a sprite that it is granted to sends
// a request to http://NAME.connect.internal/, it goes there, with the headers added
// outside of the sprite. It serves nobody until it is granted.
type Connector struct {
	Name     string `json:"name"`
	Upstream string `json:"upstream"` // an http or https URL

	// Headers are set on every request. In a value, {secret} stands for the connector's
	// secret, and {secret:NAME} for another. A {basic:USER} stands for USER and the
	// connector's secret as the Authorization header of the scheme Basic has them.
	Headers map[string]string `json:"headers,omitempty"`
	Secret  string            `json:"secret,omitempty"` // the name of its secret; empty: its own name

	Methods   []string        `json:"methods,omitempty"`    // that are let through; none: all
	Paths     []string        `json:"paths,omitempty"`      // that are let through, * for anything in between; none: all
	DenyPaths []string        `json:"deny_paths,omitempty"` // that are not, even so
	Limits    ConnectorLimits `json:"limits,omitzero"`

	Prices []ConnectorPrice `json:"prices,omitempty"` // of models, for limits and for the log

	// Git has git inside go through the connector to its upstream, by whichever of
	// the upstream's usual URLs a repository is named.
	Git bool `json:"git,omitempty"`

	// Forge is the API of the server that Git leads to. The cove server opens pull requests
	// with it. Zero: it opens none.
	Forge ConnectorForge `json:"forge,omitzero"`

	// These fields are not of the definition, and ignored in one.
	Grants    []ConnectorGrant `json:"grants,omitempty"`
	CreatedAt time.Time        `json:"created_at,omitzero"`
	UpdatedAt time.Time        `json:"updated_at,omitzero"`
}

// ConnectorForge says how a server of repositories is asked for more than git's own requests.
type ConnectorForge struct {
	Kind string `json:"kind"` // github, gitlab or gitea
	API  string `json:"api"`  // the connector whose upstream is the API's root, such as https://git.example.org/api/v4
}

// ConnectorLimits bound what one sprite may do through a connector; 0 is no limit.
type ConnectorLimits struct {
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	Requests          int64 `json:"requests,omitempty"`      // ever
	BytesPerDay       int64 `json:"bytes_per_day,omitempty"` // of bodies, both ways, from midnight UTC on

	// Limits on the use of models, as their answers tell it. If an answer is cut short, or
	// tells nothing, every four bytes of it and of its request count as a token. When a
	// limit is reached, requests under way (8 at most) may end.
	TokensPerDay int64   `json:"tokens_per_day,omitempty"` // of input and output
	USDPerDay    float64 `json:"usd_per_day,omitempty"`    // by the connector's prices
}

// ConnectorPrice is the price of a million tokens of a model, in dollars. The connector's
// first price whose pattern matches the model holds; if none matches, the highest.
type ConnectorPrice struct {
	Model  string  `json:"model"` // * stands for anything
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}

// ConnectorGrant says whom a connector serves: a sprite, or all sprites with a label. With
// a job, it lasts as long as the job, and is for the job's sprite.
type ConnectorGrant struct {
	Sprite string `json:"sprite,omitempty"`
	Label  string `json:"label,omitempty"`
	Job    string `json:"job,omitempty"`

	// Reaches names the sprites that have the label now. A new grant to a label must name
	// all of them, because anybody who may change a sprite may have given it the label. It
	// is not stored.
	Reaches []string `json:"reaches,omitempty"`

	// Git limits the grant to git's requests about one repository; zero: it is for all that
	// the connector lets through. Another grant to the same sprite may let it do more.
	Git GitGrant `json:"git,omitzero"`
}

// GitGrant is one repository behind a connector.
type GitGrant struct {
	Repository string `json:"repository"`     // its path below the upstream, such as /team/project.git
	Push       bool   `json:"push,omitempty"` // also to write to it; otherwise only to read it
}

// ConnectorList answers GET /v1/connectors.
type ConnectorList struct {
	Connectors []Connector `json:"connectors"`
}

// ConnectorEvent is a request that a sprite made through a connector.
type ConnectorEvent struct {
	Time         time.Time `json:"time"` // when it began
	Connector    string    `json:"connector"`
	Method       string    `json:"method"`
	Path         string    `json:"path"` // without the query
	Status       int       `json:"status"`
	Sent         int64     `json:"sent"`     // bytes of the request's body
	Received     int64     `json:"received"` // bytes of the answer's
	Milliseconds int64     `json:"milliseconds"`
	Refused      string    `json:"refused,omitempty"` // why it did not reach the upstream, or was cut

	// Of a connector with prices, or limits of tokens or dollars.
	Model        string  `json:"model,omitempty"`
	InputTokens  int64   `json:"input_tokens,omitempty"`
	OutputTokens int64   `json:"output_tokens,omitempty"`
	CostUSD      float64 `json:"cost_usd,omitempty"`
}

// PutConnector defines a connector. It replaces one of the same name, whose grants stay. If
// the server knows the name, it fills in the fields that are left out.
func (c *Client) PutConnector(ctx context.Context, def Connector) (Connector, error) {
	var out Connector
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "connectors", def.Name), JSON: def}, &out); err != nil {
		return out, fmt.Errorf("put connector %s: %w", def.Name, err)
	}
	return out, nil
}

// Connectors describes all connectors, by name.
func (c *Client) Connectors(ctx context.Context) ([]Connector, error) {
	var list ConnectorList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "connectors"), Retry: true}, &list); err != nil {
		return nil, fmt.Errorf("list connectors: %w", err)
	}
	return list.Connectors, nil
}

// Connector describes one connector.
func (c *Client) Connector(ctx context.Context, name string) (Connector, error) {
	var out Connector
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "connectors", name), Retry: true}, &out); err != nil {
		return out, fmt.Errorf("connector %s: %w", name, err)
	}
	return out, nil
}

// DeleteConnector forgets a connector and its grants. Requests under way end.
func (c *Client) DeleteConnector(ctx context.Context, name string) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "connectors", name)}, nil); err != nil {
		return fmt.Errorf("delete connector %s: %w", name, err)
	}
	return nil
}

// GrantConnector lets a connector serve whom the grant names, at once.
func (c *Client) GrantConnector(ctx context.Context, name string, g ConnectorGrant) error {
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "connectors", name, "grants"), JSON: g}, nil); err != nil {
		return fmt.Errorf("grant connector %s: %w", name, err)
	}
	return nil
}

// RevokeConnector takes a grant back, at once. It is no error if the grant is not there.
// Requests under way end.
func (c *Client) RevokeConnector(ctx context.Context, name string, g ConnectorGrant) error {
	query := url.Values{}
	for key, value := range map[string]string{"sprite": g.Sprite, "label": g.Label, "job": g.Job} {
		if value != "" {
			query.Set(key, value)
		}
	}
	if err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "connectors", name, "grants"), Query: query}, nil); err != nil {
		return fmt.Errorf("revoke connector %s: %w", name, err)
	}
	return nil
}

// ConnectorLogOptions select events. The zero value is all so far.
type ConnectorLogOptions struct {
	Since  time.Time // zero: from the beginning
	Follow bool      // go on with what comes, until the context ends
}

// ConnectorLog calls each with the requests that a sprite made through
// connectors, oldest first, until it returns an error.
func (c *Client) ConnectorLog(ctx context.Context, sprite string, opts ConnectorLogOptions, each func(ConnectorEvent) error) error {
	query := url.Values{}
	if opts.Follow {
		query.Set("follow", "true")
	}
	if !opts.Since.IsZero() {
		query.Set("since", strconv.FormatInt(opts.Since.UnixMilli(), 10))
	}
	for line, err := range c.Lines(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "sprites", sprite, "connectors", "log"), Query: query, Retry: true}) {
		var event ConnectorEvent
		if err == nil {
			err = json.Unmarshal(line, &event)
		}
		if err == nil {
			err = each(event)
		}
		if err != nil {
			return fmt.Errorf("connector log of sprite %s: %w", sprite, err)
		}
	}
	return nil
}
