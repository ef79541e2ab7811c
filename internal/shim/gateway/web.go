package gateway

import (
	"context"
	"crypto/sha1" //nolint:gosec // it is RFC 6455's
	"encoding/base64"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// web serves the plain HTTP of connections that are allowed under names. It decides on
// the name of each request, and writes the request anew.
type web struct {
	g      *Gateway
	server *http.Server
	feed   *feed
	heads  heads
}

// webConn is such a connection, with the bytes that it began with (head) and the
// connection to its server (host).
type webConn struct {
	*gonet.TCPConn
	head   []byte
	host   *net.TCPConn
	opened *opened

	proxy     *httputil.ReverseProxy
	transport *http.Transport
	dialled   sync.Once
	once      sync.Once
	done      chan struct{} // closed with the connection
}

func newWeb(g *Gateway) *web {
	w := &web{g: g, feed: newFeed(), heads: heads{max: maxWebConns, g: g, places: make(chan struct{}, maxHeads)}}
	w.server = &http.Server{
		Handler:           w,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleHTTPTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(g.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return g.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, webConnKey{}, c.(*headOf).Conn)
		},
		ConnState: func(c net.Conn, s http.ConnState) { c.(*headOf).state(s) },
	}
	return w
}

type webConnKey struct{}

func (w *web) run() { _ = w.server.Serve(w.feed) }

func (w *web) close() {
	_ = w.feed.Close()
	_ = w.server.Close()
}

// serve serves a connection until its end.
func (w *web) serve(c *webConn) {
	c.done = make(chan struct{})
	c.transport = &http.Transport{
		DialContext:            c.dial,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        httpBuffer,
		ReadBufferSize:         httpBuffer,
	}
	c.proxy = &httputil.ReverseProxy{
		Rewrite:        asItCame,
		Transport:      c.transport,
		ModifyResponse: onlyWebSocket,
		FlushInterval:  -1,
		BufferPool:     proxyBuffers{},
		ErrorLog:       w.server.ErrorLog,
		ErrorHandler: func(rw http.ResponseWriter, r *http.Request, err error) {
			w.g.Logger.Debug("forward a request of the sandbox", "to", c.opened.to, "error", err)
			refusal(rw, http.StatusBadGateway, "upstream", "the server does not answer", "try again")
		},
	}
	w.feed.put(w.heads.wrap(c))
	<-c.done
}

// dial gives the connection that is there, and then others to the same address.
func (c *webConn) dial(context.Context, string, string) (conn net.Conn, err error) {
	c.dialled.Do(func() { conn = c.host })
	if conn != nil {
		return conn, nil
	}
	g, o := c.opened.g, c.opened
	d := g.decide(o.to, o.from.proto)
	if !d.Allow {
		return nil, net.ErrClosed
	}
	again, err := g.dialHost(o.to)
	if err != nil || again == nil {
		return nil, net.ErrClosed
	}
	context.AfterFunc(g.ctx, func() { _ = again.Close() })
	return g.hold(again), nil
}

func (c *webConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.TCPConn.Read(p)
}

func (c *webConn) Close() error {
	c.once.Do(func() {
		_ = c.host.Close()
		c.transport.CloseIdleConnections()
		close(c.done)
	})
	return c.TCPConn.Close()
}

// ServeHTTP forwards a request, if the name that it is for is allowed.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(webConnKey{}).(*webConn)
	if !ok {
		return
	}
	w.g.wg.Add(1) // its connection is counted, but may end before it
	defer w.g.wg.Done()
	if tooManyFields(rw, r) {
		return
	}
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	// The name is noted first. Then a policy that comes after the decision ends the connection.
	if canonical, err := policy.CanonicalName(name); err == nil {
		c.opened.said.Store(&canonical)
	}
	d := w.g.speak(name, c.opened)
	if r.Method == http.MethodConnect {
		literal := policy.Literal(c.opened.to, policy.TCP)
		d = policy.Decision{Rule: "tunnel", Hint: "a tunnel through an HTTP proxy hides where it leads; allow the proxy's address: cove policy allow " + literal, Opens: literal}
	}
	if isOpaque(r.URL) {
		d = policy.Decision{Rule: "no path", Hint: "the request's target is neither a path nor a URL; name the path"}
	}
	if !d.Allow {
		w.g.refuseSaid(c.opened.from, c.opened.to, strings.ToValidUTF8(name, "?"), d)
		rw.Header().Set("Connection", "close")
		refusal(rw, http.StatusForbidden, "policy", "the policy of this sandbox does not allow it: "+d.Rule, w.g.hint(d))
		return
	}
	if !asksWebSocket(r) {
		// After h2c or TLS, requests for other names would pass unseen. Servers go on
		// without an upgrade.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	duplex.Serve(rw, r, c.proxy.ServeHTTP)
}

// asksWebSocket reports whether a request is one for a WebSocket, and for nothing else.
func asksWebSocket(r *http.Request) bool {
	to := r.Header["Upgrade"]
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) && r.ContentLength == 0 &&
		len(to) == 1 && strings.EqualFold(to[0], "websocket") && len(r.Header["Sec-Websocket-Key"]) == 1
}

// errUpgrade says that an answer changes the protocol to one that was not asked for.
var errUpgrade = errors.New("the server changes the protocol, but not to the WebSocket that was asked for")

// onlyWebSocket refuses any other change of protocol, even if a server was made to
// pretend a WebSocket. The bytes after it would be requests that the gateway does not
// check.
func onlyWebSocket(resp *http.Response) error {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil
	}
	sum := sha1.Sum([]byte(resp.Request.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, 4.2.2
	accepted := resp.Header["Sec-Websocket-Accept"]
	if !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") || len(accepted) != 1 || accepted[0] != base64.StdEncoding.EncodeToString(sum[:]) {
		return errUpgrade
	}
	return nil
}

// asItCame leaves a request as the sandbox made it. Only its form on the wire may
// differ.
func asItCame(p *httputil.ProxyRequest) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.Opaque = "http", p.In.Host, ""
	p.Out.Host = p.In.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = values
		}
	}
	if _, ok := p.In.Header["User-Agent"]; !ok {
		p.Out.Header["User-Agent"] = nil // none, rather than Go's own
	}
}

// feed is a listener of connections that somebody hands over.
type feed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newFeed() *feed { return &feed{conns: make(chan net.Conn), done: make(chan struct{})} }

// put hands a connection over, or closes it if nobody takes any.
func (f *feed) put(c net.Conn) {
	select {
	case f.conns <- c:
	case <-f.done:
		_ = c.Close()
	}
}

// Accept is net.Listener's.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// Addr is net.Listener's.
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }
