package server

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// handlerFunc answers a request, or returns an error before it has written
// anything.
type handlerFunc func(http.ResponseWriter, *http.Request) error

// The verbs of routes. anyone is any valid token.
const (
	anyone = ""
	read   = cove.VerbRead
	write  = cove.VerbWrite
	exec   = cove.VerbExec
	admin  = cove.VerbAdmin
)

// route is one line of the API: a pattern of net/http, the verb that a token
// needs for it, and what answers. Where the path has {name} the token must reach
// that sprite.
type route struct {
	pattern string
	verb    string
	handle  handlerFunc
}

// routes is the whole surface.
func (s *Server) routes() []route {
	const one = "/v1/sprites/{name}"
	return []route{
		{"GET /v1/version", anyone, s.getVersion},

		{"GET /mcp", anyone, s.serveMCP}, // what the tools may do is decided call by call
		{"POST /mcp", anyone, s.serveMCP},
		{"DELETE /mcp", anyone, s.serveMCP},

		{"GET /v1/tokens", admin, s.listTokens},
		{"POST /v1/tokens", admin, s.createToken},
		{"DELETE /v1/tokens/{id}", admin, s.deleteToken},

		{"GET /v1/secrets", admin, s.listSecrets},
		{"PUT /v1/secrets/{secret}", admin, s.putSecret},
		{"DELETE /v1/secrets/{secret}", admin, s.deleteSecret},

		{"GET /v1/connectors", admin, s.listConnectors},
		{"GET /v1/connectors/{connector}", admin, s.getConnector},
		{"PUT /v1/connectors/{connector}", admin, s.putConnector},
		{"DELETE /v1/connectors/{connector}", admin, s.deleteConnector},
		{"POST /v1/connectors/{connector}/grants", admin, s.grantConnector},
		{"DELETE /v1/connectors/{connector}/grants", admin, s.revokeConnector},

		{"GET /v1/backends", admin, s.listBackends},
		{"PUT /v1/backends/{backend}", admin, s.putBackend},
		{"DELETE /v1/backends/{backend}", admin, s.deleteBackend},
		{"/v1/backends/{backend}/{rest...}", admin, s.toBackend},

		{"GET /v1/sprites", read, s.listSprites},
		{"POST /v1/sprites", write, s.createSprite},
		{"POST /v1/sprites/import", write, s.importSprite},
		{"GET " + one, read, s.getSprite},
		{"PUT " + one, write, s.updateSprite},
		{"DELETE " + one, write, s.deleteSprite},
		{"GET " + one + "/check", read, s.checkSprite},
		{"POST " + one + "/visit", exec, s.postVisit},
		{"POST " + one + "/restart", write, s.restartSprite},
		{"POST " + one + "/upgrade", write, s.upgradeSprite},
		{"POST " + one + "/suspend", write, s.suspendSprite},
		{"POST " + one + "/wake", exec, s.wakeSprite},

		{"GET " + one + "/exec", anyone, s.getExec}, // exec with an upgrade, read without
		{"HEAD " + one + "/exec", read, s.headExec},
		{"POST " + one + "/exec", exec, s.postExec},
		{"GET " + one + "/exec/{id}", exec, s.relayTo("exec", s.guestSession)},
		{"POST " + one + "/exec/{id}/kill", exec, s.forwardTo(s.guestKill, lines)},
		{"GET " + one + "/proxy", exec, s.proxySprite},
		{"GET " + one + "/ports/watch", read, s.relayTo("ports", fixed("ports/watch"))},

		{"GET " + one + "/fs/read", read, s.forward("fs/read", file)},
		{"GET " + one + "/fs/list", read, s.forward("fs/list", fileJSON)},
		{"GET " + one + "/fs/watch", read, s.relayTo("watch", fixed("fs/watch"))},
		{"PUT " + one + "/fs/write", write, s.forward("fs/write", fileJSON)},
		{"DELETE " + one + "/fs/delete", write, s.forward("fs/delete", fileJSON)},
		{"POST " + one + "/fs/rename", write, s.forward("fs/rename", fileJSON)},
		{"POST " + one + "/fs/copy", write, s.forward("fs/copy", fileJSON)},
		{"POST " + one + "/fs/chmod", write, s.forward("fs/chmod", fileJSON)},
		{"POST " + one + "/fs/chown", write, s.forward("fs/chown", fileJSON)},

		{"GET " + one + "/services", read, s.forward("services", document)},
		{"POST " + one + "/services/signal", exec, s.forward("services/signal", document)},
		{"GET " + one + "/services/{service}", read, s.forwardTo(guestService(""), document)},
		{"PUT " + one + "/services/{service}", exec, s.forwardTo(guestService(""), lines)},
		{"DELETE " + one + "/services/{service}", exec, s.forwardTo(guestService(""), document)},
		{"POST " + one + "/services/{service}/start", exec, s.forwardTo(guestService("/start"), lines)},
		{"POST " + one + "/services/{service}/stop", exec, s.forwardTo(guestService("/stop"), lines)},
		{"POST " + one + "/services/{service}/restart", exec, s.forwardTo(guestService("/restart"), lines)},
		{"GET " + one + "/services/{service}/logs", read, s.forwardTo(guestService("/logs"), lines)},

		{"POST " + one + "/checkpoint", write, s.postCheckpoint},
		{"GET " + one + "/checkpoints", read, s.listCheckpoints},
		{"POST " + one + "/checkpoints/verify", read, s.verifyCheckpoints},
		{"POST " + one + "/checkpoints/prune", write, s.pruneCheckpoints},
		{"GET " + one + "/checkpoints/{checkpoint}", read, s.getCheckpoint},
		{"GET " + one + "/checkpoints/{checkpoint}/diff", read, s.diffCheckpoint},
		{"DELETE " + one + "/checkpoints/{checkpoint}", write, s.deleteCheckpoint},
		{"POST " + one + "/checkpoints/{checkpoint}/restore", write, s.postRestore},
		{"POST " + one + "/fork", write, s.forkSprite},
		{"GET " + one + "/export", write, s.exportSprite}, // and read

		{"GET " + one + "/policy/network", read, s.getPolicy},
		{"POST " + one + "/policy/network", write, s.postPolicy},
		{"GET " + one + "/policy/test", read, s.testPolicy},
		{"GET " + one + "/policy/log", read, s.policyLog},
		{"GET " + one + "/connectors/log", read, s.connectorLog},
		{"GET " + one + "/sandbox/logs", admin, s.sandboxLogs},

		{"GET /v1/installs", read, s.listInstalls},

		{"GET /v1/jobs", read, s.listJobs},
		{"POST /v1/jobs", write, s.createJob},
		{"POST /v1/jobs/preview", write, s.previewJob},
		{"GET /v1/jobs/{id}", read, s.getJob},
		{"DELETE /v1/jobs/{id}", write, s.deleteJob},
		{"GET /v1/jobs/{id}/events", read, s.jobEvents},
		{"POST /v1/jobs/{id}/start", write, s.startJob},
		{"POST /v1/jobs/{id}/stop", write, s.stopJob},
		{"POST /v1/jobs/{id}/send", exec, s.sendJob},
		{"POST /v1/jobs/{id}/answer", exec, s.answerJob},
		{"POST /v1/jobs/{id}/retry", write, s.retryJob},
		{"POST /v1/jobs/{id}/resume", write, s.resumeJob},
		{"POST /v1/jobs/{id}/pulled", write, s.pulledJob},
		{"POST /v1/jobs/gc", write, s.collectJobs},

		// The rest of the protocol, which this server does not have yet. (control
		// is not here: clients must see 404 to do without it.)
		{one + "/policy", anyone, notAvailable}, // else the mux would redirect
		{one + "/policy/{rest...}", anyone, notAvailable},
	}
}

