package server

import (
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/duplex"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// guestRoutes hands calls on to the guests of sprites, which it wakes: commands, files,
// services, ports and proxied connections.
type guestRoutes struct {
	host   *sprite.Host
	guests *guestPool
	relays *quota // WebSockets
	log    *slog.Logger
}

// forward hands a request on to the sprite's guest, at a fixed path.
func (g *guestRoutes) forward(path string, sh shape) handlerFunc { return g.forwardTo(fixed(path), sh) }

// forwardTo hands a request on to the sprite's guest, and the answer back. Only the length and
// a file's ETag get through of the guest's headers.
func (g *guestRoutes) forwardTo(path guestPath, sh shape) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		to, err := path(r)
		if err != nil {
			return err
		}
		lease, err := g.host.Use(r.Context(), r.PathValue("name"), purpose(to))
		if err != nil {
			return err
		}
		defer lease.Release()
		duplex.Serve(w, r, func(w http.ResponseWriter, r *http.Request) { err = g.send(w, r, lease, to, sh) })
		return err
	}
}

// send hands a request on to the guest of a sprite in use, at an escaped path.
func (g *guestRoutes) send(w http.ResponseWriter, r *http.Request, lease *sprite.Lease, path string, sh shape) error {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, guestURL(path, r.URL.RawQuery), r.Body)
	if err != nil {
		return err
	}
	req.ContentLength = r.ContentLength
	if r.ContentLength == 0 {
		req.Body = http.NoBody
	}
	for _, key := range []string{"Content-Type", "Accept", "If-Match", "If-None-Match"} {
		if v := r.Header.Get(key); v != "" {
			req.Header.Set(key, v)
		}
	}
	resp, err := g.guests.get(lease.Sandbox()).send(req)
	if err != nil {
		return endedOr(lease, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return guestFailure(resp, sh.files)
	}
	passBody(w, resp, sh)
	return nil
}

// getExec is the list of sessions, or with an upgrade a new one. A sprite that is
// not awake has no sessions, and is not woken to say so.
func (g *guestRoutes) getExec(w http.ResponseWriter, r *http.Request) error {
	if isUpgrade(r) {
		if !principalOf(r).may(exec) {
			return principalOf(r).lacks(exec)
		}
		return g.relayTo("exec", fixed("exec"))(w, r)
	}
	if !principalOf(r).may(read) {
		return principalOf(r).lacks(read)
	}
	sandbox, err := g.host.Live(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if sandbox == nil {
		writeJSON(w, http.StatusOK, sprites.SessionList{Sessions: []sprites.Session{}})
		return nil
	}
	r.URL.RawQuery = "" // a list takes none, an id would make it something else
	return g.forward("exec", document)(w, r)
}

// headExec is asked by clients for the version in the headers.
func (g *guestRoutes) headExec(w http.ResponseWriter, r *http.Request) error {
	if _, err := g.host.Get(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// guestPath finds the guest's escaped path for a request, below /v1/.
type guestPath func(*http.Request) (string, error)

func fixed(path string) guestPath {
	return func(*http.Request) (string, error) { return path, nil }
}

var sessionID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`) })

func guestSession(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if !sessionID().MatchString(id) {
		return "", fail.New("session_not_found", "there is no such session", "see what there is with: cove session list")
	}
	return "exec/" + url.PathEscape(id), nil
}

func guestKill(r *http.Request) (string, error) {
	path, err := guestSession(r)
	return path + "/kill", err
}

var serviceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,62}$`) })

// guestService is the guest's path for the service that a request names, and rest after it.
func guestService(rest string) guestPath {
	return func(r *http.Request) (string, error) {
		name := r.PathValue("service")
		if !serviceName().MatchString(name) {
			return "", fail.New("service_not_found", "there is no such service", "see what there is with: cove service list")
		}
		return "services/" + url.PathEscape(name) + rest, nil
	}
}

// purpose is why a request keeps its sprite awake.
func purpose(path string) string {
	word, _, _ := strings.Cut(path, "/")
	return word
}
