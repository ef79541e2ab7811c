package server_test

import (
	"net/url"
	"regexp"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestWebLogin: a link logs one browser in, once; logging out ends what it looks at.
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
