package web

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
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

	heard budget // the memory of sandboxes' answers
}

// Paths reports whether a request is for the site.
func Paths(r *http.Request) bool {
	return r.URL.Path == "/web" || strings.HasPrefix(r.URL.Path, "/web/") ||
		r.URL.Path == "/" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// Handler serves the paths that Paths is true for.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/web", http.StatusSeeOther) })
	mux.HandleFunc("GET /web/static/{name...}", serveAsset)
	mux.HandleFunc("GET /web/login", s.loginLink)
	mux.HandleFunc("POST /web/login", s.loginForm)
	for _, rt := range routes() {
		mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, rt.streams(), rt.decided()) })
	}
	mux.HandleFunc("/web/", func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, false, func(v *view) error { return fail.New("not_found", "there is no such page", "") })
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		awaitBody(w, r)
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

// followed reports whether a person has followed a link, perhaps of another site. Such a
// request changes nothing: it only gets a page, and a link that logs in asks first.
func followed(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// serve finds the session of a request, and has the request handled. If stream is set, the
// request may last as long as its page is open.
func (s *Site) serve(w http.ResponseWriter, r *http.Request, stream bool, handle handler) {
	session, ctx, release, err := s.Sessions.Hold(r, cookies(r))
	switch {
	case errors.Is(err, ErrNoSession):
		s.loggedOut(w, r)
		return
	case err != nil:
		s.refuse(w, r, nil, err)
		return
	}
	defer release()
	done, err := s.Sessions.Count(session, stream)
	if err != nil {
		s.refuse(w, r, nil, err)
		return
	}
	defer done()
	if stream {
		hangUp(w, r)
	}
	r = r.WithContext(ctx)
	v := &view{
		w: w, r: r, site: s, session: session,
		api: &cove.Client{Client: &sprites.Client{URL: "http://localhost", Token: session.Bearer, HTTPClient: s.API, UserAgent: "cove-web"}},
	}
	defer giveBack(v)
	if mayChange(r) {
		if err := v.readBody(); err != nil {
			s.refuse(w, r, v, err)
			return
		}
	}
	if err := handle(v); err != nil {
		s.refuse(w, r, v, err)
	}
}

// hangUp has the connection closed after the answer. If somebody is refused, or a stream ends,
// the connection is not kept for other requests.
func hangUp(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
}

// loggedOut answers somebody who is not logged in.
func (s *Site) loggedOut(w http.ResponseWriter, r *http.Request) {
	hangUp(w, r)
	if !wantsPage(r) {
		w.Header().Set("HX-Redirect", "/web")
		http.Error(w, "not logged in", http.StatusUnauthorized)
		return
	}
	render(w, r, http.StatusUnauthorized, layout{Title: "Log in", Bare: true, Version: s.Version}, "login", loginPage{})
}

type loginPage struct {
	Error, Code, Name string
	Own               string // the same link at the page's own name; empty: it is there
}

// loginLink answers a link that has a code: it asks the person first. A page that led here may
// have made the link, to have this browser act by the rights of another. A browser does not
// always say which page led here.
func (s *Site) loginLink(w http.ResponseWriter, r *http.Request) {
	code := r.URL.Query().Get("code")
	link, err := s.Sessions.Waiting(r, code)
	if err != nil {
		s.loginFailed(w, r, err)
		return
	}
	page := loginPage{Code: code, Name: link.Name}
	if link.Host != "" {
		page.Own = (&url.URL{Scheme: "http", Host: link.Host, Path: "/web/login", RawQuery: url.Values{"code": {code}}.Encode()}).String()
	}
	render(w, r, http.StatusOK, layout{Title: "Log in", Bare: true, Version: s.Version}, "login-ask", page)
}

// loginForm answers the button of the page that asks.
func (s *Site) loginForm(w http.ResponseWriter, r *http.Request) {
	if err := readForm(w, r, maxLoginForm); err != nil {
		s.refuse(w, r, nil, err)
		return
	}
	s.login(w, r, r.PostForm.Get("code"))
}

func (s *Site) loginFailed(w http.ResponseWriter, r *http.Request, err error) {
	hangUp(w, r)
	render(w, r, http.StatusUnauthorized, layout{Title: "Log in", Bare: true, Version: s.Version}, "login", loginPage{Error: err.Error()})
}

// login exchanges a code for a cookie. The page that answers leads on by itself: browsers do not
// send a strict cookie with a redirect that another program's link began.
func (s *Site) login(w http.ResponseWriter, r *http.Request, code string) {
	value, until, err := s.Sessions.Redeem(r, code, cookies(r))
	if err != nil {
		s.loginFailed(w, r, err)
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
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.Retry))
	}
	if v == nil || e.Status == http.StatusTooManyRequests {
		hangUp(w, r)
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
