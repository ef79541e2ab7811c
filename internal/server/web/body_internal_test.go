package web

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

// oneSession is a server that has one session, whatever the cookie.
type oneSession struct{ s *Session }

func (o oneSession) Waiting(*http.Request, string) (Link, error) { return Link{}, ErrNoSession }

func (o oneSession) Redeem(*http.Request, string, []string) (string, time.Time, error) {
	return "", time.Time{}, ErrNoSession
}

func (o oneSession) Hold(r *http.Request, _ []string) (Session, context.Context, func(), error) {
	if o.s == nil {
		return Session{}, nil, nil, ErrNoSession
	}
	return *o.s, r.Context(), func() {}, nil
}

func (o oneSession) Count(Session, bool) (func(), error) { return func() {}, nil }

func (o oneSession) Turn(context.Context, Session) (func(), error) { return func() {}, nil }

func (o oneSession) End(context.Context, string) error { return nil }

// deadlined is an answer whose connection has a read deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error { d.until = t; return nil }

// endless is a body that goes on for ever, or never comes. It counts what was read of it, and how
// often that was tried while there was no deadline.
type endless struct {
	d       *deadlined
	stalls  bool
	n       int64
	unbound int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.d.until.IsZero() {
		e.unbound++
	}
	if e.stalls || e.n > 2<<30 {
		return 0, os.ErrDeadlineExceeded
	}
	for i := range p {
		p[i] = 'a'
	}
	e.n += int64(len(p))
	return len(p), nil
}

func (e *endless) Close() error { return nil }

// TestBodies: the server reads no more of a request's body than the largest form has, and
// nothing if its mark is wrong. It waits for no body without end.
func TestBodies(t *testing.T) {
	session := &Session{ID: "1", Key: []byte("key")}
	marked := http.Header{markHeader: {session.mark()}}
	for _, c := range []struct {
		name, path, kind string
		header           http.Header
		nobody, stalls   bool
		status           int
		most             int64
	}{
		{name: "no mark", path: "/web/logout", kind: "application/x-www-form-urlencoded", status: 413, most: maxForm},
		{name: "wrong mark", path: "/web/logout", kind: "application/x-www-form-urlencoded", header: http.Header{markHeader: {"x"}}, status: 403},
		{name: "a mark", path: "/web/logout", kind: "application/x-www-form-urlencoded", header: marked, status: 413, most: maxForm},
		{name: "files", path: "/web/logout", kind: "multipart/form-data; boundary=x", header: marked, status: 400},
		{name: "files without a mark", path: "/web/logout", kind: "multipart/form-data; boundary=x", status: 400},
		{name: "upload with a form's mark", path: "/web/sprites/x/files/upload", kind: "application/x-www-form-urlencoded", status: 403},
		{name: "no such page", path: "/web/nothing", kind: "application/x-www-form-urlencoded", status: 413, most: maxForm},
		{name: "login", path: "/web/login", kind: "application/x-www-form-urlencoded", nobody: true, status: 413, most: maxLoginForm},
		{name: "logged out", path: "/web/logout", kind: "application/x-www-form-urlencoded", nobody: true, status: 401},
		{name: "login that stalls", path: "/web/login", kind: "application/x-www-form-urlencoded", nobody: true, stalls: true, status: 400},
		{name: "form that stalls", path: "/web/logout", kind: "application/x-www-form-urlencoded", stalls: true, status: 400},
	} {
		site := &Site{Sessions: oneSession{session}, Logger: slog.New(slog.DiscardHandler), SameOrigin: func(*http.Request) error { return nil }}
		if c.nobody {
			site.Sessions = oneSession{}
		}
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		body := &endless{d: w, stalls: c.stalls}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path, body)
		r.ContentLength = 1 << 30
		for k, v := range c.header {
			r.Header[k] = v
		}
		r.Header.Set("Content-Type", c.kind)
		site.Handler().ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
		if body.n > c.most+64<<10 {
			t.Errorf("%s: %d bytes were read", c.name, body.n)
		}
		if body.unbound > 0 || w.until.IsZero() {
			t.Errorf("%s: the body has no deadline", c.name)
		}
	}
}

// TestFormArrives: a form that arrives is read whole, and the answer may then take as long as it likes.
func TestFormArrives(t *testing.T) {
	session := Session{ID: "1", Key: []byte("key")}
	form := url.Values{markField: {session.mark()}, "plan": {strings.Repeat("ä", 1<<19)}} // the longest plan
	w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/web/new", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	awaitBody(w, r)
	v := &view{w: w, r: r, session: session}
	if err := v.readBody(); err != nil {
		t.Fatal(err)
	}
	if got := v.r.PostForm.Get("plan"); got != form.Get("plan") {
		t.Errorf("%d bytes of the plan arrived", len(got))
	}
	if !w.until.IsZero() {
		t.Error("the answer has a deadline that was the form's")
	}

	// A file's bytes each renew the time.
	r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/web/sprites/x/files/upload", strings.NewReader("12"))
	r.Pattern, v.r = uploadRoute, r
	r.Header.Set(markHeader, session.mark())
	if err := v.readBody(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.r.Body.Read(make([]byte, 1)); err != nil || w.until.IsZero() {
		t.Errorf("the first byte: %v, by %v", err, w.until)
	}
	if rest, err := io.ReadAll(v.r.Body); err != nil || string(rest) != "2" || !w.until.IsZero() {
		t.Errorf("the rest: %q, %v, by %v", rest, err, w.until)
	}
}

// TestUploadRoute: uploadRoute is one of the routes.
func TestUploadRoute(t *testing.T) {
	for _, r := range routes() {
		if r.pattern == uploadRoute {
			return
		}
	}
	t.Error("there is none")
}
