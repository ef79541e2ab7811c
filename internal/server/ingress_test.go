package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// site stands for a sprite's HTTP service in these tests: it listens on the port that a
// service names.
type site struct {
	*httptest.Server
	mu   sync.Mutex
	last *http.Request
}

func newSite(t *testing.T) *site {
	w := &site{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.last = r
		w.mu.Unlock()
		if r.URL.Path == "/socket" {
			conn, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
			if err != nil {
				return
			}
			for {
				typ, p, err := conn.Read(r.Context())
				if err != nil || conn.Write(r.Context(), typ, append([]byte("echo "), p...)) != nil {
					return
				}
			}
		}
		rw.Header().Set("Set-Cookie", "early=1; Domain=localhost")
		rw.Header().Set("X-Early", "yes")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("X-Early")
		rw.Header().Set("Set-Cookie", "own=1; Domain=localhost")
		rw.Header().Set("Trailer", "Set-Cookie, X-Last")
		defer func() {
			rw.Header().Set("Set-Cookie", "late=1; Domain=localhost")
			rw.Header().Set(http.TrailerPrefix+"Set-Cookie", "later=1; Domain=localhost")
			rw.Header().Set("X-Last", "yes")
		}()
		rw.Header().Add("Set-Cookie", "cove_visit=stolen")
		rw.Header().Set("X-Own", "yes")
		for _, key := range lasting {
			rw.Header().Set(key, "own")
		}
		rw.Header().Set("Content-Security-Policy", "img-src *")
		_, _ = io.WriteString(rw, "page "+r.URL.Path) // who has gone
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *site) port(t *testing.T) int {
	t.Helper()
	u, err := url.Parse(w.URL)
	must(t, err)
	var port int
	_, err = fmt.Sscan(u.Port(), &port)
	must(t, err)
	return port
}

// service defines a service that claims the site's port.
func (w *site) service(t *testing.T, sp *sprites.Sprite) {
	t.Helper()
	must(t, sp.PutService(t.Context(), sprites.Service{Name: "web", Cmd: "sleep", Args: []string{"1000"}, HTTPPort: w.port(t)}, sprites.Follow{}))
}

// at makes a request go to a sprite's URL.
func at(name string) edit {
	return func(r *http.Request) { r.Host = name + ".localhost:" + r.URL.Port() }
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func without(r *http.Request) { r.Header.Del("Authorization") }

func public(t *testing.T, s *covetest.Server, name, auth string) {
	t.Helper()
	_, err := s.Client().Update(t.Context(), name, sprites.UpdateRequest{URLSettings: &sprites.URLSettings{Auth: auth}})
	must(t, err)
}

// Statement 85: URL auth sprite: no token 401, bearer token 200; public: 200.
func TestURL(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	s.Create("other")
	w.service(t, sp)
	info, err := s.Client().Get(t.Context(), "paint")
	must(t, err)
	failIf(t, !strings.HasPrefix(info.URL, "http://paint.localhost:") || !strings.HasSuffix(info.URL, "/"), "the URL is %q", info.URL)
	out, err := sp.Command("sh", "-c", "echo $SPRITE_URL").Output()
	failIf(t, err != nil || strings.TrimSpace(string(out)) != info.URL, "inside the URL is %q, %v", out, err)

	var early http.Header
	a := ask(t, s, "GET /a?b=c", "", at("paint"), func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = http.Header(h)
			return nil
		}}))
	})
	failIf(t, early.Get("X-Early") != "yes" || early.Get("Set-Cookie") != "", "the early hints are %v", early)
	failIf(t, a.Trailer.Get("X-Last") != "yes" || a.Trailer.Get("Set-Cookie") != "", "the trailer is %v", a.Trailer)
	failIf(t, a.StatusCode != 200 || string(a.body) != "page /a" || a.Header.Get("X-Own") != "yes", "got %d %v %q", a.StatusCode, a.Header, a.body)
	cookies := strings.Join(a.Header.Values("Set-Cookie"), "|")
	failIf(t, cookies != "own=1", "the header is %v", a.Header)
	csp := a.Header.Values("Content-Security-Policy")
	failIf(t, !slices.Equal(csp, []string{"img-src *", "frame-ancestors 'self'"}) || a.Header.Get("Cross-Origin-Resource-Policy") != "same-origin", "the header is %v", a.Header)
	w.mu.Lock()
	failIf(t, w.last.Header.Get("Authorization") != "" || w.last.Host != "paint.localhost:"+strings.TrimPrefix(s.URL, "http://127.0.0.1:") || w.last.URL.RawQuery != "b=c", "the guest saw %v %v", w.last.Host, w.last.Header)
	w.mu.Unlock()

	ask(t, s, "GET /", "", at("paint"), without).refused(t, 401, "unauthorized")
	ask(t, s, "GET /", "", at("paint"), header("Authorization", "Bearer wrong")).refused(t, 401, "unauthorized")
	ask(t, s, "GET /", "", at("nobody")).refused(t, 404, "not_found")
	one, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "one", Scope: cove.TokenScope{Sprite: "other"}, Verbs: []string{"exec"}})
	must(t, err)
	ask(t, s, "GET /", "", at("paint"), header("Authorization", "Bearer "+one.Secret)).refused(t, 403, "forbidden")

	public(t, s, "paint", "public")
	a = ask(t, s, "GET /b", "", at("paint"), header("Authorization", "Bearer "+s.Token), header("Cookie", "own=1; cove_visit=x"),
		header("X-Forwarded-For", "1.2.3.4"), header("X-Forwarded-Host", "evil"), header("Forwarded", "for=1.2.3.4"),
		header("X_Forwarded_For", "1.2.3.4"), header("Any_Thing", "1.2.3.4"), header("Client-Ip", "1.2.3.4"), header("X-Client-Ip", "1.2.3.4"),
		header("X-Real-IP", "1.2.3.4"), header("True-Client-IP", "1.2.3.4"), header("CF-Connecting-IP", "1.2.3.4"), header("X-Cluster-Client-Ip", "1.2.3.4"))
	failIf(t, a.StatusCode != 200, "got %d %q", a.StatusCode, a.body)
	failIf(t, len(a.Header.Values("Content-Security-Policy")) != 1 || a.Header.Get("Cross-Origin-Resource-Policy") != "", "the header is %v", a.Header)
	w.mu.Lock()
	h := w.last.Header
	failIf(t, h.Get("Authorization") != "" || h.Get("Cookie") != "own=1" || h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("Forwarded") != "" ||
		strings.Contains(h.Get("X-Forwarded-Host"), "evil") || strings.Contains(fmt.Sprint(h), "1.2.3.4"), "the guest saw %v", h)
	w.mu.Unlock()
	failIf(t, ask(t, s, "GET /", "", at("paint"), without).StatusCode != 200, "a public page is refused")
}

