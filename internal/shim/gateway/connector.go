package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

const (
	httpPort        = 80
	headerTimeout   = 30 * time.Second
	idleHTTPTimeout = 2 * time.Minute
)

// credentials are the headers that clients of the usual APIs use to say who they are.
var credentials = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// connector is a named upstream, as the gateway has it. A request of the sandbox to
// http://NAME.connect.internal/path goes to the upstream's URL joined with path, streaming
// both ways. Redirects are handed to the sandbox, not followed. The certificate of an https
// upstream is verified.
type connector struct {
	connect.Upstream
	name   string
	url    *url.URL
	header http.Header // the upstream's, under canonical names
	hides  redactors
	use    *usage

	ctx    context.Context // ends when it is taken away, or becomes another
	cancel context.CancelFunc
}

// SetConnectors replaces all connectors, before or after Start. Requests under way through
// connectors that are removed or changed end. On an error nothing is changed.
func (g *Gateway) SetConnectors(all map[string]connect.Upstream) error {
	next := make(map[string]*connector, len(all))
	for name, u := range all {
		c := &connector{Upstream: u, name: name, header: http.Header{}}
		if u.Refused == "" {
			var err error
			if c.url, err = connect.ParseURL(u.URL); err != nil {
				return fmt.Errorf("connector %s: %w", name, err)
			}
		}
		for key, values := range u.Header {
			c.header[textproto.CanonicalMIMEHeaderKey(key)] = slices.Clone(values)
		}
		c.hides = newRedactors(u.Secrets, u.Hidden)
		next[name] = c
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.used == nil {
		g.used = map[string]*usage{}
	}
	for name, c := range next {
		if old := g.upstream[name]; old != nil && reflect.DeepEqual(old.Upstream, c.Upstream) {
			next[name] = old
			continue
		}
		if g.used[name] == nil {
			g.used[name] = &usage{Usage: g.Used[name]}
		}
		c.use = g.used[name] // a definition that changes does not begin anew
		c.ctx, c.cancel = context.WithCancel(context.Background())
	}
	for name, old := range g.upstream {
		if next[name] != old {
			old.cancel()
		}
	}
	g.upstream = next
	return nil
}

// connector finds the connector that a request's Host names, and the name.
func (g *Gateway) connector(host string) (*connector, string, error) {
	if h, port, err := net.SplitHostPort(host); err == nil && port == "80" {
		host = h
	}
	name, err := policy.CanonicalName(host)
	if err != nil {
		return nil, "", err
	}
	label, ok := strings.CutSuffix(name, "."+connect.Zone)
	if !ok {
		return nil, "", fmt.Errorf("%s is not under %s", name, connect.Zone)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.upstream[label]
	if !ok {
		known := slices.Sorted(maps.Keys(g.upstream))
		if len(known) == 0 {
			return nil, label, fmt.Errorf("no connector %q is granted to this sprite, nor any other", label)
		}
		return nil, label, fmt.Errorf("no connector %q is granted to this sprite (there are: %s)", label, strings.Join(known, ", "))
	}
	return c, label, nil
}

// connectors is the HTTP server at the gateway's address.
type connectors struct {
	g         *Gateway
	server    *http.Server
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	feed      *feed
	heads     heads
}

// exchange is a request on its way. The request's context carries it.
type exchange struct {
	*connector
	request *Request // its report
	cancel  context.CancelCauseFunc

	sent, received atomic.Int64 // bytes of bodies
	answer         *taster      // of a metered upstream, once it answers
	failed         bool         // by no fault of the sandbox
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

func newConnectors(g *Gateway) *connectors {
	h := &connectors{g: g, feed: newFeed(), heads: heads{max: maxHTTPConns, g: g, places: make(chan struct{}, maxHeads)}}
	dialer := &net.Dialer{Timeout: dialTimeout}
	h.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return g.hold(conn), nil
		},
		// Else the part of an answer that nobody reads is of up to 4 MiB a request.
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: 16 << 20},
		MaxResponseHeaderBytes: 256 << 10,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        90 * time.Second,
		ExpectContinueTimeout:  time.Second,
		DisableCompression:     true, // pass on what the upstream sent
		WriteBufferSize:        httpBuffer,
		ReadBufferSize:         httpBuffer,
	}
	quiet := log.New(Redacted(g, slog.NewLogLogger(g.Logger.Handler(), slog.LevelDebug).Writer()), "", 0)
	h.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      h.transport,
		ModifyResponse: forSandbox,
		FlushInterval:  -1,
		BufferPool:     proxyBuffers{},
		ErrorLog:       quiet,
		ErrorHandler:   h.failed,
	}
	h.server = &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleHTTPTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          quiet,
		BaseContext:       func(net.Listener) context.Context { return g.ctx },
		ConnState: func(c net.Conn, s http.ConnState) {
			if head, ok := c.(*headOf); ok {
				head.state(s)
			}
			switch s {
			case http.StateNew: // in serve's goroutine, which is itself counted
				g.wg.Add(1)
			case http.StateClosed, http.StateHijacked:
				g.wg.Done()
			}
		},
	}
	return h
}

