package server_test

import (
	"net/url"
	"regexp"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestWebFull: a token may have a quarter of all live pages, and the owner more. If there are
// too many, the next one is refused, and its connection closed. The page says so, and is live
// once there is room.
func TestWebFull(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams = 4 }})
	by, _ := another(t, s, "reader", cove.VerbRead)
	other, _ := another(t, s, "other", cove.VerbRead)
	events := header("Accept", "text/event-stream")
	cookie := logIn(t, s, by)
	held := open(t, s, "GET /web/alive/live", "", browser(cookie), events)
	failIf(t, held.StatusCode != 200 || !held.Close, "the first stream: %s, closes: %v", held.Status, held.Close)
	again := logIn(t, s, by) // it is the token that counts, not the session
	for _, path := range []string{"/web/alive/live", "/web/now/live", "/web/lists/jobs/live", "/web/jobs/000001/live", "/web/alive"} {
		a := ask(t, s, "GET "+path, "", browser(again), events)
		has(t, a, 429, "for the same token")
		failIf(t, a.Header.Get("Retry-After") == "" || !a.Close, "%s: %v, closes: %v", path, a.Header, a.Close)
	}
	has(t, ask(t, s, "GET /web", "", browser(again)), 200, `id="now"`)
	open(t, s, "GET /web/alive/live", "", browser(logIn(t, s, other)), events)
	for range 2 {
		a := open(t, s, "GET /web/now/live", "", browser(logIn(t, s, s.Client())), events)
		failIf(t, a.StatusCode != 200, "the owner's page is not live: %s", a.Status)
	}
	for _, path := range []string{"/web", "/web/now/live", "/web/alive"} {
		a := ask(t, s, "GET "+path, "", browser(), events)
		failIf(t, a.StatusCode != 401 || !a.Close, "%s without a cookie: %d, closes: %v", path, a.StatusCode, a.Close)
	}

	s = covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams = 4 }})
	by, _ = another(t, s, "reader", cove.VerbRead)
	held = open(t, s, "GET /web/alive/live", "", browser(logIn(t, s, by)), events)
	page := webtest.Start(t).Open(by, webtest.Desktop)
	page.Allow("429")
	page.Sees("This page is not live")
	must(t, held.Body.Close())
	page.Until("the page is live", `document.getElementById("connection").hidden`)
}

// TestWebLogin: a link logs one browser in, once. Logging out ends its open pages.
func TestWebLogin(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	sessions, err := cove.Web{Client: s.Client()}.Sessions(t.Context())
	must(t, err)
	failIf(t, len(sessions) != 1 || sessions[0].Token != "", "sessions: %+v", sessions)

	page.Type("?")
	page.Wait("dialog[open]")
	page.Click("dialog[open] button")

	link, err := cove.Web{Client: s.Client()}.Link(t.Context())
	must(t, err)
	other := b.Tab(s.URL, webtest.Phone)
	other.Allow("401")
	other.Goto("/web")
	other.Sees("cove web")
	u, err := url.Parse(link.URL)
	must(t, err)
	failIf(t, !regexp.MustCompile(`^cove-[a-z2-7]{24}\.localhost$`).MatchString(u.Hostname()), "the link's name is %s", u.Hostname())
	other.Goto(u.RequestURI())
	other.Sees("as the owner")
	other.Click("form button")
	other.Wait("#now")
	third := b.Tab(s.URL, webtest.Phone)
	third.Allow("401")
	third.Goto(u.RequestURI())
	third.Sees("has been used")

	page.Allow("401")
	must(t, cove.Web{Client: s.Client()}.EndAll(t.Context()))
	page.Sees("Log in")
	failIf(t, len(func() []cove.WebSession {
		l, err := cove.Web{Client: s.Client()}.Sessions(t.Context())
		must(t, err)
		return l
	}()) != 0, "sessions are left")
}