// TestURLOrigins: the API and each sprite's page are origins of their own.
func TestURLOrigins(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	public(t, s, "paint", "public")
	// Nothing of the API is at a sprite's URL, and a sprite's page can't call it.
	a := ask(t, s, "GET /v1/sprites", "", at("paint"))
	failIf(t, string(a.body) != "page /v1/sprites", "got %q", a.body)
	ask(t, s, "GET /v1/sprites", "", header("Origin", "http://paint.localhost")).refused(t, 403, "forbidden")
	for _, host := range []string{"a.b.localhost", ".localhost", "paint.localhost.evil", "paint.evil"} {
		a := ask(t, s, "GET /v1/sprites", "", func(r *http.Request) { r.Host = host })
		failIf(t, a.StatusCode == 200, "%s: %q", host, a.body)
	}
}

// Statement 86: a request to a stopped http_port service starts it.
func TestURLStarts(t *testing.T) {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	must(t, sp.StopService(t.Context(), "web", time.Second, nil))
	info, err := s.Client().Get(t.Context(), "paint")
	must(t, err)
	rt.Kill(info.ID, "for the test") // it sleeps
	a := ask(t, s, "GET /", "", at("paint"))
	failIf(t, a.StatusCode != 200, "got %d %q", a.StatusCode, a.body)
	d, err := sp.Service(t.Context(), "web")
	failIf(t, err != nil || d.State.Status == sprites.ServiceStopped, "got %+v, %v", d, err) // the site listens before it runs
}

