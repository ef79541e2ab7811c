package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"time"
)

// Session is a browser that is logged in.
type Session struct {
	ID     string
	Token  string   // the session has its rights
	Owner  bool     // that is the server's owner's
	Name   string   // of its token, for people; empty: the server's owner
	Verbs  []string // that its token has
	Bearer string   // the token of its calls of the API, which is good for those that the site makes alone
	Key    []byte   // of the marks that its forms carry, a secret of the session's

	ConfirmedAt time.Time // when it came by a link last
}

// May reports whether the session's token has a verb.
func (s Session) May(verb string) bool { return slices.Contains(s.Verbs, verb) }

// ConfirmedFor is how long after a link a session may do what can't be undone.
const ConfirmedFor = 30 * time.Minute

// Confirmed reports whether the session came by a link not long ago.
func (s Session) Confirmed() bool { return time.Since(s.ConfirmedAt) < ConfirmedFor }

// Link is a link that logs in.
type Link struct {
	Name string // of its token, for people; empty: the server's owner
	Host string // where it must be opened, if other programs on this machine get the cookies of the request's Host; empty: the request's Host will do
}

// Sessions are the sessions of the server.
type Sessions interface {
	// Waiting tells of the link whose code a request has, which can still be used.
	Waiting(r *http.Request, code string) (Link, error)

	// Redeem exchanges a link's code for a cookie's value. old are the cookies that the browser
	// has. A session of the same token among them goes on, and is confirmed: value is its cookie
	// then. Their other sessions end.
	Redeem(r *http.Request, code string, old []string) (value string, until time.Time, err error)

	// Hold finds the session of a browser's cookies: that of the good one. Two good cookies of
	// different sessions are an error, since a sibling's page may have set one. A session that
	// was taken to a host where it does not belong ends, and does not count. If there is none,
	// the error is ErrNoSession. The context ends with the session. The caller must call
	// release when the request is over.
	Hold(r *http.Request, cookies []string) (s Session, held context.Context, release func(), err error)

	// Count counts a stream, or another request, by the session's token until done is called.
	// It refuses one too many, so that the server's owner can always look.
	Count(s Session, stream bool) (done func(), err error)

	// Turn waits until the session may have a part of a page rendered for a stream, until done is
	// called. Its holder waits for nothing, and takes no other turn. It is an error if ctx ends before.
	Turn(ctx context.Context, s Session) (done func(), err error)

	// End logs a session out.
	End(ctx context.Context, id string) error
}

// ErrNoSession says that a cookie is nobody's.
var ErrNoSession = errors.New("not logged in")

// cookieName is the cookie's: over TLS, browsers then take it from this very origin only.
func cookieName(r *http.Request) string {
	if secure(r) {
		return "__Host-cove_web"
	}
	return "cove_web"
}

// maxCookies is how many cookies of the name are looked at.
const maxCookies = 50

// cookies are the values of the cookies that may be a session's. There may be others of the
// same name before ours: a page at a sprite's URL can set some for the whole domain.
func cookies(r *http.Request) (values []string) {
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if len(values) < maxCookies && c.Value != "" && !slices.Contains(values, c.Value) {
			values = append(values, c.Value)
		}
	}
	return values
}

// secure reports whether the browser speaks TLS, to the server itself or to a proxy before it.
func secure(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: secure(r), SameSite: http.SameSiteStrictMode,
	})
}

// A form's mark shows that a page of ours, in the session's browser, has sent it. It is
// different each time it is written, so that compression tells nothing of it.
const markSize = 32

// mark makes one.
func (s Session) mark() string {
	pad := make([]byte, markSize)
	_, _ = rand.Read(pad) // never fails
	return base64.RawURLEncoding.EncodeToString(append(pad, xor(s.proof(), pad)...))
}

// marked reports whether a mark is the session's.
func (s Session) marked(mark string) bool {
	b, err := base64.RawURLEncoding.DecodeString(mark)
	if err != nil || len(b) != 2*markSize {
		return false
	}
	return subtle.ConstantTimeCompare(xor(b[markSize:], b[:markSize]), s.proof()) == 1
}

func (s Session) proof() []byte {
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte("form " + s.ID))
	return mac.Sum(nil)
}

func xor(a, b []byte) []byte {
	out := make([]byte, len(a))
	subtle.XORBytes(out, a, b)
	return out
}
