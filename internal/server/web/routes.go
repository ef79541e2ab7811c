package web

import "net/http"

// route is one page, or a part of one: a pattern of net/http, and what answers.
type route struct {
	pattern string
	handle  handler
}

// routes are all of them. A path that ends in /live is a stream of a page's changes.
func routes() []route {
	const one = "/web/sprites/{name}"
	return []route{
		{"GET /web/alive", alive},
		{"POST /web/logout", logout},
		{"GET /web/components", components},

		// Lists: now.go, jobs.go, sprites.go, search.go.
		{"GET /web", now},
		{"GET /web/now/live", nowLive},

		// One job: job.go and beside it.

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

		// A new job, and the first one: new.go.

		// Settings: settings.go and beside it.
	}
}

// logout ends the session of the browser that asks.
func logout(v *view) error {
	if err := v.site.Sessions.End(v.r.Context(), v.session.ID); err != nil {
		return err
	}
	setCookie(v.w, v.r, "", -1)
	return v.redirect("/web")
}

// alive says that the server is there, and the browser logged in.
func alive(v *view) error {
	v.w.WriteHeader(http.StatusNoContent)
	return nil
}
