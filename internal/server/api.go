package server

import (
	"cmp"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/build"
	"github.com/cove-dev/cove/internal/server/harness"
	"github.com/cove-dev/cove/internal/server/mcpserver"
	"github.com/cove-dev/cove/internal/server/web"
	"github.com/cove-dev/cove/internal/server/webhook"
	"github.com/cove-dev/cove/internal/shim/userns"
	"github.com/cove-dev/cove/sprites"
)

// api answers every request: at a sprite's URL, or by a route. It has the groups of routes,
// and what several of them share.
type api struct {
	hosts    *hostnames
	refusals refusals
	access   *access
	calls    *quota // of routes
	relays   *quota // WebSockets into sprites, and watches of the list of sprites
	guests   *guestPool
	ingress  *ingress
	groups   groups
	site     http.Handler // the web page
}

// newAPI makes the API of a server with these host names and this description. The secret is
// the token of its owner; sender has started.
func (s *Server) newAPI(hosts *hostnames, info sprites.ServerInfo, secret string, sender *webhook.Sender) *api {
	most, turns := cmp.Or(s.MaxStreams, 1000), newTurns()
	a := &api{
		hosts:    hosts,
		refusals: refusals{log: s.Logger, ending: s.ctx},
		access: &access{
			tokens: s.Store.Tokens, sprites: s.Store.Sprites, log: s.Logger,
			owners: []principal{newPrincipal("inside", s.secret), newPrincipal("owner", secret)},
		},
		calls:  &quota{what: "calls", max: 3 * most},
		relays: &quota{what: "connections into sprites", max: most},
		guests: &guestPool{},
	}
	a.access.web = &webSessions{sessions: s.Store.WebSessions, access: a.access, rights: &a.access.rights, hosts: hosts, key: newWebKey(), log: s.Logger, turns: turns}
	a.access.web.streams, a.access.web.requests = &quota{what: "live pages", max: min(most, maxLive)}, &quota{what: "requests of pages", max: maxPages}
	a.site = (&web.Site{API: s.newLoop(), Sessions: a.access.web, Logger: s.Logger, Version: s.Version, SameOrigin: hosts.checkOrigin}).Handler()
	rights, labels := &a.access.rights, &labelRights{connectors: s.Store.Connectors, host: s.Host}
	confined := &confines{sprites: s.Store.Sprites, jobs: s.Store.Jobs, profiles: s.Store.Profiles}
	a.groups = groups{
		version:     version(info, s.Host),
		installs:    listInstalls(s.Host),
		sandboxLogs: sandboxLogs(s.Host),
		mcp:         &mcpRoutes{access: a.access, loop: s.newLoop(), ending: s.ctx, sessions: mcpserver.HTTP{Idle: s.MCPIdle}},
		tokens:      &tokenRoutes{tokens: s.Store.Tokens, profiles: s.Store.Profiles, rights: rights},
		secrets:     &secretRoutes{secrets: s.Store.Secrets, host: s.Host},
		connectors:  &connectorRoutes{connectors: s.Store.Connectors, host: s.Host, labels: labels},
		webhooks:    &webhookRoutes{webhooks: s.Store.Webhooks, secrets: s.Store.Secrets, sender: sender},
		backends:    &backendRoutes{backends: s.Store.Backends, refusals: a.refusals},
		list:        &spriteList{host: s.Host, sprites: s.Store.Sprites, watchers: a.relays, patience: cmp.Or(s.Heartbeat, watchInterval)},
		sprites:     &spriteRoutes{host: s.Host, image: s.DefaultImage, jobs: s.Store.Jobs, labels: labels, rights: rights, confined: confined},
		visits:      &visits{host: s.Host, settings: s.Store.Settings, access: a.access, hosts: hosts},
		guest:       &guestRoutes{host: s.Host, guests: a.guests, relays: a.relays, log: s.Logger},
		archives:    &archiveRoutes{host: s.Host, labels: labels, imports: &quota{what: "imports", max: maxImports}, log: s.Logger},
		images:      &imageRoutes{images: s.Images, image: s.DefaultImage, sprites: s.Store.Sprites, host: s.Host, refusals: a.refusals},
		checkpoints: &checkpointRoutes{host: s.Host, refusals: a.refusals},
		policies:    &policyRoutes{host: s.Host, confined: confined},
		jobs:        &jobRoutes{manager: s.Jobs, image: s.DefaultImage, jobs: s.Store.Jobs, profiles: s.Store.Profiles, host: s.Host, access: a.access, labels: labels, confined: confined, turns: turns},
		search:      &search{host: s.Host, jobs: s.Store.Jobs, running: &quota{what: "searches", max: maxSearches}},
		sockets: &socketRoutes{
			feed: &feed{changes: s.Store.Changes, jobs: s.Store.Jobs, profiles: s.Store.Profiles, environments: s.Store.Environments, access: a.access},
			loop: s.newLoop(), sockets: &quota{what: "sockets", max: min(most, maxSockets)}, pages: &quota{what: "open pages", max: most},
			every: cmp.Or(s.Heartbeat, pingInterval), log: s.Logger,
		},
		web:      a.access.web,
		profiles: &profileRoutes{profiles: s.Store.Profiles, jobs: s.Store.Jobs, manager: s.Jobs, host: s.Host, client: s.Client(), settings: s.Store.Settings, backends: s.Store.Backends},
	}
	a.groups.environments = &environmentRoutes{manager: s.Jobs, environments: s.Store.Environments, refusals: a.refusals}
	a.groups.review = reviewRoutes{a.groups.jobs, s.Store.Comments, &quota{what: "diffs of jobs", max: maxDiffs}}
	a.groups.executors = &executorRoutes{
		harness:  &harness.Harness{Client: s.Client(), Settings: s.Store.Settings, Logger: s.Logger, Secret: s.Store.Secrets.Value, NamesOnly: s.Host.NamesOnly},
		refusals: a.refusals, running: &quota{what: "tests of executors", max: maxTests},
		backends: s.Store.Backends, jobs: s.Store.Jobs, client: s.Client(),
	}
	a.groups.executors.harness.Start(s.ctx)
	if s.Images != nil {
		a.groups.images.builder = &build.Builder{
			Dir: filepath.Join(s.Dir, "build"), Images: s.Images, Steps: s.Store.Builds, Host: s.Host, Client: s.Client(), UserNS: userns.Inside(), Logger: s.Logger,
		}
		if err := a.groups.images.builder.Start(); err != nil {
			s.Logger.Error("removing what builds have left", "err", err)
		}
	}
	a.ingress = &ingress{
		host: s.Host, guests: a.guests, visits: a.groups.visits, rights: rights, refusals: a.refusals, ending: s.ctx,
		visitors: &quota{what: "visits of sprites' URLs", max: most}, // of their own: anybody may come to a public URL
	}
	return a
}

