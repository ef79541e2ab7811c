package server_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// browser is a client of the web page that has cookies, and no token.
func browser(cookies ...*http.Cookie) edit {
	return func(r *http.Request) {
		r.Header.Del("Authorization")
		for _, c := range cookies {
			r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
		}
	}
}

// webLink is the path of a link that logs in by a client's token.
func webLink(t *testing.T, c *cove.Client) string {
	t.Helper()
	link, err := cove.Web{Client: c}.Link(t.Context())
	must(t, err)
	u, err := url.Parse(link.URL)
	must(t, err)
	return u.RequestURI()
}

// useLink opens a link that logs in, and says yes.
func useLink(t *testing.T, s *covetest.Server, link string, edits ...edit) answer {
	t.Helper()
	_, query, _ := strings.Cut(link, "?")
	return ask(t, s, "POST /web/login", query, append([]edit{header("Content-Type", "application/x-www-form-urlencoded")}, edits...)...)
}

// logIn is the cookie of a browser that is logged in by a client's token.
func logIn(t *testing.T, s *covetest.Server, c *cove.Client, edits ...edit) *http.Cookie {
	t.Helper()
	a := useLink(t, s, webLink(t, c), append([]edit{browser()}, edits...)...)
	if len(a.Cookies()) != 1 {
		t.Fatalf("log in: %d, cookies %v\n%s", a.StatusCode, a.Cookies(), a.body)
	}
	return a.Cookies()[0]
}

var markOf = regexp.MustCompile(`name="cove-mark" content="([^"]+)"`)

// formMark is the mark of a page of the browser's.
func formMark(t *testing.T, s *covetest.Server, c *http.Cookie, edits ...edit) string {
	t.Helper()
	a := ask(t, s, "GET /web", "", append([]edit{browser(c)}, edits...)...)
	found := markOf.FindSubmatch(a.body)
	if found == nil {
		t.Fatalf("the page has no mark: %d %s", a.StatusCode, a.body)
	}
	return string(found[1])
}

// another is a client with a token of its own.
func another(t *testing.T, s *covetest.Server, name string, verbs ...string) (*cove.Client, cove.Token) {
	t.Helper()
	token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: name, Scope: cove.TokenScope{All: true}, Verbs: verbs})
	must(t, err)
	c := *s.Client().Client
	c.Token = token.Secret
	return &cove.Client{Client: &c}, token
}

func has(t *testing.T, a answer, status int, text string) {
	t.Helper()
	failIf(t, a.StatusCode != status || !bytes.Contains(a.body, []byte(text)), "%s %s: got %d, want %d with %q:\n%s", a.Request.Method, a.Request.URL.Path, a.StatusCode, status, text, a.body)
}

// TestWebCookie: the cookie is out of reach of scripts and of other sites; over TLS, of siblings too.
func TestWebCookie(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := logIn(t, s, s.Client())
	failIf(t, c.Name != "cove_web" || !c.HttpOnly || c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "", "got %+v", c)
	tls := header("X-Forwarded-Proto", "https")
	safe := logIn(t, s, s.Client(), tls)
	failIf(t, safe.Name != "__Host-cove_web" || !safe.HttpOnly || !safe.Secure || safe.SameSite != http.SameSiteStrictMode || safe.Path != "/" || safe.Domain != "", "got %+v", safe)
	has(t, ask(t, s, "GET /web", "", browser(safe), tls), 200, `id="now"`)
	has(t, ask(t, s, "GET /web", "", browser(&http.Cookie{Name: "cove_web", Value: safe.Value}), tls), 401, "Log in") // one that a sibling could set

	a := ask(t, s, "GET /web", "", browser(safe), tls)
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Strict-Transport-Security": "max-age=31536000",
	} {
		failIf(t, a.Header.Get(name) != want, "%s: got %q", name, a.Header.Get(name))
	}
	policy := a.Header.Get("Content-Security-Policy")
	failIf(t, !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe"), "policy: %s", policy)
}