// TestURLHolds: a request waits until something listens, and gives up in time.
func TestURLHolds(t *testing.T) {
	// To a visitor, a guest that does not even answer looks the same.
	var log syncBuffer
	evil, _ := hostileWith(t, covetest.Options{Log: &log}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	hung := make(chan answer)
	go func() { hung <- ask(t, evil, "GET /", "", at("evil")) }()
	defer func() {
		a := <-hung
		a.refused(t, 503, "unavailable")
		failIf(t, a.Header.Get("Retry-After") == "", "got %v", a.Header)
		failIf(t, strings.Contains(log.String(), "level=ERROR"), "the log has %s", &log)
	}()
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	// On a slow machine the request may be given up before something listens.
	for deadline := time.Now().Add(lastResort); ; {
		addr := covetest.Address(t)
		taken, err := netip.ParseAddrPort(addr)
		must(t, errors.Join(err, sp.PutService(t.Context(), sprites.Service{Name: "web", Cmd: "sleep", Args: []string{"1000"}, HTTPPort: int(taken.Port())}, sprites.Follow{})))
		a, held, late := askLate(t, s, addr)
		if a.StatusCode == 503 && held > 5*time.Second && time.Now().Before(deadline) {
			continue
		}
		failIf(t, a.StatusCode != 200 || string(a.body) != "late" || !late, "got %d %q after %v", a.StatusCode, a.body, held)
		break
	}

	s.Create("empty")
	must(t, s.Client().Sprite("empty").PutService(t.Context(), sprites.Service{Name: "web", Cmd: "sleep", Args: []string{"1000"}, HTTPPort: 1}, sprites.Follow{}))
	a := ask(t, s, "GET /", "", at("empty"))
	a.refused(t, 503, "unavailable")
	failIf(t, a.Header.Get("Retry-After") == "", "got %v", a.Header)
	failIf(t, !bytes.Contains(a.body, []byte("port 1, the port of the service web (running)")) || !bytes.Contains(a.body, []byte("cove service logs")), "got %s", a.body)

	// Without a service, the answer says what to type.
	s.Create("bare")
	a = ask(t, s, "GET /", "", at("bare"))
	a.refused(t, 503, "unavailable")
	failIf(t, !bytes.Contains(a.body, []byte("nothing answers at the URL of sprite bare: nothing takes connections at port 8080")) ||
		!bytes.Contains(a.body, []byte("cove service put -s bare --http-port 8080 web CMD")), "got %s", a.body)
	a = ask(t, s, "GET /", "", at("nobody"), header("Accept", "text/html"))
	failIf(t, a.StatusCode != 404 || a.Header.Get("Content-Type") != "text/plain; charset=utf-8" || !strings.HasPrefix(string(a.body), "cove: "), "got %d %v %q", a.StatusCode, a.Header, a.body)
}

// askLate asks for the page of paint, and begins to serve it at addr half a second later. It returns
// the answer, how long that took, and whether it came after the service began.
func askLate(t *testing.T, s *covetest.Server, addr string) (a answer, held time.Duration, late bool) {
	t.Helper()
	var listening atomic.Bool
	var serving sync.WaitGroup
	defer serving.Wait()
	gone := make(chan struct{})
	defer close(gone)
	serving.Go(func() {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-gone:
			return
		}
		listening.Store(true)
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		page := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "late") })} //nolint:gosec // ends with the test
		serving.Go(func() { _ = page.Serve(ln) })
		<-gone
		_ = page.Close()
	})
	began := time.Now()
	a = ask(t, s, "GET /", "", at("paint"))
	return a, time.Since(began), listening.Load()
}

