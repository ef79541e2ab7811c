package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// A sprite's URL (http://NAME.DOMAIN:PORT/) is an origin of its own. Only the sprite's HTTP
// service answers there, and nothing of this server's API. So a guest's page can act only on
// its own sprite.

// ingress answers at the URLs of sprites. It hands a visitor's request on to the sprite's HTTP
// service, and wakes the sprite for that.
type ingress struct {
	host     *sprite.Host
	guests   *guestPool
	visits   *visits
	rights   *rights
	visitors *quota
	refusals refusals
	ending   context.Context // ends when the server begins to end
}

// wait lets no more visitors in, and waits for those that are.
func (in *ingress) wait() { in.visitors.wait() }

// holdLimit is how long a request waits for the sprite to wake and for something
// in it to listen.
const holdLimit = 10 * time.Second

// serve answers a request to a sprite's URL.
func (in *ingress) serve(w http.ResponseWriter, r *http.Request, name string) error {
	if isServiceWorker(r) {
		return fail.New("forbidden", "a sprite's URL does not allow service workers", "change the page to do without one, or reach the port from this machine: cove proxy -s "+name+" 8080")
	}
	if r.URL.Query().Has(visitQuery) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		info, err := in.host.Get(r.Context(), name)
		if err != nil {
			return err
		}
		return in.visits.redeem(w, r, info)
	}
	var info sprites.Info
	find := func() (p principal, err error) {
		if info, err = in.host.Get(r.Context(), name); err != nil {
			return p, err
		}
		return in.visits.enter(r, info)
	}
	return in.rights.serve(w, r, find, func(w http.ResponseWriter, r *http.Request) error { return in.pass(w, r, info) })
}

// pass hands a visitor's request on to the sprite's HTTP service.
func (in *ingress) pass(w http.ResponseWriter, r *http.Request, info sprites.Info) error {
	done, err := in.visitors.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), holdLimit)
	defer cancel()
	lease, err := in.host.Use(ctx, info.Name, "url")
	if err != nil {
		return held(ctx, info.Name, err)
	}
	defer lease.Release()
	target := in.guests.get(lease.Sandbox())
	if _, err := target.webPort(ctx); err != nil {
		return held(ctx, info.Name, err)
	}
	end := context.AfterFunc(in.ending, func() { // a WebSocket would outlive the server's end
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
	})
	defer end()
	proxy := httputil.ReverseProxy{
		Transport: target.web,
		Rewrite:   rewriteVisit,
		ModifyResponse: func(resp *http.Response) error {
			hostOnlyCookies(resp)
			for _, key := range lasting {
				resp.Header.Del(key)
			}
			if !isPublic(info) {
				ownPages(resp.Header)
			}
			return nil
		},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(in.refusals.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			in.answer(w, r, held(r.Context(), info.Name, err))
		},
	}
	duplex.Serve(w, r, func(w http.ResponseWriter, r *http.Request) { proxy.ServeHTTP(pageWriter{w}, r) })
	return nil
}

// isServiceWorker reports whether a browser asks for the script of a service worker; the
// browser marks every such request. A worker sees all later requests of its origin, including
// links with codes. It stays even after a public URL is no longer public.
func isServiceWorker(r *http.Request) bool {
	return r.Header.Get("Service-Worker") != "" || r.Header.Get("Sec-Fetch-Dest") == "serviceworker"
}

// lasting are headers of an answer that could change how the browser treats other pages of the
// origin, later requests, or sibling origins. With them a page could have the browser report
// addresses with codes, or send requests elsewhere. It could answer a link with a code from
// the cache of another page, or make the browser forget the cookies of the whole domain.
var lasting = []string{
	"Nel", "Report-To", "Reporting-Endpoints", "Alt-Svc", "Clear-Site-Data", "Service-Worker-Allowed",
	"No-Vary-Search", "Use-As-Dictionary", "Speculation-Rules", "Set-Login", "Activate-Storage-Access",
	"Sec-Session-Registration", "Secure-Session-Registration", "Sec-Session-Challenge", "Secure-Session-Challenge",
	"Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct", "Accept-Ch", "Critical-Ch", "Origin-Agent-Cluster",
}

// pageWriter keeps a guest from setting cookies, or lasting headers, before its answer: an
// informational answer (103 and the like) does not pass ModifyResponse.
type pageWriter struct{ http.ResponseWriter }

func (w pageWriter) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		w.Header().Del("Set-Cookie")
		for _, key := range lasting {
			w.Header().Del(key)
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w pageWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// listenHints are the hints if the guest has found nothing to connect to, by the guest's code.
// %[1]s is the sprite.
var listenHints = map[string]string{
	"nothing_listens":       "start a service for the URL: cove service put -s %[1]s --http-port 8080 web CMD",
	"service_not_listening": "see the services: cove service list -s %[1]s; and the logs of one: cove service logs -s %[1]s SERVICE",
}

// held makes an error of something in the sprite of that name that was not there in time.
func held(ctx context.Context, name string, err error) error {
	e, ok := errors.AsType[*fail.Error](err)
	if ok && listenHints[e.Code] == "" && e.Code != sprite.CodeUnavailable {
		return err
	}
	text, hint := "sprite "+name+" does not answer at its HTTP port", "see what runs there: cove service list -s "+name+"; or try again, if it is busy"
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		text += " within " + holdLimit.String()
	}
	if ok && listenHints[e.Code] != "" {
		text, hint = "nothing answers at the URL of sprite "+name+": "+e.Message, fmt.Sprintf(listenHints[e.Code], name)
	}
	e = fail.New(sprite.CodeUnavailable, text, hint)
	e.RetryAfter = 2 * time.Second
	return e
}

