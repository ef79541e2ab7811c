package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/policy"
)

const (
	httpPort        = 80
	maxHeaderBytes  = 256 << 10
	headerTimeout   = 30 * time.Second
	idleHTTPTimeout = 2 * time.Minute
)

// Connector is a named upstream. What the sandbox sends to
// http://NAME.connect.internal/path goes to URL joined with path, streaming both
// ways. Redirects are handed to the sandbox, not followed; an https upstream is
// verified.
type Connector struct {
	URL *url.URL // http or https; may lead to the host itself

	// Header is set on every request, outside of the sandbox, in place of what
	// the sandbox sent under these names. If a credential is among them, no
	// credential of the sandbox's own is passed on.
	Header http.Header
}

// credentials are the headers by which clients of the usual APIs say who they
// are.
var credentials = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// SetConnectors replaces all connectors, before or after Start. Requests under
// way go on. The map must not be changed afterwards.
func (g *Gateway) SetConnectors(all map[string]Connector) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.upstream = all
}

// connector finds the connector that a request's Host names, and the name.
func (g *Gateway) connector(host string) (Connector, string, error) {
	if h, port, err := net.SplitHostPort(host); err == nil && port == "80" {
		host = h
	}
	name, err := policy.CanonicalName(host)
	if err != nil {
		return Connector{}, "", err
	}
	label, ok := strings.CutSuffix(name, "."+connectZone)
	if !ok {
		return Connector{}, "", fmt.Errorf("%s is not under %s", name, connectZone)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.upstream[label]
	if !ok {
		known := slices.Sorted(maps.Keys(g.upstream))
		return Connector{}, label, fmt.Errorf("there is no connector %q (there are: %s)", label, strings.Join(known, ", "))
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
}

// target is what a request's context carries from ServeHTTP to the proxy.
type target struct {
	name string
	Connector
}

type targetKey struct{}

func newConnectors(g *Gateway) *connectors {
	h := &connectors{g: g, feed: newFeed()}
	h.transport = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // pass on what the upstream sent
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	quiet := slog.NewLogLogger(g.Logger.Handler(), slog.LevelDebug)
	h.proxy = &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     h.transport,
		FlushInterval: -1,
		BufferPool:    proxyBuffers{},
		ErrorLog:      quiet,
		ErrorHandler:  h.failed,
	}
	h.server = &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleHTTPTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          quiet,
		BaseContext:       func(net.Listener) context.Context { return g.ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew: // in serve's goroutine, which is counted itself
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

// ServeHTTP forwards a request of the sandbox to its upstream.
func (h *connectors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.g.wg.Add(1) // the connection is counted, but no longer once it is hijacked
	defer h.g.wg.Done()
	c, name, err := h.g.connector(r.Host)
	if err != nil {
		if name == "" {
			name = "NAME"
		}
		refusal(w, http.StatusNotFound, "no_connector", err.Error(),
			fmt.Sprintf("name an upstream on the host: cove serve --connector %s=URL, then use http://%s.%s/", name, name, connectZone))
		return
	}
	if r.Method == http.MethodConnect {
		refusal(w, http.StatusMethodNotAllowed, "no_tunnel", "a connector is no proxy", "send the request itself to http://"+name+"."+connectZone+"/")
		return
	}
	if climbs(r.URL.Path) {
		refusal(w, http.StatusBadRequest, "bad_path", "a path through a connector has no . and .. in it", "name what is meant")
		return
	}
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, target{name, c})))
}

// climbs reports whether a path, or what an upstream may make of it, has a part
// that leads elsewhere: the connector is for what lies below its own URL. The path
// has been unescaped once.
func climbs(path string) bool {
	for range 3 {
		for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			if part, _, _ = strings.Cut(part, ";"); part == "." || part == ".." {
				return true
			}
		}
		again, err := url.PathUnescape(path)
		if err != nil || again == path {
			return false
		}
		path = again
	}
	return true // nobody escapes a path so often in good faith
}

// rewrite makes the upstream's request of the sandbox's. ReverseProxy has taken
// out hop-by-hop and forwarding headers.
func rewrite(pr *httputil.ProxyRequest) {
	t := pr.In.Context().Value(targetKey{}).(target)
	pr.SetURL(t.URL) // which also makes the upstream's name the Host
	if _, ok := pr.In.Header["User-Agent"]; !ok {
		pr.Out.Header["User-Agent"] = nil // none, rather than Go's own
	}
	for _, c := range credentials {
		if _, ok := lookUp(t.Header, c); ok {
			for _, c := range credentials {
				pr.Out.Header.Del(c)
			}
			break
		}
	}
	for name, values := range t.Header {
		pr.Out.Header[textproto.CanonicalMIMEHeaderKey(name)] = slices.Clone(values)
	}
}

// lookUp finds name in h, whose keys need not be canonical.
func lookUp(h http.Header, name string) ([]string, bool) {
	for k, v := range h {
		if textproto.CanonicalMIMEHeaderKey(k) == name {
			return v, true
		}
	}
	return nil, false
}

// failed answers for an upstream that does not. Its address is the host's
// business, so the sandbox gets only the connector's name.
func (h *connectors) failed(w http.ResponseWriter, r *http.Request, err error) {
	t, _ := r.Context().Value(targetKey{}).(target)
	if r.Context().Err() == nil && !errors.Is(err, http.ErrAbortHandler) {
		h.g.Logger.Warn("connector", "name", t.name, "error", err)
	}
	refusal(w, http.StatusBadGateway, "upstream", fmt.Sprintf("connector %s: the upstream does not answer", t.name),
		"see that the URL given to cove serve --connector is right and answers on the host")
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

// proxyBuffers lends the proxy the buffers of the forwarder.
type proxyBuffers struct{}

func (proxyBuffers) Get() []byte { return *large.Get().(*[]byte) }

func (proxyBuffers) Put(b []byte) { large.Put(&b) }