func notAvailable(http.ResponseWriter, *http.Request) error {
	return fail.New("not_available", "this server does not have that part of the protocol", "")
}

// handler is the whole API.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		mux.Handle(rt.pattern, s.on(rt))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fields(r.Header) > maxFields {
			w.Header().Set("Connection", "close")
			s.answer(w, r, fail.New("too_large", fmt.Sprintf("a request has at most %d header fields", maxFields), ""))
			return
		}
		if name, ok := s.spriteOf(r.Host); ok {
			if err := s.ingress(w, r, name); err != nil {
				s.answerVisitor(w, r, err)
			}
			return
		}
		watchBody(r)
		h := w.Header()
		h.Set("Sprite-Version", sprites.Version)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		h.Set("Cache-Control", "no-store")
		if err := s.checkOrigin(r); err != nil {
			s.answer(w, r, err)
			return
		}
		if !plainPath(r.URL.EscapedPath()) { // the mux would redirect to a cleaned one
			s.answer(w, r, fail.New("not_found", "there is nothing at this path", ""))
			return
		}
		// Go's own texts for an unknown path and a wrong method are not JSON.
		if fallback, pattern := mux.Handler(r); pattern == "" {
			s.unrouted(w, r, fallback)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// on wraps a route's handler in what all have in common.
func (s *Server) on(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.call(rt, w, r); err != nil {
			s.answer(w, r, err)
		}
	})
}

func (s *Server) call(rt route, w http.ResponseWriter, r *http.Request) error {
	find := func() (principal, error) { return s.authorize(r, rt.verb) }
	return s.byRight(w, r, find, func(w http.ResponseWriter, r *http.Request) error {
		done, err := s.calls.add(principalOf(r))
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
func (s *Server) unrouted(w http.ResponseWriter, r *http.Request, fallback http.Handler) {
	rec := &statusRecorder{header: http.Header{}}
	fallback.ServeHTTP(rec, r)
	if rec.status != http.StatusMethodNotAllowed {
		s.answer(w, r, fail.New("not_found", "there is nothing at this path", ""))
		return
	}
	w.Header().Set("Allow", rec.header.Get("Allow"))
	writeJSON(w, http.StatusMethodNotAllowed, sprites.ErrorBody{
		Code: "method_not_allowed", Message: "use " + rec.header.Get("Allow") + " here",
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