// answer is refusals.answer for callers that are not clients of the API.
func (in *ingress) answer(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status, body := in.refusals.describe(err)
	in.refusals.log.Debug("visit refused", "method", r.Method, "path", r.URL.Path, "status", status, "err", err) // anybody can cause it
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		respond(w, status, body)
		return
	}
	e, _ := body.(sprites.ErrorBody)
	h := w.Header()
	if e.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfterSeconds))
	}
	h.Set("Content-Type", "text/plain; charset=utf-8") // nothing in it can be a script
	w.WriteHeader(status)
	text := "cove: " + e.Message + "\n"
	if e.Hint != "" {
		text += "hint: " + e.Hint + "\n"
	}
	_, _ = io.WriteString(w, text) // a browser that went away is nobody's error
}

// rewriteVisit makes the guest's request. It leaves out the visitor's credentials for this
// server, and headers that could claim where the request came from.
func rewriteVisit(p *httputil.ProxyRequest) {
	p.Out.URL.Scheme, p.Out.URL.Host = "http", "sprite"
	p.Out.Host = p.In.Host
	h := p.Out.Header
	for key := range h {
		if strings.HasPrefix(key, "X-Forwarded-") || strings.HasPrefix(key, "Fly-") ||
			strings.Contains(key, "_") { // which many a program takes for a hyphen
			h.Del(key)
		}
	}
	for _, key := range []string{
		"Authorization", "Proxy-Authorization", "Forwarded", "X-Real-Ip",
		"Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip",
	} {
		h.Del(key)
	}
	p.SetXForwarded()
	cookies := p.In.Cookies()
	h.Del("Cookie")
	for _, c := range cookies {
		if c.Name != visitCookie {
			p.Out.AddCookie(c)
		}
	}
}

// hostOnlyCookies keeps a guest's cookies to its own origin, and from being ours.
func hostOnlyCookies(resp *http.Response) {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Trailer.Del("Set-Cookie") // it is announced
		resp.Body = &plainTrailer{resp.Body, resp}
	}
	cookies := resp.Header.Values("Set-Cookie")
	resp.Header.Del("Set-Cookie")
	for _, line := range cookies {
		c, err := http.ParseSetCookie(line)
		if err != nil || c.Name == visitCookie {
			continue
		}
		c.Domain = ""
		resp.Header.Add("Set-Cookie", c.String())
	}
}

// ownPages lets only pages of an answer's own origin use it, whatever the guest's own policy
// says. It is for answers that are not public.
func ownPages(h http.Header) {
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Add("Content-Security-Policy", "frame-ancestors 'self'")
}

// plainTrailer is a body that, when closed, removes cookies from its trailer.
type plainTrailer struct {
	io.ReadCloser
	resp *http.Response
}

func (b *plainTrailer) Close() error {
	err := b.ReadCloser.Close()
	b.resp.Trailer.Del("Set-Cookie")
	return err
}

// portAge is how long the server believes a guest's answer where its sprite's URL leads.
const portAge = 2 * time.Second

// answerTime is left for the guest's answer that nothing listens.
const answerTime = time.Second

// webPort finds where the sprite's URL leads, and waits for something to listen
// there, as long as ctx lets it.
func (g *guest) webPort(ctx context.Context) (int, error) {
	g.webMu.Lock()
	port, asked := g.port, g.asked
	g.webMu.Unlock()
	if port != 0 && time.Since(asked) < portAge {
		return port, nil
	}
	wait := holdLimit
	if end, ok := ctx.Deadline(); ok {
		wait = max(time.Until(end)-answerTime, 0)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, guestURL("http", "wait="+wait.String()), nil)
	if err != nil {
		return 0, err
	}
	resp, err := g.send(req)
	if err != nil && ctx.Err() != nil { // it hangs
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		err := guestFailure(resp, false)
		if e, ok := errors.AsType[*sprites.Error](err); ok && listenHints[e.Code] != "" {
			return 0, fail.New(e.Code, e.Message, "")
		}
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var target sprites.HTTPTarget
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&target); ctx.Err() != nil {
		return 0, ctx.Err()
	} else if err != nil {
		return 0, fail.New("bad_guest", "the sandbox does not say where its URL leads", "")
	}
	if target.Port < 1 || target.Port > 65535 || target.Port == guestPort {
		return 0, fail.New("bad_guest", fmt.Sprintf("the sandbox wants its URL to lead to port %d", target.Port), "")
	}
	g.webMu.Lock()
	g.port, g.asked = target.Port, time.Now()
	g.webMu.Unlock()
	return target.Port, nil
}

// dialWeb connects to where the sprite's URL leads. Loopback-only ports are reached from
// inside the sprite. If nothing takes the connection, the known program may have ended:
// dialWeb asks the guest once more, which starts a stopped service.
func (g *guest) dialWeb(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, holdLimit)
	defer cancel()
	for again := false; ; again = true {
		port, err := g.webPort(ctx)
		if err != nil {
			return nil, err
		}
		conn, err := g.dialPort(ctx, "localhost", port)
		if err == nil {
			return conn, nil
		}
		g.webMu.Lock()
		g.port = 0
		g.webMu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil, err
		case again: // the program that listened there has just ended
			return nil, fail.New("service_not_listening", fmt.Sprintf("nothing takes connections at port %d", port), "")
		}
	}
}