func (h *connectors) serve() { _ = h.server.Serve(h.feed) }

func (h *connectors) close() {
	_ = h.feed.Close()
	_ = h.server.Close()
	h.transport.CloseIdleConnections()
}

// ServeHTTP forwards a request of the sandbox to its upstream, and tells of it.
func (h *connectors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.g.wg.Add(1) // the connection is counted, but no longer once it is hijacked
	defer h.g.wg.Done()
	if tooManyFields(w, r) {
		return
	}
	began := time.Now()
	c, name, err := h.g.connector(r.Host)
	told := &Request{Time: began, Connector: name, Method: r.Method, Path: r.URL.Path}
	defer func() { h.g.tell(told, c) }()
	refuse := func(status int, code, message, hint string) {
		told.note(status, message)
		refusal(w, status, code, message, hint)
	}
	if err != nil {
		hint := "connectors are at http://NAME." + connect.Zone + "/"
		if name != "" {
			put := ""
			if slices.Contains(connect.Presets(), name) {
				put = fmt.Sprintf("cove connector put %s (once), and ", name)
			}
			hint = fmt.Sprintf("on the host: %scove connector grant %s --sprite %s; list the connectors: cove connector list", put, name, h.g.sprite())
		}
		refuse(http.StatusNotFound, "no_connector", err.Error(), hint)
		return
	}
	if c.Refused != "" {
		// No 503, after which agents try again and again.
		refuse(http.StatusForbidden, "no_secret", "connector "+name+": "+c.Refused+"; "+c.Hint, c.Hint)
		return
	}
	if !c.Expires.IsZero() && !began.Before(c.Expires) {
		refuse(http.StatusForbidden, "login_expired", "connector "+name+": the token of its login expired at "+c.Expires.UTC().Format(time.RFC3339), "on the host: "+c.ExpiredHint)
		return
	}
	if r.Method == http.MethodConnect {
		refuse(http.StatusMethodNotAllowed, "no_tunnel", "a connector is not a proxy", "send the request itself to http://"+name+"."+connect.Zone+"/")
		return
	}
	if isOpaque(r.URL) {
		refuse(http.StatusBadRequest, "bad_path", "the request's target is not a path", "send it to http://"+name+"."+connect.Zone+"/")
		return
	}
	if r.URL.Path == "" { // a whole URL without one
		r.URL.Path = "/"
	}
	if climbs(r.URL.Path) {
		refuse(http.StatusBadRequest, "bad_path", "a path through a connector can't have . or .. in it", "write the path without them")
		return
	}
	if why := c.Allows(r.Method, r.URL.Path); why != "" {
		refuse(http.StatusForbidden, "not_allowed", "connector "+name+": "+why, "on the host, see what is allowed: cove connector show "+name)
		return
	}
	if c.Metered() && r.Header.Get("Upgrade") != "" {
		refuse(http.StatusForbidden, "not_allowed", "connector "+name+": a request that changes its protocol can't be charged", "use plain requests, or streams of events")
		return
	}
	if why, wait := c.use.admit(c.Limits, began); why != "" {
		if wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)+1))
		}
		refuse(http.StatusTooManyRequests, "limit", "connector "+name+": "+why, "")
		return
	}
	defer c.use.over() // once it has been charged
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(errTaken) })()
	x := &exchange{connector: c, request: told, cancel: cancel}
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &meter{ReadCloser: r.Body, x: x, count: &x.sent}
	}
	defer func() {
		told.Sent, told.Received = x.sent.Load(), x.received.Load()
		told.cut(context.Cause(ctx))
		x.account(time.Now())
	}()
	if c.restricts() && !asksWebSocket(r) {
		r.Header.Del("Upgrade") // the bytes after it could be requests that nothing decides on
		r.Header.Del("Http2-Settings")
	}
	duplex.Serve(w, r, func(w http.ResponseWriter, r *http.Request) {
		h.proxy.ServeHTTP(&answerWriter{ResponseWriter: w, x: x}, r)
	})
}

