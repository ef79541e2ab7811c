package web

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Site is the web page. Set the fields before the first request.
type Site struct {
	API      *http.Client // reaches the server's API, whatever the host of a URL
	Sessions Sessions
	Logger   *slog.Logger
	Version  string // of cove

	// SameOrigin refuses a request that another site's page may have made.
	SameOrigin func(*http.Request) error
}

// Paths reports whether a request is for the site.
func Paths(r *http.Request) bool {
	return r.URL.Path == "/web" || strings.HasPrefix(r.URL.Path, "/web/") ||
		r.URL.Path == "/" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// Handler serves what Paths is true for.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/web", http.StatusSeeOther) })
	mux.HandleFunc("GET /web/static/{name...}", serveAsset)
	mux.HandleFunc("GET /web/login", s.login)
	for _, rt := range routes() {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, rt.handle) })
	}
	mux.HandleFunc("/web/", func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, func(v *view) error { return fail.New("not_found", "there is no such page", "") })
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header(), r)
		if !followed(r) {
			if err := s.SameOrigin(r); err != nil {
				s.refuse(w, r, nil, err)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// followed reports whether a request is a person's who follows a link: of another site, too.
// Nothing comes of it but a page, and that only with a cookie, which such a request has not.
func followed(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// serve finds whose a request is, and has it handled.
func (s *Site) serve(w http.ResponseWriter, r *http.Request, handle handler) {
	var cookie string
	if c, err := r.Cookie(cookieName(r)); err == nil {
		cookie = c.Value
	}
	session, ctx, release, err := s.Sessions.Hold(r.Context(), cookie)
	switch {
	case errors.Is(err, ErrNoSession):
		s.loggedOut(w, r)
		return
	case err != nil:
		s.refuse(w, r, nil, err)
		return
	}
	defer release()
	r = r.WithContext(ctx)
	v := &view{
		w: w, r: r, site: s, session: session,
		api: &cove.Client{Client: &sprites.Client{URL: "http://localhost", Token: session.Bearer, HTTPClient: s.API, UserAgent: "cove-web"}},
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		r.Body = http.MaxBytesReader(w, r.Body, maxUpload)
		if !session.marked(v.sentMark()) {
			s.refuse(w, r, v, fail.New("forbidden", "the page is too old", "load it again"))
			return
		}
	}
	if err := handle(v); err != nil {
		s.refuse(w, r, v, err)
	}
}

// loggedOut answers somebody who is not logged in.
func (s *Site) loggedOut(w http.ResponseWriter, r *http.Request) {
	if !wantsPage(r) {
		w.Header().Set("HX-Redirect", "/web")
		http.Error(w, "not logged in", http.StatusUnauthorized)
		return
	}
	render(w, r, http.StatusUnauthorized, layout{Title: "Log in", Bare: true, Version: s.Version}, "login", loginPage{})
}

type loginPage struct{ Error string }

// login exchanges the code of a link for a cookie. The page that answers leads on by itself:
// browsers do not send a strict cookie with a redirect that another program's link began.
func (s *Site) login(w http.ResponseWriter, r *http.Request) {
	var old string
	if c, err := r.Cookie(cookieName(r)); err == nil {
		old = c.Value
	}
	value, until, err := s.Sessions.Redeem(r, r.URL.Query().Get("code"), old)
	if err != nil {
		render(w, r, http.StatusUnauthorized, layout{Title: "Log in", Bare: true, Version: s.Version}, "login", loginPage{Error: err.Error()})
		return
	}
	setCookie(w, r, value, secondsUntil(until))
	w.Header().Set("Refresh", "0; url=/web")
	render(w, r, http.StatusOK, layout{Title: "Welcome", Bare: true, Version: s.Version}, "welcome", nil)
}

// refuse shows an error: as a page, or to a script of ours as the text that it shows.
func (s *Site) refuse(w http.ResponseWriter, r *http.Request, v *view, err error) {
	e := describe(err)
	if r.Context().Err() == nil && e.Status >= http.StatusInternalServerError {
		s.Logger.Error("a page failed", "path", r.URL.Path, "err", err)
	}
	if !wantsPage(r) {
		w.Header().Set("HX-Retarget", "#notice")
		w.Header().Set("HX-Reswap", "innerHTML")
		fragment(w, r, e.Status, "error", e)
		return
	}
	l := layout{Title: e.Title, Bare: v == nil, Version: s.Version}
	if v != nil {
		l = v.layout(e.Title)
	}
	render(w, r, e.Status, l, "error-page", e)
}