// end ends the sessions of MCP clients, and waits for WebSockets, which http.Server.Shutdown
// does not know. Their context has ended already.
func (a *api) end() {
	a.groups.mcp.close()
	a.groups.sockets.sockets.wait()
	a.groups.sockets.pages.wait()
	a.relays.wait()
	a.ingress.wait()
}

// close closes the connections to guests, once no request is left.
func (a *api) close() {
	a.groups.executors.harness.Close()
	a.guests.close()
}

// handler is the whole API.
func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range a.groups.routes() {
		mux.Handle(rt.pattern, a.on(rt))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fields(r.Header) > maxFields {
			watchBody(r)
			w.Header().Set("Connection", "close")
			a.refusals.answer(w, r, fail.New("too_large", fmt.Sprintf("a request has at most %d header fields", maxFields), ""))
			return
		}
		if name, ok := a.hosts.spriteOf(r.Host); ok {
			if err := a.ingress.serve(w, r, name); err != nil {
				a.ingress.answer(w, r, err)
			}
			return
		}
		watchBody(r)
		if web.Paths(r) {
			if err := a.hosts.checkName(r); err != nil {
				a.refusals.answer(w, r, err)
				return
			}
			a.site.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Sprite-Version", sprites.Version)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		h.Set("Cache-Control", "no-store")
		if err := a.hosts.checkOrigin(r); err != nil {
			a.refusals.answer(w, r, err)
			return
		}
		if !plainPath(r.URL.EscapedPath()) { // the mux would redirect to a cleaned one
			a.refusals.answer(w, r, fail.New("not_found", "there is nothing at this path", ""))
			return
		}
		// Go's own texts for an unknown path and a wrong method are not JSON.
		if fallback, pattern := mux.Handler(r); pattern == "" {
			a.unrouted(w, r, fallback)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// on wraps a route's handler in the steps that all routes share.
func (a *api) on(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.call(rt, w, r); err != nil {
			a.refusals.answer(w, r, err)
		}
	})
}

func (a *api) call(rt route, w http.ResponseWriter, r *http.Request) error {
	find := func() (principal, error) { return a.access.authorize(r, rt.verb) }
	return a.access.rights.serve(w, r, find, func(w http.ResponseWriter, r *http.Request) error {
		done, err := a.calls.add(principalOf(r))
		if err != nil {
			return err
		}
		defer done()
		return rt.handle(w, r)
	})
}

// plainPath reports whether every segment of an escaped path is something.
func plainPath(path string) bool {
	if !strings.HasPrefix(path, "/") {
		return false
	}
	for seg := range strings.SplitSeq(path[1:], "/") {
		if seg == "" || seg == "." || seg == ".." {
			return false
		}
	}
	return true
}

// unrouted answers for a path that has no route, or not with this method.
func (a *api) unrouted(w http.ResponseWriter, r *http.Request, fallback http.Handler) {
	rec := &statusRecorder{header: http.Header{}}
	fallback.ServeHTTP(rec, r)
	if rec.status != http.StatusMethodNotAllowed {
		a.refusals.answer(w, r, fail.New("not_found", "there is nothing at this path", ""))
		return
	}
	w.Header().Set("Allow", rec.header.Get("Allow"))
	answerEarly(a.refusals.ending, w, r, func() {
		writeJSON(w, http.StatusMethodNotAllowed, sprites.ErrorBody{
			Code: "method_not_allowed", Message: "use " + rec.header.Get("Allow") + " here",
		})
	})
}

// statusRecorder is a ResponseWriter that keeps the header only.
type statusRecorder struct {
	header http.Header
	status int
}

func (r *statusRecorder) Header() http.Header         { return r.header }
func (r *statusRecorder) Write(p []byte) (int, error) { return len(p), nil }
func (r *statusRecorder) WriteHeader(status int)      { r.status = status }
