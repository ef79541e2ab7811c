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
	maxLine      = 4 << 20  // one line of an NDJSON stream: ErrLongLine
	maxMessage   = 1 << 20  // a text message on a WebSocket
)

// Client calls one server of the Sprites protocol. Only URL must be set. Its
// methods may be called from any goroutine; its fields may not change meanwhile.
//
// Redirects are not followed: the protocol has none, and the token must not travel.
// Nothing is retried, with two exceptions. If a call that reaches a sprite is answered
// by 503 (as just after its creation), it is tried again for a few seconds, unless its
// body is a stream. The waits for jobs and their events reconnect.
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
	return &Sprite{client: c, name: name, base: Path("v1", "sprites", name)}
}

// Self returns a handle on the sprite that the server itself is. It is for calling a
// guest directly: its paths are /v1/exec and so on, without a name.
func (c *Client) Self() *Sprite {
	return &Sprite{client: c, base: Path("v1")}
}

// Version asks a cove server what it is. Other servers answer ErrNotFound.
func (c *Client) Version(ctx context.Context) (ServerInfo, error) {
	var info ServerInfo
	if err := c.Call(ctx, Request{Method: http.MethodGet, Path: Path("v1", "version")}, &info); err != nil {
		return info, fmt.Errorf("ask the server's version: %w", err)
	}
	return info, nil
}

// Path makes a path of segments, each percent-encoded as a whole, so that a
// slash in a name stays in its segment.
func Path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// A Request is one call of the API, made by [Client.Call], [Client.Do] or [Client.Lines]. The
// methods of Client and Sprite make theirs so; a program makes its own for a route that they
// do not have.
type Request struct {
	Method string
	Path   string // escaped: see Path
	Query  url.Values
	Header http.Header // besides the token's and the user agent's
	JSON   any         // is sent as JSON unless Body is set; nil: nothing is
	Body   io.Reader   // is sent as it is
	Size   int64       // of Body; 0: unknown, unless the type of Body tells

	// Retry has an answer with status 503 tried again for some seconds, as calls that
	// reach into a sprite are. A request with a Body is never tried again.
	Retry bool

	// Answered, if not nil, is called with an answer of status 2xx before its body is
	// read. The call fails with an error that it returns. Do does not call it.
	Answered func(*http.Response) error
}

// keepHeader is a Request's Answered that keeps the header of the answer.
func keepHeader(h *http.Header) func(*http.Response) error {
	return func(resp *http.Response) error { *h = resp.Header; return nil }
}

// request builds the HTTP request.
func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	target, err := c.url(r.Path, r.Query)
	if err != nil {
		return nil, err
	}
	body := r.Body
	if body == nil && r.JSON != nil {
		b, err := json.Marshal(r.JSON)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, body)
	if err != nil {
		return nil, err
	}
	if r.Size > 0 {
		req.ContentLength = r.Size
	}
	req.Header = c.header(r.Header)
	switch {
	case r.Body != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
	case r.JSON != nil:
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

// Do sends a request and returns its answer if the status is 2xx; the caller closes
// the body. Any other status is an *Error.
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	var resp *http.Response
	err := retryUnavailable(ctx, r.Retry && r.Body == nil, func() error {
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

// Call sends a request and decodes its answer, JSON of at most 64 MiB, into out, which may be nil.
func (c *Client) Call(ctx context.Context, r Request, out any) error {
	resp, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	defer closeBody(resp.Body)
	if r.Answered != nil {
		if err := r.Answered(resp); err != nil {
			return err
		}
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
// what they were doing, and a URL may be long (a command line is in it). A server that goes
// away before it answers is io.ErrUnexpectedEOF: io.EOF is the good end of something.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if err == io.EOF { //nolint:errorlint // net/http's own
		return io.ErrUnexpectedEOF
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