// Statement 87: a WebSocket upgrade passes through the URL.
func TestURLSocket(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/socket", &websocket.DialOptions{
		Host: "paint.localhost", HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
	})
	must(t, errors.Join(err, conn.Write(t.Context(), websocket.MessageText, []byte("hello"))))
	_, p, err := conn.Read(t.Context())
	failIf(t, err != nil || string(p) != "echo hello", "got %q, %v", p, err)
	eventually(t, s, "paint", func(i sprites.Info) bool { return strings.Contains(strings.Join(i.Cove.AwakeBy, " "), "url") })
	must(t, s.Server.Close()) // does not wait for it for ever
	_, _, err = conn.Read(t.Context())
	failIf(t, err == nil, "the WebSocket outlives the server")
}

// lasting are headers that let a page learn of others' requests from the browser.
var lasting = []string{
	"NEL", "Report-To", "Alt-Svc", "Clear-Site-Data", "Service-Worker-Allowed", "No-Vary-Search", "Reporting-Endpoints",
	"Use-As-Dictionary", "Speculation-Rules", "Strict-Transport-Security", "Set-Login", "Sec-Session-Registration",
}

// TestNoServiceWorker: no page can see the requests that come after it, neither by reports nor
// by a service worker. That holds also for a worker from a time when the URL was public.
func TestNoServiceWorker(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	for _, auth := range []string{"sprite", "public"} {
		public(t, s, "paint", auth)
		for _, by := range []edit{header("Service-Worker", "script"), header("Sec-Fetch-Dest", "serviceworker")} {
			for _, what := range []string{"GET /worker.js", "GET /?cove_code=x"} {
				a := ask(t, s, what, "", at("paint"), by)
				a.refused(t, 403, "forbidden")
				failIf(t, a.Header.Get("X-Own") != "" || !strings.Contains(string(a.body), "cove proxy -s paint"), "got %v %s", a.Header, a.body)
			}
		}
		a := ask(t, s, "GET /worker.js", "", at("paint"), header("Sec-Fetch-Dest", "script"))
		failIf(t, a.StatusCode != 200 || a.Header.Get("X-Own") == "", "a script: got %d %v", a.StatusCode, a.Header)
		for _, key := range lasting {
			failIf(t, a.Header.Get(key) != "", "there is %s in %v", key, a.Header)
		}
	}
}

