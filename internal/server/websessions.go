package server

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/web"
)

// A browser logs in to the web page by a link with a code that works once, which is exchanged
// for a cookie. The session that it stands for has the rights of the token that asked for the
// link, as long as that has them.
const (
	webTime       = 7 * 24 * time.Hour // of a session that is not used
	sharedTime    = 12 * time.Hour     // of a session at a host whose cookies other programs get: see pageName
	webPrefix     = "web."             // of the bearers of sessions, which no token's secret has
	maxWebBrowser = 200
	maxLive       = 400 // streams of pages at once; a token may have a quarter
	maxPages      = 128 // other requests of pages at once; a token may have a quarter
)

// webSessions makes links and sessions, and finds whose a cookie is.
type webSessions struct {
	sessions *store.WebSessions
	access   *access
	rights   *rights
	hosts    *hostnames
	key      []byte // of bearers: this process alone has it
	log      *slog.Logger

	streams, requests *quota // of pages
	turns             *turns // of what pages render

	mu    sync.Mutex
	codes map[string]visit

	redeem sync.RWMutex // held for reading while a code becomes a session
}

// newWebKey makes the key of bearers.
func newWebKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

// link makes a link that logs a browser in by the caller's token.
func (g *webSessions) link(w http.ResponseWriter, r *http.Request) error {
	p := principalOf(r)
	code, until := rand.Text(), time.Now().Add(codeTime)
	if !g.add(code, visit{token: p.name, until: until}) {
		e := fail.New("limit", "too many links wait to be used", "use some, or try again later")
		e.Limit, e.Count, e.RetryAfter = maxCodes, maxCodes, codeTime
		return e
	}
	own, _ := g.hosts.pageOf(r, p.name)
	scheme, host := "http", cmp.Or(own, r.Host)
	if overTLS(r) {
		scheme = "https"
	}
	link := url.URL{Scheme: scheme, Host: host, Path: "/web/login", RawQuery: url.Values{"code": {code}}.Encode()}
	writeJSON(w, http.StatusCreated, cove.WebLink{URL: link.String(), ExpiresAt: until.UTC()})
	return nil
}

func overTLS(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

func (g *webSessions) add(code string, v visit) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return addCode(&g.codes, code, v)
}

