package sprites

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DefaultUserAgent is sent by a Client whose UserAgent is empty.
const DefaultUserAgent = "cove-sprites/1"

// Bounds on what is read from a server.
const (
	maxErrorBody = 64 << 10 // of a failed request
	maxAnswer    = 64 << 20 // a JSON answer
	maxLine      = 4 << 20  // one line of an NDJSON stream
	maxMessage   = 1 << 20  // a text message on a WebSocket
)

// Client calls one server of the Sprites protocol. Only URL must be set. Its
// methods may be called from any goroutine; its fields may not change meanwhile.
//
// Redirects are not followed: the protocol has none, and the token must not
// travel. Nothing is retried, but a call that reaches a sprite and is answered
// by 503 (as just after its creation) is tried again for a few seconds, unless
// its body is a stream; and the waits for jobs and their events reconnect.
type Client struct {
	// URL is the server's address, such as http://127.0.0.1:7878. A path in it
	// is kept in front of the protocol's own.
	URL string

	// Token is sent as a bearer token. Empty: none is sent.
	Token string

	// HTTPClient makes all requests, WebSocket handshakes too. Nil: a shared
	// client with its own connection pool. A Timeout in it would cut streams.
	HTTPClient *http.Client

	// UserAgent is sent with every request. Empty: DefaultUserAgent.
	UserAgent string
}

var defaultHTTP = &http.Client{
	CheckRedirect: noRedirect,
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	},
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Sprite returns a handle on the named sprite. Nothing is sent.
func (c *Client) Sprite(name string) *Sprite {
	return &Sprite{client: c, name: name, base: joinPath("v1", "sprites", name)}
}

// Self returns a handle on the sprite that the server itself is, for calling a
// guest directly: its paths are /v1/exec and so on, without a name.
func (c *Client) Self() *Sprite {
	return &Sprite{client: c, base: joinPath("v1")}
}

// Version asks a cove server what it is. Other servers answer ErrNotFound.
func (c *Client) Version(ctx context.Context) (ServerInfo, error) {
	var info ServerInfo
	if err := c.json(ctx, call{method: http.MethodGet, path: joinPath("v1", "version")}, &info); err != nil {
		return info, fmt.Errorf("ask the server's version: %w", err)
	}
	return info, nil
}

// joinPath makes a path of segments, each percent-encoded as a whole, so that a
// slash in a name stays in its segment.
func joinPath(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// call is one request. in is sent as JSON unless body is set.
type call struct {
	method string
	path   string // escaped, see joinPath
	query  url.Values
	header http.Header
	seen   *http.Header // if not nil, gets the answer's
	in     any
	body   io.Reader
	size   int64 // of body; 0: unknown, unless the type of body tells
	retry  bool  // reaches into a sprite: 503 is tried again, without body only
}

// request builds the HTTP request of a call.
func (c *Client) request(ctx context.Context, r call) (*http.Request, error) {
	target, err := c.url(r.path, r.query)
	if err != nil {
		return nil, err
	}
	body := r.body
	if body == nil && r.in != nil {
		b, err := json.Marshal(r.in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	if r.size > 0 {
		req.ContentLength = r.size
	}
	req.Header = c.header(r.header)
	switch {
	case r.body != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
	case r.in != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// header returns what every request carries, over h.
func (c *Client) header(h http.Header) http.Header {
	h = h.Clone()
	if h == nil {
		h = http.Header{}
	}
	if c.Token != "" {
		h.Set("Authorization", "Bearer "+c.Token)
	}
	agent := c.UserAgent
	if agent == "" {
		agent = DefaultUserAgent
	}
	h.Set("User-Agent", agent)
	return h
}

// url checks path and puts it behind the server's address.
func (c *Client) url(path string, query url.Values) (string, error) {
	if c.URL == "" {
		return "", errors.New("no server: Client.URL is empty")
	}
	for seg := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if seg == "" || seg == "." || seg == ".." {
			return "", fmt.Errorf("%w: %q in %s", ErrBadName, seg, path)
		}
	}
	target := strings.TrimRight(c.URL, "/") + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return target, nil
}

func (c *Client) http() *http.Client {
	if c.HTTPClient == nil {
		return defaultHTTP
	}
	if c.HTTPClient.CheckRedirect != nil {
		return c.HTTPClient
	}
	h := *c.HTTPClient
	h.CheckRedirect = noRedirect
	return &h
}

// do sends a call and returns its answer if the status is 2xx; the caller closes
// the body. Any other status is an *Error.
func (c *Client) do(ctx context.Context, r call) (*http.Response, error) {
	var resp *http.Response
	err := retryUnavailable(ctx, r.retry && r.body == nil, func() error {
		req, err := c.request(ctx, r)
		if err != nil {
			return err
		}
		resp, err = c.http().Do(req)
		if err != nil {
			return withoutURL(err)
		}
		if resp.StatusCode/100 != 2 {
			return responseError(resp)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// json sends a call and decodes its answer into out, which may be nil.
func (c *Client) json(ctx context.Context, r call, out any) error {
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer closeBody(resp.Body)
	if r.seen != nil {
		*r.seen = resp.Header
	}
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("read the answer: longer than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// closeBody closes an answer's body, after reading what little may be left so
// that the connection can be used again.
func closeBody(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10)
	_ = body.Close()
}

// withoutURL takes the method and URL off an error of net/http: callers say
// what they were doing, and a URL may be long (a command line is in it).
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// How long a 503 is tried again.
const (
	retryBudget = 5 * time.Second
	retryFirst  = 100 * time.Millisecond
)

// retryUnavailable calls f, and again while it is answered by 503 and time is
// left. It waits as long as the server asks, or gives up at once when that is
// longer than what is left.
func retryUnavailable(ctx context.Context, retry bool, f func() error) error {
	deadline := time.Now().Add(retryBudget)
	for pause := retryFirst; ; pause *= 2 {
		err := f()
		if err == nil || !retry {
			return err
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.StatusCode != http.StatusServiceUnavailable {
			return err
		}
		wait := pause
		if after := e.RetryAfter(); after > 0 {
			wait = after
		}
		if time.Until(deadline) < wait {
			return err
		}
		if sleep(ctx, wait) != nil {
			return err
		}
	}
}

// sleep waits for d, or returns the error of a context that ends sooner.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
