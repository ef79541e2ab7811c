package server

import (
	"net/http"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
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
// needs for it, and what answers. If the path has {name}, the token must reach
// that sprite.
type route struct {
	pattern string
	verb    string
	handle  handlerFunc
}

// groups are the groups of routes: each is a type, or a function, in a file of its own.
type groups struct {
	version     handlerFunc
	installs    handlerFunc
	sandboxLogs handlerFunc

	mcp         *mcpRoutes
	tokens      *tokenRoutes
	secrets     *secretRoutes
	connectors  *connectorRoutes
	webhooks    *webhookRoutes
	backends    *backendRoutes
	list        *spriteList
	sprites     *spriteRoutes
	visits      *visits
	guest       *guestRoutes
	archives    *archiveRoutes
	images      *imageRoutes
	checkpoints *checkpointRoutes
	policies    *policyRoutes
	jobs        *jobRoutes
	search      *search
	profiles    *profileRoutes
	executors   *executorRoutes
	sockets     *socketRoutes
	web         *webSessions
	review      reviewRoutes

	environments *environmentRoutes
}

// routes is the whole surface.
func (g *groups) routes() []route {
	const one = "/v1/sprites/{name}"
	return []route{
		{"GET /v1/version", anyone, g.version},
		{"GET /v1/openapi.json", anyone, describeAPI},
		{"GET /v1/ws", anyone, g.sockets.serve}, // each request has the verb of its route

		{"POST /v1/web/links", anyone, g.web.link}, // the browser gets the rights of the token
		{"GET /v1/web/sessions", anyone, g.web.list},
		{"DELETE /v1/web/sessions", anyone, g.web.deleteAll},
		{"DELETE /v1/web/sessions/{session}", anyone, g.web.delete}, // its own, but for an administrator

		{"GET /mcp", anyone, g.mcp.serve}, // the rights of the tools are decided call by call
		{"POST /mcp", anyone, g.mcp.serve},
		{"DELETE /mcp", anyone, g.mcp.serve},

		{"GET /v1/tokens", admin, g.tokens.list},
		{"POST /v1/tokens", admin, g.tokens.create},
		{"DELETE /v1/tokens/{id}", admin, g.tokens.delete},

		{"GET /v1/secrets", admin, g.secrets.list},
		{"PUT /v1/secrets/{secret}", admin, g.secrets.put},
		{"DELETE /v1/secrets/{secret}", admin, g.secrets.delete},

		{"GET /v1/connectors", admin, g.connectors.list},
		{"GET /v1/connectors/{connector}", admin, g.connectors.get},
		{"PUT /v1/connectors/{connector}", admin, g.connectors.put},
		{"DELETE /v1/connectors/{connector}", admin, g.connectors.delete},
		{"POST /v1/connectors/{connector}/grants", admin, g.connectors.grant},
		{"DELETE /v1/connectors/{connector}/grants", admin, g.connectors.revoke},

		{"GET /v1/webhooks", admin, g.webhooks.list},
		{"PUT /v1/webhooks/{webhook}", admin, g.webhooks.put},
		{"DELETE /v1/webhooks/{webhook}", admin, g.webhooks.delete},
		{"POST /v1/webhooks/{webhook}/test", admin, g.webhooks.test},
		{"GET /v1/webhooks/{webhook}/log", admin, g.webhooks.log},

		{"GET /v1/backends", admin, g.backends.list},
		{"PUT /v1/backends/{backend}", admin, g.backends.put},
		{"DELETE /v1/backends/{backend}", admin, g.backends.delete},
		{"/v1/backends/{backend}/{rest...}", admin, g.backends.pass},

		{"GET /v1/sprites", read, g.list.serve},
		{"POST /v1/sprites", write, g.sprites.create},
		{"POST /v1/sprites/import", write, g.archives.importSprite},
		{"GET " + one, read, g.sprites.get},
		{"PUT " + one, write, g.sprites.update},
		{"DELETE " + one, write, g.sprites.delete},
		{"GET " + one + "/check", read, g.sprites.check},
		{"GET " + one + "/stats", read, g.sprites.stats},
		{"POST " + one + "/visit", exec, g.visits.post},
		{"POST " + one + "/restart", write, g.sprites.restart},
		{"POST " + one + "/upgrade", write, g.sprites.upgrade},
		{"POST " + one + "/suspend", write, g.sprites.suspend},
		{"POST " + one + "/wake", exec, g.sprites.wake},

		{"GET " + one + "/exec", anyone, g.guest.getExec}, // exec with an upgrade, read without
		{"HEAD " + one + "/exec", read, g.guest.headExec},
		{"POST " + one + "/exec", exec, g.guest.postExec},
		{"GET " + one + "/exec/{id}", exec, g.guest.relayTo("exec", guestSession)},
		{"POST " + one + "/exec/{id}/kill", exec, g.guest.forwardTo(guestKill, lines)},
		{"GET " + one + "/proxy", exec, g.guest.proxy},
		{"GET " + one + "/ports/watch", read, g.guest.relayTo("ports", fixed("ports/watch"))},

		{"GET " + one + "/fs/read", read, g.guest.forward("fs/read", file)},
		{"GET " + one + "/fs/list", read, g.guest.forward("fs/list", fileJSON)},
		{"GET " + one + "/fs/watch", read, g.guest.relayTo("watch", fixed("fs/watch"))},
		{"PUT " + one + "/fs/write", write, g.guest.forward("fs/write", fileJSON)},
		{"DELETE " + one + "/fs/delete", write, g.guest.forward("fs/delete", fileJSON)},
		{"POST " + one + "/fs/rename", write, g.guest.forward("fs/rename", fileJSON)},
		{"POST " + one + "/fs/copy", write, g.guest.forward("fs/copy", fileJSON)},
		{"POST " + one + "/fs/chmod", write, g.guest.forward("fs/chmod", fileJSON)},
		{"POST " + one + "/fs/chown", write, g.guest.forward("fs/chown", fileJSON)},

		{"GET " + one + "/services", read, g.guest.forward("services", document)},
		{"POST " + one + "/services/signal", exec, g.guest.forward("services/signal", document)},
		{"GET " + one + "/services/{service}", read, g.guest.forwardTo(guestService(""), document)},
		{"PUT " + one + "/services/{service}", exec, g.guest.forwardTo(guestService(""), lines)},
		{"DELETE " + one + "/services/{service}", exec, g.guest.forwardTo(guestService(""), document)},
		{"POST " + one + "/services/{service}/start", exec, g.guest.forwardTo(guestService("/start"), lines)},
		{"POST " + one + "/services/{service}/stop", exec, g.guest.forwardTo(guestService("/stop"), lines)},
		{"POST " + one + "/services/{service}/restart", exec, g.guest.forwardTo(guestService("/restart"), lines)},
		{"GET " + one + "/services/{service}/logs", read, g.guest.forwardTo(guestService("/logs"), lines)},

		{"POST " + one + "/checkpoint", write, g.checkpoints.create},
		{"GET " + one + "/checkpoints", read, g.checkpoints.list},
		{"POST " + one + "/checkpoints/verify", read, g.checkpoints.verify},
		{"POST " + one + "/checkpoints/prune", write, g.checkpoints.prune},
		{"GET " + one + "/checkpoints/{checkpoint}", read, g.checkpoints.get},
		{"GET " + one + "/checkpoints/{checkpoint}/diff", read, g.checkpoints.diff},
		{"DELETE " + one + "/checkpoints/{checkpoint}", write, g.checkpoints.delete},
		{"POST " + one + "/checkpoints/{checkpoint}/restore", write, g.checkpoints.restore},
		{"POST " + one + "/fork", write, g.sprites.fork},
		{"GET " + one + "/export", write, g.archives.exportSprite}, // and read

		{"GET " + one + "/policy/network", read, g.policies.get},
		{"POST " + one + "/policy/network", write, g.policies.post},
		{"GET " + one + "/policy/test", read, g.policies.test},
		{"GET " + one + "/policy/log", read, g.policies.log},
		{"GET " + one + "/connectors/log", read, g.connectors.log},
		{"GET " + one + "/sandbox/logs", admin, g.sandboxLogs},

		{"GET /v1/images", read, g.images.on(g.images.list)},
		{"GET /v1/images/{image...}", read, g.images.on(g.images.get)},
		{"DELETE /v1/images/{image...}", admin, g.images.on(g.images.delete)},
		{"POST /v1/images/pull", admin, g.images.on(g.images.pull)},
		{"POST /v1/images/import", admin, g.images.on(g.images.importArchive)},
		{"POST /v1/images/build", admin, g.images.on(g.images.build)},
		{"POST /v1/images/prune", admin, g.images.on(g.images.prune)},
		{"POST /v1/images/save", admin, g.images.on(g.images.save)},
		{"POST /v1/images/tag", admin, g.images.on(g.images.tag)},
		{"POST /v1/images/push", admin, g.images.on(g.images.push)},
		{"POST /v1/images/commit", admin, g.images.on(g.images.commit)},

		{"GET /v1/installs", read, g.installs},

		{"GET /v1/profiles", read, g.profiles.list},
		{"GET /v1/profiles/{profile}", read, g.profiles.get},
		{"PUT /v1/profiles/{profile}", admin, g.profiles.put},
		{"DELETE /v1/profiles/{profile}", admin, g.profiles.delete},
		{"POST /v1/profiles/{profile}/apply", admin, g.profiles.apply},
		{"PUT /v1/default-profile", admin, g.profiles.setDefault},

		{"GET /v1/executors", admin, g.executors.list},
		{"POST /v1/executors/test", admin, g.executors.test},
		{"GET /api/v1/sprites/status", admin, g.executors.list}, // other names of the same calls
		{"POST /api/v1/sprites/test", admin, g.executors.test},
		{"GET /api/v1/sprites/instances", read, g.environments.list},
		{"DELETE /api/v1/sprites/instances/{environment}", write, g.environments.delete},
		{"POST /api/v1/sprites/instances/destroy", write, g.environments.destroyAll},

		{"GET /v1/environments", read, g.environments.list},
		{"GET /v1/environments/orphans", read, g.environments.orphans},
		{"POST /v1/environments/orphans/destroy", write, g.environments.destroyOrphans},
		{"GET /v1/environments/{environment}", read, g.environments.get},
		{"DELETE /v1/environments/{environment}", write, g.environments.delete},
		{"POST /v1/environments/destroy", write, g.environments.destroyAll},

		{"GET /v1/jobs", read, g.jobs.list},
		{"POST /v1/jobs", write, g.jobs.create},
		{"POST /v1/jobs/preview", write, g.jobs.preview},
		{"GET /v1/jobs/{id}", read, g.jobs.get},
		{"DELETE /v1/jobs/{id}", write, g.jobs.delete},
		{"GET /v1/jobs/{id}/plan", read, g.review.plan},
		{"GET /v1/jobs/{id}/events", read, jobRecords{g.jobs}.events},
		{"GET /v1/jobs/{id}/steps", read, jobRecords{g.jobs}.steps},
		{"GET /v1/jobs/{id}/diff", read, g.review.diff},
		{"GET /v1/jobs/{id}/comments", read, g.review.comments},
		{"POST /v1/jobs/{id}/comments", write, g.review.addComment},
		{"DELETE /v1/jobs/{id}/comments", write, g.review.deleteComments},
		{"POST /v1/jobs/{id}/start", write, g.jobs.start},
		{"POST /v1/jobs/{id}/stop", write, g.jobs.stop},
		{"POST /v1/jobs/{id}/send", exec, g.jobs.send},
		{"POST /v1/jobs/{id}/answer", exec, g.jobs.answer},
		{"POST /v1/jobs/{id}/retry", write, g.jobs.retry},
		{"POST /v1/jobs/{id}/resume", write, g.jobs.resume},
		{"POST /v1/jobs/{id}/pulled", write, g.jobs.pulled},
		{"POST /v1/jobs/{id}/publish", write, g.jobs.publish},
		{"POST /v1/jobs/{id}/seen", write, g.jobs.seen},
		{"DELETE /v1/jobs/{id}/seen", write, g.jobs.seen},
		{"POST /v1/jobs/gc", write, g.jobs.collect},

		{"GET /v1/search", read, g.search.serve},

		// The rest of the protocol, which this server does not have yet. (control
		// is not here: clients must see 404 to do without it.)
		{one + "/policy", anyone, notAvailable}, // else the mux would redirect
		{one + "/policy/{rest...}", anyone, notAvailable},
	}
}

// methods are the calls that a socket (GET /v1/ws) can make, by their names there.
var methods = map[string]method{
	"jobs.list":    {"GET /v1/jobs", []string{"sprite", "backend", "state", "group", "q", "label", "profile", "repository", "by", "of", "limit", "after", "counts"}},
	"jobs.create":  {"POST /v1/jobs", nil},
	"jobs.preview": {"POST /v1/jobs/preview", nil},
	"jobs.get":     {"GET /v1/jobs/{id}", []string{"wait", "while"}},
	"jobs.delete":  {"DELETE /v1/jobs/{id}", []string{"force"}},
	"jobs.events":  {"GET /v1/jobs/{id}/events", []string{"from", "follow"}},
	"jobs.steps":   {"GET /v1/jobs/{id}/steps", []string{"follow"}},
	"jobs.start":   {"POST /v1/jobs/{id}/start", nil},
	"jobs.stop":    {"POST /v1/jobs/{id}/stop", nil},
	"jobs.send":    {"POST /v1/jobs/{id}/send", nil},
	"jobs.answer":  {"POST /v1/jobs/{id}/answer", nil},
	"jobs.retry":   {"POST /v1/jobs/{id}/retry", nil},
	"jobs.resume":  {"POST /v1/jobs/{id}/resume", nil},
	"jobs.publish": {"POST /v1/jobs/{id}/publish", nil},

	"profiles.list": {"GET /v1/profiles", nil},
	"profiles.get":  {"GET /v1/profiles/{profile}", nil},

	"sprites.test":   {"POST /v1/executors/test", nil},
	"sprites.status": {"GET /v1/executors", nil},

	"sprites.instances.list":        {"GET /v1/environments", []string{"profile", "backend", "state"}},
	"sprites.instances.destroy":     {"DELETE /v1/environments/{environment}", []string{"force"}},
	"sprites.instances.destroy_all": {"POST /v1/environments/destroy", nil},
}

func notAvailable(http.ResponseWriter, *http.Request) error {
	return fail.New("not_available", "this server does not have that part of the protocol", "")
}