// list describes the caller's sessions; to an administrator, all.
func (g *webSessions) list(w http.ResponseWriter, r *http.Request) error {
	sessions, err := g.of(r)
	if err != nil {
		return err
	}
	list := cove.WebSessionList{Sessions: make([]cove.WebSession, len(sessions))}
	for i, s := range sessions {
		list.Sessions[i] = cove.WebSession{
			ID: s.ID, Token: g.tokenOf(s), Browser: s.Browser, Address: s.Address,
			CreatedAt: s.CreatedAt, ConfirmedAt: s.ConfirmedAt, LastUsed: s.LastUsed, ExpiresAt: s.ExpiresAt,
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// of are the sessions that the caller sees and may end: its own; an administrator, all.
func (g *webSessions) of(r *http.Request) ([]store.WebSession, error) {
	p := principalOf(r)
	name := p.name
	if p.may(admin) {
		name = ""
	}
	return g.sessions.List(r.Context(), name)
}

func (g *webSessions) tokenOf(s store.WebSession) string {
	for _, p := range g.access.owners {
		if s.Token == p.name {
			return ""
		}
	}
	return s.Token
}

func (g *webSessions) delete(w http.ResponseWriter, r *http.Request) error {
	p := principalOf(r)
	s, err := g.sessions.Get(r.Context(), r.PathValue("session"))
	if err != nil {
		return err
	}
	if s.Token != p.name && !p.may(admin) {
		return store.ErrNotFound
	}
	if err := g.End(r.Context(), s.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// deleteAll logs out all browsers of the caller, and voids its links; for an administrator, all.
func (g *webSessions) deleteAll(w http.ResponseWriter, r *http.Request) error {
	p := principalOf(r)
	g.redeem.Lock() // each code is a session by now, which is listed, or becomes none
	g.mu.Lock()
	maps.DeleteFunc(g.codes, func(_ string, v visit) bool { return v.token == p.name || p.may(admin) })
	g.mu.Unlock()
	g.redeem.Unlock()
	sessions, err := g.of(r)
	for _, s := range sessions {
		if endErr := g.End(r.Context(), s.ID); !errors.Is(endErr, store.ErrNotFound) { // it has ended by itself
			err = errors.Join(err, endErr)
		}
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// errCode refuses a link's code.
var errCode = fail.New("unauthorized", "this link has been used, or is too old", "make another: cove web")

// errOthers refuses a link's code at the name of another token's page. It does not tell the
// name of the code's token.
var errOthers = fail.New("unauthorized", "this link is for another host name", "open the link as it is, or make another: cove web")

// Waiting tells of a code that can still be used.
func (g *webSessions) Waiting(r *http.Request, code string) (web.Link, error) {
	g.mu.Lock()
	v, ok := g.codes[code]
	g.mu.Unlock()
	if !ok || !time.Now().Before(v.until) {
		return web.Link{}, errCode
	}
	own, others := g.hosts.pageOf(r, v.token)
	if others {
		return web.Link{}, errOthers
	}
	p, err := g.access.byName(r.Context(), v.token)
	return web.Link{Name: p.title, Host: own}, err
}

// Redeem exchanges a code for a cookie's value.
func (g *webSessions) Redeem(r *http.Request, code string, old []string) (value string, until time.Time, err error) {
	g.redeem.RLock()
	defer g.redeem.RUnlock()
	now := time.Now()
	g.mu.Lock()
	v, ok := g.codes[code]
	own, others := g.hosts.pageOf(r, v.token)
	if !others { // else it can be used still
		delete(g.codes, code)
	}
	g.mu.Unlock()
	switch {
	case !ok || !now.Before(v.until):
		return "", now, errCode
	case others:
		return "", now, errOthers
	}
	if _, err := g.access.byName(r.Context(), v.token); err != nil {
		return "", now, err
	}
	lasts := webTime
	if own != "" {
		lasts = sharedTime
	}
	value, until, err = g.supersede(r.Context(), v.token, old, lasts)
	if value != "" || err != nil {
		return value, until, err
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = ""
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	value, until = newSecret(), now.Add(lasts)
	err = g.sessions.Create(r.Context(), store.WebSession{
		ID: hex.EncodeToString(id), Hash: store.HashToken(value), Token: v.token,
		Browser: clean(r.UserAgent(), maxWebBrowser), Address: address,
		CreatedAt: now, ConfirmedAt: now, LastUsed: now, ExpiresAt: until,
	})
	return value, until, err
}

// supersede confirms the first session of a token among a browser's cookies. It ends the
// others, of whatever token, and those that last longer than one may here. If none is left,
// value is empty.
func (g *webSessions) supersede(ctx context.Context, token string, old []string, lasts time.Duration) (value string, until time.Time, err error) {
	now := time.Now()
	for _, cookie := range old {
		s, err := g.sessions.ByHash(ctx, store.HashToken(cookie))
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return "", now, err
		}
		if value == "" && s.Token == token && now.Before(s.ExpiresAt) && s.ExpiresAt.Sub(s.CreatedAt) <= lasts {
			value, until, err = cookie, s.ExpiresAt, g.sessions.Used(ctx, s.ID, now, now)
		} else {
			err = g.End(ctx, s.ID)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return "", now, err
		}
	}
	return value, until, nil
}

// Hold finds the session of a browser's cookies. Calls of the session end with it, and with
// its token.
func (g *webSessions) Hold(r *http.Request, cookies []string) (s web.Session, held context.Context, release func(), err error) {
	ctx := r.Context()
	var token principal
	find := func() (principal, error) {
		var row store.WebSession
		if row, token, err = g.find(ctx, cookies); err != nil {
			return principal{}, err
		}
		if g.strayed(r, row) {
			if err := g.End(ctx, row.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
				return principal{}, err
			}
			return principal{}, web.ErrNoSession
		}
		s = web.Session{ID: row.ID, Token: token.name, Owner: token.owner, Name: token.title, Verbs: token.verbs, Bearer: g.bearer(row.ID), Key: g.markKey(row), ConfirmedAt: row.ConfirmedAt}
		g.noteUse(ctx, row)
		return principal{name: webPrefix + row.ID, until: row.ExpiresAt}, nil
	}
	_, own, releaseOwn, err := g.rights.hold(ctx, find)
	if err != nil {
		return s, nil, nil, err
	}
	_, held, releaseToken, err := g.rights.hold(own, func() (principal, error) { return g.access.byName(own, token.name) })
	if err != nil {
		releaseOwn()
		return s, nil, nil, web.ErrNoSession
	}
	return s, held, func() { releaseToken(); releaseOwn() }, nil
}

// by is the principal that a session counts for.
func (g *webSessions) by(s web.Session) principal {
	return principal{name: s.Token, owner: s.Owner}
}

// Turn waits for a turn of the session's token, which lasts until done is called.
func (g *webSessions) Turn(ctx context.Context, s web.Session) (done func(), err error) {
	return g.turns.take(ctx, g.by(s))
}

// Count counts a stream, or another request, of a session until done is called.
func (g *webSessions) Count(s web.Session, stream bool) (done func(), err error) {
	by := g.by(s)
	if stream {
		return g.streams.add(by)
	}
	return g.requests.add(by)
}

// strayed reports whether a session was taken to a host where it can't have been made. That is
// the name of another token's page, or, if it lasts longer than sharedTime, a host whose
// cookies other programs get.
func (g *webSessions) strayed(r *http.Request, s store.WebSession) bool {
	own, others := g.hosts.pageOf(r, s.Token)
	return others || own != "" && s.ExpiresAt.Sub(s.CreatedAt) > sharedTime
}

// find returns the good session of the cookies, and the principal whose rights it has.
func (g *webSessions) find(ctx context.Context, cookies []string) (s store.WebSession, p principal, err error) {
	err = web.ErrNoSession
	for _, cookie := range cookies {
		row, e := g.sessions.ByHash(ctx, store.HashToken(cookie))
		if errors.Is(e, store.ErrNotFound) || e == nil && !time.Now().Before(row.ExpiresAt) {
			continue
		}
		if e != nil {
			return s, p, e
		}
		by, e := g.access.byName(ctx, row.Token)
		if e != nil {
			continue
		}
		if err == nil {
			return s, p, fail.New("unauthorized", "this browser has cookies of two sessions; a page at a sprite's URL may have set one of them", "log in again to end the other session: cove web")
		}
		s, p, err = row, by, nil
	}
	return s, p, err
}

// noteUse writes a session's use down, now and then.
func (g *webSessions) noteUse(ctx context.Context, s store.WebSession) {
	now := time.Now()
	if now.Sub(s.LastUsed) < usedInterval {
		return
	}
	if err := g.sessions.Used(context.WithoutCancel(ctx), s.ID, now, time.Time{}); err != nil && !errors.Is(err, store.ErrNotFound) {
		g.log.Warn("noting the use of a session of the web page", "id", s.ID, "err", err)
	}
}

// End logs a session out, and ends its calls.
func (g *webSessions) End(ctx context.Context, id string) error {
	if err := g.sessions.Delete(ctx, id); err != nil {
		return err
	}
	g.rights.end(webPrefix + id)
	return nil
}

// bearer is the token that the site sends with a session's calls of the API.
func (g *webSessions) bearer(id string) string {
	mac := hmac.New(sha256.New, g.key)
	mac.Write([]byte(id))
	return webPrefix + id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// markKey is the key that seals the marks of a session's pages. The store has only half of
// what it is made from.
func (g *webSessions) markKey(row store.WebSession) []byte {
	mac := hmac.New(sha256.New, g.hosts.secret)
	mac.Write(append([]byte("marks of "), row.Hash[:]...))
	return mac.Sum(nil)
}

// principal returns the principal of a session's bearer; ok is false if secret is none. A
// bearer is good in this process alone: one that comes by the network counts for nothing.
func (g *webSessions) principal(r *http.Request, secret string) (p principal, ok bool, err error) {
	ctx := r.Context()
	rest, ok := strings.CutPrefix(secret, webPrefix)
	if !ok || !inMemory(ctx) {
		return p, false, nil
	}
	id, _, _ := strings.Cut(rest, ".")
	if subtle.ConstantTimeCompare([]byte(secret), []byte(g.bearer(id))) != 1 {
		return p, false, nil
	}
	s, err := g.sessions.Get(ctx, id)
	if err == nil && !time.Now().Before(s.ExpiresAt) {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return p, true, fail.New("unauthorized", "the browser is not logged in any more", "cove web")
	}
	if err != nil {
		return p, true, err
	}
	p, err = g.access.byName(ctx, s.Token)
	return p, true, err
}