// TestVisit: a browser enters by a link that works once, and stays by a cookie of
// that origin.
func TestVisit(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	newSite(t).service(t, s.Create("other"))
	v, err := s.Client().Visit(t.Context(), "paint", sprites.VisitRequest{Path: "/a?b=c"})
	must(t, err)
	link, err := url.Parse(v.URL)
	must(t, err)
	failIf(t, !strings.HasPrefix(link.Host, "paint.localhost") || link.Query().Get("b") != "c", "the link is %s", link)
	code := "GET " + link.RequestURI()

	ask(t, s, code, "", at("other"), without).refused(t, 401, "unauthorized") // and is not used up by it
	a := ask(t, s, code, "", at("paint"), without)
	failIf(t, a.StatusCode != 303 || a.Header.Get("Location") != "/a?b=c", "got %d %v", a.StatusCode, a.Header)
	cookie := a.Header.Get("Set-Cookie")
	for _, want := range []string{"cove_visit=", "HttpOnly", "SameSite=Lax", "Path=/"} {
		failIf(t, !strings.Contains(cookie, want) || strings.Contains(cookie, "Domain"), "the cookie is %q", cookie)
	}
	ask(t, s, code, "", at("paint"), without).refused(t, 401, "unauthorized") // it has been used

	have, _, _ := strings.Cut(cookie, ";")
	inside := header("Cookie", have)
	failIf(t, ask(t, s, "GET /", "", at("paint"), without, inside).StatusCode != 200, "the cookie is refused")
	tossed := header("Cookie", "cove_visit=a.b.c.d; "+have+"; cove_visit=e")
	failIf(t, ask(t, s, "GET /", "", at("paint"), without, tossed).StatusCode != 200, "the cookie is refused for another of its name")
	ask(t, s, "GET /", "", at("other"), without, inside).refused(t, 401, "unauthorized")
	ask(t, s, "GET /v1/sprites", "", without, inside).refused(t, 401, "unauthorized")
	ask(t, s, "GET /", "", at("paint"), without, header("Cookie", have+"x")).refused(t, 401, "unauthorized")
	ask(t, s, "GET /", "", at("paint"), without, header("Cookie", "cove_visit=9999999999."+strings.Repeat("a", 16)+".owner.x")).refused(t, 401, "unauthorized")
	// Another page can't make the browser write with it, or open a WebSocket.
	failIf(t, ask(t, s, "POST /", "", at("paint"), without, inside, header("Sec-Fetch-Site", "same-origin")).StatusCode != 200, "the page's own request is refused")
	ask(t, s, "POST /", "", at("paint"), without, inside, header("Sec-Fetch-Site", "same-site")).refused(t, 403, "forbidden")
	for fetch, status := range map[string]int{ // nor load anything, but a link may lead to it
		"same-origin no-cors script": 200, "none navigate document": 200, "cross-site navigate document": 200, "same-site navigate document": 200,
		"same-site no-cors script": 403, "cross-site no-cors image": 403, "same-site cors empty": 403, "same-site navigate iframe": 403, "cross-site navigate object": 403, "same-site": 403,
	} {
		word := append(strings.Fields(fetch), "", "")
		a := ask(t, s, "GET /", "", at("paint"), without, inside, header("Sec-Fetch-Site", word[0]), header("Sec-Fetch-Mode", word[1]), header("Sec-Fetch-Dest", word[2]))
		failIf(t, a.StatusCode != status, "%s: got %d", fetch, a.StatusCode)
	}
	ask(t, s, "GET /socket", "", at("paint"), without, inside, header("Origin", "http://other.localhost"),
		header("Connection", "Upgrade"), header("Upgrade", "websocket")).refused(t, 403, "forbidden")

	// A cookie that a token gave ends with the token.
	tok, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "guest", Scope: cove.TokenScope{Sprite: "paint"}, Verbs: []string{"exec"}})
	must(t, err)
	v, err = (&cove.Client{Client: &sprites.Client{URL: s.URL, Token: tok.Secret}}).Visit(t.Context(), "paint", sprites.VisitRequest{})
	must(t, err)
	link, err = url.Parse(v.URL)
	must(t, err)
	a = ask(t, s, "GET "+link.RequestURI(), "", at("paint"), without)
	have, _, _ = strings.Cut(a.Header.Get("Set-Cookie"), ";")
	failIf(t, ask(t, s, "GET /", "", at("paint"), without, header("Cookie", have)).StatusCode != 200, "the cookie is refused")
	must(t, s.Client().DeleteToken(t.Context(), tok.ID))
	ask(t, s, "GET /", "", at("paint"), without, header("Cookie", have)).refused(t, 401, "unauthorized")

	for _, path := range []string{"a", "//evil", "http://evil/"} {
		_, err = s.Client().Visit(t.Context(), "paint", sprites.VisitRequest{Path: path})
		wantError(t, err, 400, "bad_request")
	}
}

// TestVisitOwner: the owner's cookies outlive the server, but not the owner's token.
func TestVisitOwner(t *testing.T) {
	dir, rt := t.TempDir(), &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	v, err := s.Client().Visit(t.Context(), "paint", sprites.VisitRequest{})
	must(t, err)
	link, err := url.Parse(v.URL)
	must(t, err)
	have, _, _ := strings.Cut(ask(t, s, "GET "+link.RequestURI(), "", at("paint"), without).Header.Get("Set-Cookie"), ";")
	inside := header("Cookie", have)
	s.Stop()
	s = covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	failIf(t, ask(t, s, "GET /", "", at("paint"), without, inside).StatusCode != 200, "the cookie ends with the server")
	s.Stop()
	must(t, os.Remove(filepath.Join(dir, "token")))
	s = covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	ask(t, s, "GET /", "", at("paint"), without, inside).refused(t, 401, "unauthorized")
}

