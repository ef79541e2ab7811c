package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// backendRoutes names backends, and passes calls on to them.
type backendRoutes struct {
	backends *store.Backends
	refusals refusals
}

var backendName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`) })

func (g *backendRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.backends.List(r.Context())
	if err != nil {
		return err
	}
	if all == nil {
		all = []cove.Backend{}
	}
	writeJSON(w, http.StatusOK, cove.BackendList{Backends: all})
	return nil
}

// put names a backend. Neither its answers nor its errors repeat the token.
func (g *backendRoutes) put(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("backend")
	var req cove.BackendRequest
	if err := readObject(w, r, maxBody, &req, "the backend", `it is {"url":"https://…","token":"…"}`); err != nil {
		return err
	}
	req.URL = strings.TrimRight(req.URL, "/")
	u, err := url.Parse(req.URL)
	switch {
	case !backendName().MatchString(name):
		return fail.New(sprite.CodeBadRequest, "a backend's name has lower-case letters, digits and hyphens, at most 63", "")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fail.New(sprite.CodeBadRequest, "a backend's url is an http or https URL without user and query", "")
	case len(req.Token) > maxSecret || strings.ContainsFunc(req.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return fail.New(sprite.CodeBadRequest, "a token is printable ASCII without spaces", "")
	}
	if err := g.backends.Put(r.Context(), name, req); err != nil {
		return backendError(r, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *backendRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	if err := g.backends.Delete(r.Context(), r.PathValue("backend")); err != nil {
		return backendError(r, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// backendError never says 404: in the answer to a call to a backend, that would mean that the
// sprite is gone.
func backendError(r *http.Request, err error) error {
	name := clean(r.PathValue("backend"), maxGuestText)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fail.New("no_backend", "this server knows no backend "+name, "push to it once, and the server will know it: cove push --backend "+name+" PLAN")
	case errors.Is(err, store.ErrInUse):
		return fail.New("backend_in_use", fmt.Sprintf("the backend %s: %v", name, err), "pull or delete its jobs first: cove job list")
	}
	return secretError(err)
}

// errRefused says that a backend does not take our token.
var errRefused = errors.New("it refused the token")

// unreached is the error for a backend that did not answer, or not us.
func unreached(name string, err error) error {
	if errors.Is(err, errRefused) {
		return fail.New("backend_refused", fmt.Sprintf("the backend %s: %v", name, err), "give this server a token that the backend accepts: cove backend put "+name+"; a push gives it the token of SPRITES_TOKEN or of your file of settings, so correct that too: cove config show")
	}
	return fail.New("backend_unreachable", fmt.Sprintf("the backend %s does not answer: %v", name, err), "check the connection: cove ping --backend "+name)
}

// backendTransport speaks HTTP/1.1, which can be upgraded.
var backendTransport = &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	Protocols:             func() *http.Protocols { p := new(http.Protocols); p.SetHTTP1(true); return p }(),
	TLSHandshakeTimeout:   10 * time.Second,
	MaxIdleConnsPerHost:   8,
	IdleConnTimeout:       idleTimeout / 2,
	ResponseHeaderTimeout: 0, // a stream may say nothing for long
	DisableCompression:    true,
}

// foreign are headers of a backend's answers that are not passed on: they would
// speak for this server's origin.
var foreign = []string{
	"Set-Cookie", "Content-Security-Policy", "X-Content-Type-Options", "Cache-Control", "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials",
	"Access-Control-Allow-Headers", "Access-Control-Allow-Methods", "Strict-Transport-Security", "Location", "Www-Authenticate", "Alt-Svc", "Link", "Refresh",
	"Sprite-Version",
}

// pass passes a call on to a backend, with the backend's token in the place of
// the caller's.
func (g *backendRoutes) pass(w http.ResponseWriter, r *http.Request) error {
	base, token, err := g.backends.Get(r.Context(), r.PathValue("backend"))
	if err != nil {
		return backendError(r, err)
	}
	// The path as it was written: a slash in a name stays in its segment.
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/backends/"), "/")
	target, err := url.Parse(base + "/" + rest)
	if err != nil {
		return err
	}
	target.RawQuery = r.URL.RawQuery
	proxy := &httputil.ReverseProxy{
		Transport:     backendTransport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(g.refusals.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = target, ""
			p.Out.Header.Del("Cookie")
			p.Out.Header.Del("Origin")
			p.Out.Header.Set("Authorization", "Bearer "+token)
			if token == "" {
				p.Out.Header.Del("Authorization")
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusUnauthorized {
				return errRefused
			}
			for _, name := range foreign {
				resp.Header.Del(name)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil { // the caller has gone; or this server ends, and an empty answer would say that all went well
				panic(http.ErrAbortHandler)
			}
			g.refusals.answer(w, r, unreached(clean(r.PathValue("backend"), maxGuestText), err))
		},
	}
	duplex.Serve(w, r, proxy.ServeHTTP)
	return nil
}