// TestWebForgery: a request that changes something is carried out only for a page of the
// browser's own session.
func TestWebForgery(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := logIn(t, s, s.Client())
	other := logIn(t, s, s.Client())
	form := header("Content-Type", "application/x-www-form-urlencoded")
	post := func(mark string, edits ...edit) answer {
		t.Helper()
		return ask(t, s, "POST /web/logout", url.Values{"_mark": {mark}}.Encode(), append([]edit{browser(c), form}, edits...)...)
	}
	mark := formMark(t, s, c)
	failIf(t, mark == formMark(t, s, c), "a mark is written twice alike")
	has(t, post(""), 403, "too old")
	has(t, post("AAAA"), 403, "too old")
	has(t, post(formMark(t, s, other)), 403, "too old")
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	for _, edits := range [][]edit{
		{header("Origin", "https://evil.example")},
		{header("Origin", "null")},
		{header("Origin", "http://paint.localhost:"+port)},
		{header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document")},
		{header("Sec-Fetch-Site", "same-site"), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document")},
	} {
		has(t, post(mark, edits...), 403, "another origin")
	}
	for _, site := range []string{"cross-site", "same-site"} { // as a picture, a frame, or by fetch
		for mode, dest := range map[string]string{"no-cors": "image", "cors": "empty", "navigate": "iframe"} {
			has(t, ask(t, s, "GET /web", "", browser(c), header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", mode), header("Sec-Fetch-Dest", dest)), 403, "another origin")
		}
	}
	for _, path := range []string{"/", "/web", "/web/login?code=x", "/web/static/cove.css"} {
		a := ask(t, s, "GET "+path, "", browser(c), header("Accept", "text/html"), func(r *http.Request) { r.Host = "evil.example" })
		failIf(t, a.StatusCode != 403, "%s at another host: got %d", path, a.StatusCode)
	}
	a := ask(t, s, "GET /web", "", browser(c), func(r *http.Request) { r.Host = "paint.localhost:" + port })
	failIf(t, a.StatusCode != 404 || bytes.Contains(a.body, []byte("cove-mark")), "at a sprite's URL: got %d %s", a.StatusCode, a.body)
	has(t, ask(t, s, "GET /web", "", browser(c)), 200, `id="now"`) // nothing of all that has logged out
	post(mark)
	has(t, ask(t, s, "GET /web", "", browser(c)), 401, "Log in")
	has(t, ask(t, s, "GET /web", "", browser(other)), 200, `id="now"`)
}

// TestWebCodes: a code is good once, and only for a browser whose person has confirmed the
// login.
func TestWebCodes(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	link := webLink(t, s.Client())
	for range 100 {
		has(t, ask(t, s, "GET /web/login?code=AAAAAAAAAAAAAAAAAAAAAAAAAA", "", browser()), 401, "has been used")
	}
	code := strings.TrimPrefix(link, "/web/login?code=")
	failIf(t, len(code) < 26, "the code %q has less than 128 bits", code)
	has(t, ask(t, s, "HEAD "+link, "", browser()), 200, "") // a program that looks at links does not use it

	// A page that leads to a link of its own choice does not log in by that.
	mallory, _ := another(t, s, "mallory", cove.VerbRead)
	victim := logIn(t, s, s.Client())
	planted := webLink(t, mallory)
	for _, site := range []string{"cross-site", "same-site", "same-origin", "none", ""} { // a redirect may hide what led here
		a := ask(t, s, "GET "+planted, "", browser(victim), header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"))
		has(t, a, 200, "<strong>mallory</strong>")
		failIf(t, len(a.Cookies()) > 0, "cookies: %v", a.Cookies())
	}
	form := header("Content-Type", "application/x-www-form-urlencoded")
	has(t, ask(t, s, "POST /web/login", url.Values{"code": {code}}.Encode(), browser(), form, header("Sec-Fetch-Site", "same-site")), 403, "another origin")
	a := ask(t, s, "POST /web/login", url.Values{"code": {code}}.Encode(), browser(), form, header("Sec-Fetch-Site", "same-origin"))
	has(t, a, 200, "You are logged in")
	has(t, ask(t, s, "GET "+link, "", browser()), 401, "has been used")
	failIf(t, strings.Contains(a.Header.Get("Refresh"), "//"), "leads to %q", a.Header.Get("Refresh"))

	// A name of somebody's choice never gets into a link or a redirect.
	for _, path := range []string{"/web//evil.example", "/web/../..//evil.example", "/web/%2f%2fevil.example", "/web/..%5cevil.example", "/web/%0d%0aSet-Cookie:x=y"} {
		a := ask(t, s, "GET "+path, "", browser(victim), header("Accept", "text/html"))
		to := a.Header.Get("Location")
		failIf(t, strings.HasPrefix(to, "//") || strings.Contains(to, ":") || strings.Contains(to, `\`) || len(a.Cookies()) > 0, "%s leads to %q, %v", path, to, a.Cookies())
	}
	has(t, ask(t, s, "POST /v1/web/links", "", func(r *http.Request) { r.Host = "evil.example" }), 403, "")
}

// TestWebCookieTossing: a page at a sprite's URL can set a cookie of the same name for the whole
// domain. It neither logs anybody out, nor has them act by the rights of another.
func TestWebCookieTossing(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := logIn(t, s, s.Client())
	junk := &http.Cookie{Name: c.Name, Value: "junk"}
	has(t, ask(t, s, "GET /web", "", browser(junk, c)), 200, "as the owner")
	has(t, ask(t, s, "GET /web", "", browser(c, junk)), 200, "as the owner")

	fixed := useLink(t, s, webLink(t, s.Client()), browser(junk)).Cookies()[0]
	failIf(t, fixed.Value == junk.Value || fixed.Value == c.Value, "a log-in takes a cookie that was there before")

	client, _ := another(t, s, "mallory", cove.VerbRead)
	mallory := logIn(t, s, client)
	for _, both := range [][]*http.Cookie{{mallory, c}, {c, mallory}} {
		a := ask(t, s, "GET /web", "", browser(both...))
		has(t, a, 401, "two sessions")
		failIf(t, bytes.Contains(a.body, []byte("cove-mark")), "a page of one of two sessions")
	}
	kept := useLink(t, s, webLink(t, s.Client()), browser(mallory, c)).Cookies()[0]
	failIf(t, kept.Value != c.Value, "a log-in by the same token does not go on with the session")
	has(t, ask(t, s, "GET /web", "", browser(mallory, c)), 200, "as the owner") // the other has ended
	has(t, ask(t, s, "GET /web", "", browser(mallory)), 401, "Log in")

	many := make([]*http.Cookie, 500)
	for i := range many {
		many[i] = &http.Cookie{Name: c.Name, Value: "junk" + strings.Repeat("x", i)}
	}
	a := ask(t, s, "GET /web", "", browser(many...))
	failIf(t, a.StatusCode != 401 && a.StatusCode != 413 && a.StatusCode != 431, "many cookies: got %d", a.StatusCode)
}

// sharedLog is a log that requests write to while a test reads it.
type sharedLog struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// TestWebEnds: a stream of a page ends with its session, and with the session's token. By then the
// cookie is good for nothing. No answer and no log has had a secret of the session.
func TestWebEnds(t *testing.T) {
	var log sharedLog
	s := covetest.Start(t, covetest.Options{Log: &log})
	for what, end := range map[string]func(c *http.Cookie, by *cove.Client, token cove.Token, id string){
		"logout": func(c *http.Cookie, _ *cove.Client, _ cove.Token, _ string) {
			ask(t, s, "POST /web/logout", "", browser(c), header("X-Cove-Mark", formMark(t, s, c)))
		},
		"session": func(_ *http.Cookie, by *cove.Client, _ cove.Token, id string) {
			must(t, cove.Web{Client: by}.End(t.Context(), id))
		},
		"all": func(_ *http.Cookie, by *cove.Client, _ cove.Token, _ string) {
			link, other := webLink(t, by), webLink(t, s.Client())
			must(t, cove.Web{Client: by}.EndAll(t.Context()))
			has(t, useLink(t, s, link, browser()), 401, "")
			failIf(t, len(useLink(t, s, other, browser()).Cookies()) != 1, "another token's link is void")
		},
		"token": func(_ *http.Cookie, _ *cove.Client, token cove.Token, _ string) {
			must(t, s.Client().DeleteToken(t.Context(), token.ID))
		},
	} {
		t.Run(what, func(t *testing.T) {
			by, token := another(t, s, "of-"+what, cove.VerbRead)
			c := logIn(t, s, by)
			sessions, err := cove.Web{Client: by}.Sessions(t.Context())
			must(t, err)
			failIf(t, len(sessions) != 1, "sessions: %v", sessions)
			stream := open(t, s, "GET /web/now/live", "", browser(c), header("Accept", "text/event-stream"))
			first, err := bufio.NewReader(stream.Body).ReadString('\n')
			failIf(t, err != nil || first == "", "the stream does not begin: %v", err)
			end(c, by, token, sessions[0].ID)
			_, err = io.Copy(io.Discard, stream.Body) // until it ends
			failIf(t, err != nil && t.Context().Err() != nil, "the stream: %v", err)
			has(t, ask(t, s, "GET /web", "", browser(c)), 401, "Log in")
			for _, secret := range []string{c.Value, token.Secret, "web." + sessions[0].ID} {
				failIf(t, strings.Contains(log.String(), secret), "the log has %s", secret)
			}
		})
	}
}

// TestWebEndAll: to log out all means those that the token sees: its own, or with the verb admin those of all.
func TestWebEndAll(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	narrow, _ := another(t, s, "narrow", cove.VerbRead)
	wide, _ := another(t, s, "wide", cove.VerbRead, cove.VerbAdmin)
	for _, by := range []*cove.Client{s.Client(), narrow, narrow, wide} {
		logIn(t, s, by)
	}
	for _, c := range []struct {
		by   *cove.Client
		left int
	}{{narrow, 2}, {wide, 0}} {
		must(t, cove.Web{Client: c.by}.EndAll(t.Context()))
		left, err := cove.Web{Client: s.Client()}.Sessions(t.Context())
		failIf(t, err != nil || len(left) != c.left, "got %+v, %v; want %d", left, err, c.left)
	}
}

// TestWebSecrets: no page and no header has the bearer of a session, its cookie or the token.
// A session sees and does no more than its token.
func TestWebSecrets(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("mine-1")
	s.Create("theirs-1")
	token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "narrow", Scope: cove.TokenScope{Prefix: "mine-"}, Verbs: []string{cove.VerbRead, cove.VerbExec}})
	must(t, err)
	c := *s.Client().Client
	c.Token = token.Secret
	narrow := &cove.Client{Client: &c}
	cookie := logIn(t, s, narrow)
	sessions, err := cove.Web{Client: narrow}.Sessions(t.Context())
	must(t, err)
	for _, path := range []string{"/web", "/web/components", "/web/jobs", "/web/sprites", "/web/settings", "/web/new", "/web/search?q=theirs-", "/web/sprites/mine-1", "/web/sprites/theirs-1", "/web/nothing"} {
		a := ask(t, s, "GET "+path, "", browser(cookie), header("Accept", "text/html"))
		var head bytes.Buffer
		must(t, a.Header.Write(&head))
		all := head.String() + string(a.body)
		for _, secret := range []string{"web." + sessions[0].ID, cookie.Value, token.Secret} {
			failIf(t, strings.Contains(all, secret), "%s has %s", path, secret)
		}
		failIf(t, !strings.Contains(path, "theirs") && strings.Contains(all, "theirs-1"), "%s shows a sprite of others", path)
		failIf(t, path == "/web/sprites/theirs-1" && a.StatusCode < 400, "%s: got %d", path, a.StatusCode)
	}
}

// TestWebExpiry: an expired session does not count.
func TestWebExpiry(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	ctx := context.WithoutCancel(t.Context())
	row := func(value string) {
		list, err := s.Store.WebSessions.List(ctx, "")
		must(t, err)
		old := list[0]
		old.ID, old.Hash, old.ExpiresAt = value, store.HashToken(value), old.CreatedAt
		must(t, s.Store.WebSessions.Create(ctx, old))
	}
	c := logIn(t, s, s.Client())
	row("expired")
	has(t, ask(t, s, "GET /web", "", browser(&http.Cookie{Name: c.Name, Value: "expired"})), 401, "Log in")
	has(t, ask(t, s, "GET /web", "", browser(c, &http.Cookie{Name: c.Name, Value: "expired"})), 200, `id="now"`)
}

// TestWebParts: only a script puts a part of a page into it. If a sprite's page, or another
// one, leads a browser to a part's address, the browser is sent to the whole page. No button
// that changes something has the keyboard from the start.
func TestWebParts(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "paint"})
	must(t, err)
	c := logIn(t, s, s.Client())
	const network = "/web/sprites/paint/network"
	for _, part := range []string{"/allow?rule=evil.example:443", "/test?target=evil.example:443"} {
		a := ask(t, s, "GET "+network+part, "", browser(c), header("Accept", "text/html"), header("Sec-Fetch-Site", "same-site"), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"))
		failIf(t, a.StatusCode != 303 || a.Header.Get("Location") != network, "%s as a document: %d, to %q\n%s", part, a.StatusCode, a.Header.Get("Location"), a.body)
	}
	a := ask(t, s, "GET "+network+"/allow?rule=evil.example:443", "", browser(c), header("HX-Request", "true"))
	has(t, a, 200, "Add the rule")
	failIf(t, bytes.Contains(a.body, []byte("autofocus")), "the button has the keyboard:\n%s", a.body)
}

// TestWebPrefill: a link fills in no form that one click sends. It gives a new job neither
// plan nor network, and the settings no value.
func TestWebPrefill(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := logIn(t, s, s.Client())
	const planted = "planted-value"
	fields := url.Values{}
	for _, name := range []string{"plan", "url", "branch", "model", "agent", "profile", "name", "value", "text", "upstream", "secret", "headers", "sprite", "label", "token", "what", "reference"} {
		fields.Set(name, planted)
	}
	fields.Set("network", "open")
	fields.Set("publish", "branch")
	for _, site := range []string{"cross-site", "same-site", "none", "same-origin", ""} {
		for _, path := range []string{"/web/new?", "/web/settings?tab=profiles&", "/web/settings?tab=secrets&", "/web/settings?tab=connectors&", "/web/settings?tab=tokens&", "/web/settings?tab=backends&", "/web/settings?tab=webhooks&"} {
			a := ask(t, s, "GET "+path+fields.Encode(), "", browser(c), header("Accept", "text/html"), header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document"))
			has(t, a, 200, "<form")
			failIf(t, bytes.Contains(a.body, []byte(planted)) || bytes.Contains(a.body, []byte("<option selected>open")), "%s from %q fills in a form:\n%s", path, site, a.body)
		}
	}
}

// TestWebSharedHost: a browser sends the cookie of a page at 127.0.0.1 to every port there. A
// log-in there says so, and leads to the page's own name. Nobody without a link is told that
// name. A person who goes on is logged in for less long. A session that lasts longer ends
// there.
func TestWebSharedHost(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	at := func(host string) edit { return func(r *http.Request) { r.Host = host + ":" + port } }
	whole, err := cove.Web{Client: s.Client()}.Link(t.Context())
	must(t, err)
	u, err := url.Parse(whole.URL)
	must(t, err)
	own := u.Hostname()
	other, err := cove.Web{Client: covetest.Start(t, covetest.Options{}).Client()}.Link(t.Context())
	must(t, err)
	failIf(t, strings.Contains(other.URL, own), "two servers have one name: %s and %s", own, other.URL)
	for host, shared := range map[string]bool{"127.0.0.1": true, "localhost": true, "127.1.2.3": true, "[::1]": true, "cove.localhost": true, own: false} {
		for _, path := range []string{"/", "/web", "/web/login?code=x", "/web/nothing", "/v1/sprites"} {
			a := ask(t, s, "GET "+path, "", browser(), at(host))
			failIf(t, host != own && bytes.Contains(a.body, []byte(own)), "at %s, %s tells the page's name:\n%s", host, path, a.body)
		}
		link := webLink(t, s.Client())
		a := ask(t, s, "GET "+link, "", browser(), at(host))
		has(t, a, 200, "<button")
		there := "http://" + own + ":" + port + link
		failIf(t, bytes.Contains(a.body, []byte(`href="`+there+`"`)) != shared, "at %s:\n%s", host, a.body)
		c := logIn(t, s, s.Client(), at(host))
		failIf(t, (c.MaxAge <= 12*60*60) != shared, "at %s the cookie lasts %d s", host, c.MaxAge)
		has(t, ask(t, s, "GET /web", "", browser(c), at(host)), 200, `id="now"`)
	}
	tls := logIn(t, s, s.Client(), at("127.0.0.1"), header("X-Forwarded-Proto", "https"))
	failIf(t, tls.MaxAge <= 12*60*60, "over TLS the cookie lasts %d s", tls.MaxAge)

	long := logIn(t, s, s.Client(), at(own))
	again := useLink(t, s, webLink(t, s.Client()), browser(long), at("127.0.0.1")).Cookies()[0]
	failIf(t, again.Value == long.Value, "a log-in at 127.0.0.1 goes on with a session of a week")
	has(t, ask(t, s, "GET /web", "", browser(long), at(own)), 401, "Log in")
	long = logIn(t, s, s.Client(), at(own))
	has(t, ask(t, s, "GET /web", "", browser(long), at("127.0.0.1")), 401, "Log in")
	has(t, ask(t, s, "GET /web", "", browser(long), at(own)), 401, "Log in") // it has ended: somebody took it there
}

// TestWebCopied: a copy of a data folder has no browser logged in, and another name for its
// page. The folder itself keeps both, also when it is moved.
func TestWebCopied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "original")
	was, copied := dir+"-was", dir+"-copy"
	name := func(s *covetest.Server) string {
		link, err := cove.Web{Client: s.Client()}.Link(t.Context())
		must(t, err)
		u, err := url.Parse(link.URL)
		must(t, err)
		return u.Hostname()
	}
	s := covetest.Start(t, covetest.Options{Dir: dir})
	own, session := name(s), logIn(t, s, s.Client())
	s.Stop()
	must(t, os.CopyFS(copied, os.DirFS(dir)))
	must(t, os.Rename(dir, was))
	for range 2 {
		s = covetest.Start(t, covetest.Options{Dir: copied})
		failIf(t, name(s) == own, "the copy's page has the name of the original's")
		has(t, ask(t, s, "GET /web", "", browser(session)), 401, "Log in")
		sessions, err := cove.Web{Client: s.Client()}.Sessions(t.Context())
		must(t, err)
		failIf(t, len(sessions) != 0, "the copy has the sessions %+v", sessions)
		s.Stop()

		s = covetest.Start(t, covetest.Options{Dir: was})
		failIf(t, name(s) != own, "the page has got the name %s; it had %s", name(s), own)
		has(t, ask(t, s, "GET /web", "", browser(session)), 200, `id="now"`)
		s.Stop()
	}
}

// TestWebOwnName: each token has its own name of the page. No other token is told that name,
// whatever it asks and may do. A session is not good at another token's name: a cookie that
// comes there was taken there, and its session ends.
func TestWebOwnName(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	at := func(host string) edit { return func(r *http.Request) { r.Host = host + ":" + port } }
	narrow, _ := another(t, s, "narrow", cove.VerbRead)
	wide, _ := another(t, s, "wide", cove.VerbRead, cove.VerbWrite, cove.VerbExec, cove.VerbAdmin)
	name := func(c *cove.Client) string {
		link, err := cove.Web{Client: c}.Link(t.Context())
		must(t, err)
		u, err := url.Parse(link.URL)
		must(t, err)
		return u.Hostname()
	}
	own := name(s.Client())
	failIf(t, own != name(s.Client()), "the name changes with each link")
	const nobodys = "cove-aaaaaaaaaaaaaaaaaaaaaaaa.localhost"
	session := logIn(t, s, s.Client(), at(own)) // the owner's browser is there, which lists may tell of
	seen := map[string]bool{own: true}
	for _, by := range []*cove.Client{narrow, wide} {
		theirs := name(by)
		failIf(t, seen[theirs], "two tokens have the name %s", theirs)
		seen[theirs] = true
		there := logIn(t, s, by, at(theirs))
		failIf(t, there.MaxAge <= 12*60*60, "at %s the cookie lasts %d s", theirs, there.MaxAge)
		token := header("Authorization", "Bearer "+by.Token)
		for _, host := range []string{"127.0.0.1", "cove.localhost", theirs, nobodys} {
			for _, request := range []string{"POST /v1/web/links", "GET /v1/web/sessions", "GET /v1/version", "GET /v1/sprites", "GET /v1/tokens", "GET /v1/nothing"} {
				a := ask(t, s, request, "", token, at(host))
				failIf(t, bytes.Contains(a.body, []byte(own)), "at %s, %s tells the owner's name:\n%s", host, request, a.body)
			}
		}
		for _, path := range []string{"/", "/web", "/web/login?code=x", "/web/settings?tab=sessions", "/web/settings?tab=server", "/web/nothing"} {
			a := ask(t, s, "GET "+path, "", browser(there), at(theirs), header("Accept", "text/html"))
			failIf(t, bytes.Contains(a.body, []byte(own)) || strings.Contains(a.Header.Get("Location"), own), "%s tells the owner's name:\n%s", path, a.body)
		}
		// The same holds for a link that came to the wrong name. It can still be used at its
		// own name.
		link := webLink(t, s.Client())
		for _, host := range []string{theirs, nobodys} {
			for _, a := range []answer{ask(t, s, "GET "+link, "", browser(), at(host)), useLink(t, s, link, browser(), at(host))} {
				has(t, a, 401, "this link is for another host name")
				failIf(t, bytes.Contains(a.body, []byte(own)) || len(a.Cookies()) > 0, "at %s: cookies %v\n%s", host, a.Cookies(), a.body)
			}
		}
		has(t, useLink(t, s, link, browser(), at(own)), 200, "You are logged in")
	}
	has(t, ask(t, s, "GET /web", "", browser(session), at(own)), 200, `id="now"`)
	for _, host := range []string{name(narrow), name(wide), nobodys} {
		for _, edits := range [][]edit{nil, {header("X-Forwarded-Proto", "https")}} {
			stolen := logIn(t, s, s.Client(), append(edits, at(own))...)
			has(t, ask(t, s, "GET /web", "", append(edits, browser(stolen), at(host))...), 401, "Log in")
			has(t, ask(t, s, "GET /web", "", append(edits, browser(stolen), at(own))...), 401, "Log in") // it has ended
		}
		short := logIn(t, s, s.Client(), at("127.0.0.1"))
		has(t, ask(t, s, "GET /web", "", browser(short), at("127.0.0.1")), 200, `id="now"`)
		has(t, ask(t, s, "GET /web", "", browser(short), at(host)), 401, "Log in")
	}
}

// TestWebEndAllAtOnce: a link that is used while all are logged out leads to no session that outlives that.
func TestWebEndAllAtOnce(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for round := range 50 {
		link, used := webLink(t, s.Client()), make(chan int, 1)
		go func() { used <- useLink(t, s, link, browser()).StatusCode }()
		must(t, cove.Web{Client: s.Client()}.EndAll(t.Context()))
		code := <-used
		sessions, err := cove.Web{Client: s.Client()}.Sessions(t.Context())
		must(t, err)
		failIf(t, len(sessions) != 0, "round %d: the link's answer was %d, and %d sessions are left", round, code, len(sessions))
	}
}