// isOpaque reports whether a request's target is of the form scheme:rest. net/http sends the
// rest as it is, and no check has seen it: http:https://denied.example/x is a request for
// https://denied.example/x.
func isOpaque(u *url.URL) bool { return u.Opaque != "" }

// climbs reports whether a path has a part that leads upwards ("." or ".."), perhaps only
// after the upstream has unescaped it. A connector is only for paths below its own URL. The
// path has been unescaped once.
func climbs(path string) bool {
	for range 3 {
		for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if part, _, _ = strings.Cut(part, ";"); part == "." || part == ".." {
				return true
			}
		}
		again := connect.Unescape(path)
		if again == path {
			return false
		}
		path = again
	}
	return true // no honest client escapes a path so often
}

// authorized reports whether the connector's headers say who asks. Then the sandbox's own
// credentials are dropped, and the upstream's cookies don't reach the sandbox.
func (c *connector) authorized() bool {
	return c.hides.body != nil || slices.ContainsFunc(credentials, func(name string) bool { return c.header[name] != nil })
}

// restricts reports whether requests through the connector are decided on, or their
// answers looked through.
func (c *connector) restricts() bool {
	return c.authorized() || len(c.Methods)+len(c.Paths)+len(c.DenyPaths) > 0
}

// overrides are headers that make some servers take a request for one of another method.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// partial are headers that ask for a part of an answer, or for the answer in another form.
// Secrets could not be found in that.
var partial = []string{"Range", "If-Range", "Request-Range", "X-Ms-Range", "A-Im", "Accept-Charset", "Te", "Sec-Websocket-Extensions"}

// rewrite makes the upstream's request of the sandbox's. ReverseProxy has taken
// out hop-by-hop and forwarding headers.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In)
	pr.Out.URL.Opaque = ""                         // ServeHTTP has refused one: what goes out is the path that was judged
	pr.SetURL(x.url)                               // this also makes the upstream's name the Host
	if pr.In.URL.Path == "/" && x.url.Path != "" { // no client can send no path: the upstream is meant as it is
		pr.Out.URL.Path, pr.Out.URL.RawPath = x.url.Path, x.url.RawPath
	}
	if _, ok := pr.In.Header["User-Agent"]; !ok {
		pr.Out.Header["User-Agent"] = nil // none, rather than Go's own
	}
	if x.authorized() {
		drop(pr.Out.Header, credentials)
	}
	if len(x.Methods) > 0 || x.Metered() {
		drop(pr.Out.Header, overrides)
	}
	if len(x.Paths) > 0 || len(x.DenyPaths) > 0 {
		drop(pr.Out.Header, redirections)
	}
	if x.hides.body != nil || x.Metered() { // a compressed answer can't be looked through
		pr.Out.Header.Set("Accept-Encoding", "identity")
	}
	if x.hides.body != nil {
		for _, name := range partial {
			pr.Out.Header.Del(name)
		}
	}
	drop(pr.Out.Header, slices.Collect(maps.Keys(x.header)))
	for name, values := range x.header {
		pr.Out.Header[name] = slices.Clone(values)
	}
}

// These say that an answer is in a form that can't be looked through.
var (
	errEncoded = errors.New("the answer is compressed, though that was not asked for")
	errPart    = errors.New("the answer is only a part, though the whole was asked for")
)

