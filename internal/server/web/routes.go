package web

import "net/http"

// route is one page, or a part of one: a pattern of net/http, and what answers.
type route struct {
	pattern string
	handle  handler
}

// routes are all of them. A path that ends in /live is a stream of a page's changes.
func routes() []route {
	return []route{
		{"GET /web/alive", alive},
		{"POST /web/logout", logout},
		{"GET /web/components", components},

		// Lists: now.go, jobs.go, sprites.go, search.go.
		{"GET /web", now},
		{"GET /web/now/live", nowLive},

		// One job: job.go and beside it.

		// One sprite: sprite.go and beside it.

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