// TestVisits: a token that makes too many links ends only its own older ones.
func TestVisits(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	entered := func(v sprites.Visit) int {
		t.Helper()
		link, err := url.Parse(v.URL)
		must(t, err)
		return ask(t, s, "GET "+link.RequestURI(), "", at("paint"), without).StatusCode
	}
	one, err := s.Client().Visit(t.Context(), "paint", sprites.VisitRequest{})
	must(t, err)
	narrow := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: token(t, s, cove.TokenScope{Sprite: "paint"}, "exec").Secret}}
	var links []sprites.Visit
	for range 1001 {
		v, err := narrow.Visit(t.Context(), "paint", sprites.VisitRequest{})
		must(t, err)
		links = append(links, v)
	}
	another, err := s.Client().Visit(t.Context(), "paint", sprites.VisitRequest{})
	failIf(t, err != nil || entered(one) != 303 || entered(another) != 303, "the owner's links are gone, %v", err)
	failIf(t, entered(links[0]) != 401 || entered(links[1000]) != 303 || entered(links[901]) != 303 || entered(links[900]) != 401, "not the token's last hundred are left")
}

// TestURLNames: the server's own names can't be a sprite's URL.
func TestURLNames(t *testing.T) {
	for name, bad := range map[string]bool{
		"evil.cove.test": true, "Evil.Cove.Test": true, "evil.localhost": true, "cove.test": false, "a.b.cove.test": false, "localhost": false, "cove.example": false,
	} {
		dir := t.TempDir()
		st, err := store.Open(t.Context(), filepath.Join(dir, "cove.db"))
		must(t, err)
		s := &server.Server{Dir: dir, Store: st, Host: &sprite.Host{Store: st}, Domain: "cove.test", Names: []string{"cove.example", name}}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = s.Serve(ctx, ln)
		failIf(t, (err != nil) != bad || bad && !strings.Contains(err.Error(), "of sprite evil"), "%s: %v", name, err)
		must(t, errors.Join(s.Close(), st.Close()))
	}
}

// TestURLBehindProxy: with a proxy in front, a sprite's URL and links to it are those of the proxy.
func TestURLBehindProxy(t *testing.T) {
	for domain, want := range map[string]string{
		"https://Sprites.example":      "https://paint.sprites.example/",
		"https://sprites.example:8443": "https://paint.sprites.example:8443/",
		"http://sprites.example/":      "http://paint.sprites.example/",
	} {
		s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Domain = domain }})
		sp, w := s.Create("paint"), newSite(t)
		w.service(t, sp)
		info, err := s.Client().Get(t.Context(), "paint")
		failIf(t, err != nil || info.URL != want, "%s: got %q, %v", domain, info.URL, err)
		a := ask(t, s, "GET /", "", func(r *http.Request) { r.Host = "paint.sprites.example" })
		failIf(t, a.StatusCode != 200, "%s: %d %q", domain, a.StatusCode, a.body)
	}
	for _, domain := range []string{"ftp://a.example", "https://", "https://a.example/sub", "https://me@a.example", "https://a.example?x"} {
		dir := t.TempDir()
		st, err := store.Open(t.Context(), filepath.Join(dir, "cove.db"))
		must(t, err)
		s := &server.Server{Dir: dir, Store: st, Host: &sprite.Host{Store: st}, Domain: domain}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		err = s.Serve(t.Context(), ln)
		failIf(t, err == nil || !strings.Contains(err.Error(), "can't be the domain"), "%s: %v", domain, err)
		must(t, errors.Join(s.Close(), st.Close()))
	}
}

func TestURLDomain(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Domain = "sprites.example" }})
	sp, w := s.Create("paint"), newSite(t)
	w.service(t, sp)
	info, err := s.Client().Get(t.Context(), "paint")
	failIf(t, err != nil || !strings.HasPrefix(info.URL, "http://paint.sprites.example:"), "got %q, %v", info.URL, err)
	for _, host := range []string{"paint.sprites.example", "PAINT.Sprites.Example.:80", "paint.localhost"} {
		a := ask(t, s, "GET /", "", func(r *http.Request) { r.Host = host })
		failIf(t, a.StatusCode != 200, "%s: %d %q", host, a.StatusCode, a.body)
	}
}