// isPart reports whether an answer has only a part of something.
func isPart(resp *http.Response) bool {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return resp.StatusCode == http.StatusPartialContent || resp.Header["Content-Range"] != nil ||
		strings.EqualFold(strings.TrimSpace(kind), "multipart/byteranges")
}

// forSandbox makes the sandbox's answer of the upstream's: without the secrets, and
// with redirects within the upstream leading through the connector.
func forSandbox(resp *http.Response) error {
	x := exchangeOf(resp.Request)
	for _, name := range []string{"Location", "Content-Location"} {
		if to := resp.Header.Get(name); to != "" {
			resp.Header.Set(name, x.through(resp.Request.URL, to))
		}
	}
	if x.hides.body != nil && isPart(resp) {
		return errPart
	}
	x.hides.header(resp.Header)
	x.hides.header(resp.Trailer) // the names, which are sent before the values
	if x.authorized() {
		resp.Header.Del("Set-Cookie")
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if err := onlyWebSocket(resp); x.restricts() && err != nil {
			return err
		}
		x.request.note(resp.StatusCode, "")
		if both, ok := resp.Body.(io.ReadWriteCloser); ok {
			in := io.ReadCloser(both)
			if x.hides.body != nil {
				in = &redacting{ReadCloser: both, redactor: x.hides.body, late: true}
			}
			resp.Body = &meterBoth{meter{in, x, &x.received}, both}
		}
		return nil
	}
	resp.Body = &meter{resp.Body, x, &x.received}
	if x.hides.body == nil && !x.Metered() {
		return nil
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return errEncoded
	}
	if x.hides.body != nil {
		resp.Body = &redacting{ReadCloser: resp.Body, redactor: x.hides.body, ended: func() { x.hides.header(resp.Trailer) }}
	}
	if x.Metered() { // the model's name is reported, and comes from the upstream
		x.answer = &taster{ReadCloser: resp.Body}
		resp.Body = x.answer
	}
	return nil
}

// through is where a redirect leads the sandbox. A redirect to the upstream leads through
// the connector. Any other redirect stays as it came: the sandbox follows it under its
// policy and without the secret.
func (x *exchange) through(from *url.URL, to string) string {
	u, err := from.Parse(to)
	if err != nil || u.Scheme != x.url.Scheme || !strings.EqualFold(u.Host, x.url.Host) {
		return to
	}
	base := strings.TrimSuffix(x.url.EscapedPath(), "/")
	rest, ok := strings.CutPrefix(u.EscapedPath(), base)
	if !ok || rest != "" && rest[0] != '/' {
		return to
	}
	out := "http://" + x.name + "." + connect.Zone + cmp.Or(rest, "/")
	if u.RawQuery != "" {
		out += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		out += "#" + u.EscapedFragment()
	}
	return out
}

// failed answers for an upstream that does not. Its address is the host's
// business, so the sandbox gets only the connector's name.
func (h *connectors) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	if r.Context().Err() == nil && !errors.Is(err, http.ErrAbortHandler) {
		x.failed = true
		h.g.Logger.Warn("connector", "name", x.name, "error", x.hides.body.text(err.Error())) // it may quote the upstream
	}
	x.request.note(http.StatusBadGateway, "the upstream does not answer")
	refusal(w, http.StatusBadGateway, "upstream", fmt.Sprintf("connector %s: the upstream does not answer", x.name),
		"on the host, check that its upstream is right and answers: cove connector show "+x.name)
}

func refusal(w http.ResponseWriter, status int, code, message, hint string) {
	type body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {code, message, hint}})
}

// httpBuffer is the size of the buffers of each connection to an upstream.
const httpBuffer = 16 << 10

// proxyBuffers are those through which bodies are copied.
type proxyBuffers struct{}

var bodies = &sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

func (proxyBuffers) Get() []byte { return *bodies.Get().(*[]byte) }

func (proxyBuffers) Put(b []byte) { bodies.Put(&b) }

// sprite is the name of the gateway's sprite, for hints.
func (g *Gateway) sprite() string {
	if g.Name == nil {
		return "SPRITE"
	}
	return cmp.Or(g.Name(), "SPRITE")
}
