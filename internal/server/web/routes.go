package web

import (
	"context"
	"net/http"
	"strings"
)

// route is one page, or a part of one: a pattern of net/http, and what answers.
type route struct {
	pattern string
	handle  handler
}

// streams reports whether an answer may last for as long as its page is open.
func (rt route) streams() bool {
	return strings.HasSuffix(rt.pattern, "/live") || strings.HasSuffix(rt.pattern, "/socket")
}

// routes are all of them. A path that ends in /live is a stream of a page's changes.
func routes() []route {
	const one = "/web/sprites/{name}"
	all := []route{
		{"GET /web/alive", alive},
		{"GET " + aliveStream, aliveLive},
		{"POST /web/logout", logout},
		{"GET /web/components", components},

		// Lists: now.go, jobs.go, sprites.go, search.go.
		{"GET /web", now},
		{"GET /web/now/live", nowLive},
		{"POST /web/now/{id}/answer", nowAnswer},
		{"POST /web/now/{id}/send", nowSend},
		{"POST /web/now/{id}/seen", nowSeen},
		{"POST /web/now/{id}/unseen", nowUnseen},
		{"GET /web/jobs", jobs},
		{"GET /web/lists/jobs/live", jobsLive},
		{"GET /web/sprites", spriteList},
		{"GET /web/lists/sprites/live", spritesLive},
		{"GET /web/search", search},

		// One sprite: sprite.go and beside it.
		{"GET " + one, ofSprite(spriteOverview)},
		{"GET " + one + "/live", ofSprite(spriteLive)},
		{"POST " + one + "/do/{deed}", ofSprite(spriteDo)},
		{"GET " + one + "/terminal", ofSprite(spriteTerminal)},
		{"GET " + one + "/terminal/sessions", ofSprite(spriteSessions)},
		{"GET " + one + "/terminal/socket", ofSprite(spriteSocket)},
		{"POST " + one + "/terminal/end", ofSprite(spriteEnd)},
		{"GET " + one + "/files", ofSprite(spriteFiles)},
		{"GET " + one + "/files/branch", ofSprite(spriteBranch)},
		{"GET " + one + "/files/raw", ofSprite(spriteDownload)},
		{"POST " + one + "/files/save", ofSprite(spriteSave)},
		{"POST " + one + "/files/upload", ofSprite(spriteUpload)},
		{"POST " + one + "/files/do/{deed}", ofSprite(spriteFileDo)},
		{"GET " + one + "/services", ofSprite(spriteServices)},
		{"GET " + one + "/services/{service}", ofSprite(spriteServiceLog)},
		{"GET " + one + "/services/{service}/live", ofSprite(spriteServiceLive)},
		{"POST " + one + "/services/{service}/do/{deed}", ofSprite(spriteServiceDo)},
		{"GET " + one + "/preview", ofSprite(spritePreview)},
		{"GET " + one + "/checkpoints", ofSprite(spriteCheckpoints)},
		{"POST " + one + "/checkpoints", ofSprite(spriteCheckpointCreate)},
		{"POST " + one + "/checkpoints/prune", ofSprite(spritePrune)},
		{"GET " + one + "/checkpoints/{checkpoint}", ofSprite(spriteCheckpoint)},
		{"POST " + one + "/checkpoints/{checkpoint}/do/{deed}", ofSprite(spriteCheckpointDo)},
		{"GET " + one + "/diff", ofSprite(spriteDiff)},
		{"GET " + one + "/network", ofSprite(spriteNetwork)},
		{"GET " + one + "/network/live", ofSprite(spriteNetworkLive)},
		{"GET " + one + "/network/allow", ofSprite(spriteAllow)},
		{"POST " + one + "/network/allow", ofSprite(spriteAllowDo)},
		{"POST " + one + "/network/remove", ofSprite(spriteRuleRemove)},
		{"GET " + one + "/network/test", ofSprite(spritePolicyTest)},
		{"GET " + one + "/network/learn", ofSprite(spriteLearn)},
		{"POST " + one + "/network/learn", ofSprite(spriteLearnDo)},
		{"GET " + one + "/connectors", ofSprite(spriteConnectors)},

		// A new job, and the first one: new.go, first.go.
		{"GET /web/new", newJobPage},
		{"POST /web/new", startJob},
		{"POST /web/new/preview", previewJob},
		{"GET /web/first", first},
		{"GET /web/first/live", firstLive},
		{"POST /web/first", startFirst},

		// Settings: settings.go and beside it.
		{"GET /web/settings", settings},
		{"POST /web/settings/test", testExecutor},
		{"POST /web/settings/profiles", putProfile},
		{"POST /web/settings/profiles/apply", applyProfile},
		{"POST /web/settings/profiles/default", saves("profiles", defaultProfile)},
		{"POST /web/settings/profiles/delete", saves("profiles", deleteProfile)},
		{"POST /web/settings/secrets", saves("secrets", putSecret)},
		{"POST /web/settings/secrets/delete", saves("secrets", deleteSecret)},
		{"POST /web/settings/connectors", saves("connectors", putConnector)},
		{"POST /web/settings/connectors/delete", saves("connectors", deleteConnector)},
		{"POST /web/settings/connectors/grant", saves("connectors", grantConnector)},
		{"POST /web/settings/connectors/revoke", saves("connectors", revokeConnector)},
		{"POST /web/settings/tokens", makeToken},
		{"POST /web/settings/tokens/delete", saves("tokens", deleteToken)},
		{"POST /web/settings/sessions/end", saves("sessions", endSession)},
		{"POST /web/settings/sessions/end-all", saves("sessions", endSessions)},
		{"POST /web/settings/images/pull", pullImage},
		{"POST /web/settings/images/remove", saves("images", removeImage)},
		{"POST /web/settings/images/prune", saves("images", pruneImages)},
		{"POST /web/settings/backends", saves("backends", putBackend)},
		{"POST /web/settings/backends/delete", saves("backends", deleteBackend)},
		{"POST /web/settings/webhooks", putWebhook},
		{"POST /web/settings/webhooks/test", testWebhook},
		{"POST /web/settings/webhooks/delete", saves("webhooks", deleteWebhook)},
		{"POST /web/settings/running/destroy", destroyEnvironments},
		{"POST /web/settings/running/orphans", destroyOrphans},
	}
	return append(all, jobRoutes()...)
}

// logout ends the session of the browser that asks.
func logout(v *view) error {
	if err := v.site.Sessions.End(v.r.Context(), v.session.ID); err != nil {
		return err
	}
	setCookie(v.w, v.r, "", -1)
	return v.redirect("/web")
}

// alive says that the server is there, the browser logged in, and a stream more let in.
func alive(v *view) error {
	done, err := v.site.Sessions.Count(v.session, true)
	if err != nil {
		return err
	}
	done()
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}

// aliveStream is the stream of pages that do not change by themselves.
const aliveStream = "/web/alive/live"

// aliveLive brings nothing: a page whose stream breaks off knows that the server is away.
func aliveLive(v *view) error {
	return v.stream(func(ctx context.Context, _ *stream) error {
		<-ctx.Done()
		return nil
	})
}
