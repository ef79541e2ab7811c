package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A browser sends no token. It enters the URL of a sprite that is not public by a link with a
// code that works once. The code is exchanged for a cookie of that one origin.
const (
	visitCookie = "cove_visit"
	visitQuery  = "cove_code"
	visitTime   = 12 * time.Hour
	codeTime    = 2 * time.Minute
	maxCodes    = 1000 // that wait to be used
	maxOwnCodes = 100  // of these by the same token: one more, and its oldest ends
)

// visit is a right to enter one sprite's URL.
type visit struct {
	spriteID string
	token    string // ID of the token that gave the visit; the visit ends with it
	until    time.Time
}

// visits lets browsers enter the URLs of sprites: it has the codes that were given out, and
// the key of the cookies.
type visits struct {
	host     *sprite.Host
	settings *store.Settings // keeps the key
	access   *access
	hosts    *hostnames

	mu    sync.Mutex
	codes map[string]visit
	key   []byte
}

// post makes a link with a code.
func (vs *visits) post(w http.ResponseWriter, r *http.Request) error {
	var req sprites.VisitRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Path == "" {
		req.Path = "/"
	}
	to, err := url.Parse(req.Path)
	if err != nil || !strings.HasPrefix(req.Path, "/") || strings.HasPrefix(req.Path, "//") {
		return fail.New("bad_request", "path must begin with one slash", "")
	}
	info, err := vs.host.Get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	link, err := url.Parse(vs.hosts.spriteURL(info.Name))
	if err != nil {
		return err
	}
	now := time.Now()
	code := rand.Text()
	if !vs.add(code, visit{info.ID, principalOf(r).name, now.Add(codeTime)}) {
		e := fail.New("limit", "too many links wait to be used", "use some, or try again later")
		e.Limit, e.Count, e.RetryAfter = maxCodes, maxCodes, codeTime
		return e
	}
	link.Path = to.Path
	q := to.Query()
	q.Set(visitQuery, code)
	link.RawQuery = q.Encode()
	writeJSON(w, http.StatusCreated, sprites.Visit{URL: link.String(), ExpiresAt: now.Add(codeTime).UTC()})
	return nil
}

// add keeps a code, unless there are too many.
func (vs *visits) add(code string, v visit) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return addCode(&vs.codes, code, v)
}

// addCode keeps a code beside others, unless there are too many.
func addCode(codes *map[string]visit, code string, v visit) bool {
	own, oldest := 0, ""
	for c, o := range *codes {
		switch {
		case time.Now().After(o.until):
			delete(*codes, c)
		case o.token == v.token:
			if own++; oldest == "" || o.until.Before((*codes)[oldest].until) {
				oldest = c
			}
		}
	}
	if own >= maxOwnCodes {
		delete(*codes, oldest)
	}
	if len(*codes) >= maxCodes {
		return false
	}
	if *codes == nil {
		*codes = map[string]visit{}
	}
	(*codes)[code] = v
	return true
}

// take returns the visit of a code, and removes the code. It leaves a code for another sprite
// alone.
func (vs *visits) take(code, spriteID string) (v visit, ok bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v, ok = vs.codes[code]; !ok || v.spriteID != spriteID {
		return visit{}, false
	}
	delete(vs.codes, code)
	return v, true
}

func isPublic(info sprites.Info) bool { return info.URLSettings.Auth == "public" }

// everybody is the principal of all visitors of a public URL.
func everybody(info sprites.Info) principal { return principal{name: "public " + info.ID} }

// enter finds the principal whose right lets a request go on to a sprite's URL.
func (vs *visits) enter(r *http.Request, info sprites.Info) (principal, error) {
	if isPublic(info) {
		return everybody(info), nil
	}
	if r.Header.Get("Authorization") != "" {
		p, err := vs.access.authenticate(r)
		if err != nil {
			return p, err
		}
		if !p.may(exec) {
			return p, fail.New("forbidden", "the token does not reach this sprite's URL", "it needs the verb exec: "+p.with(exec))
		}
		return p, vs.access.mayActIn(r.Context(), p, info.Name)
	}
	p, err := vs.visitor(r, info)
	if err != nil {
		return p, err
	}
	if !ownRequest(r) {
		return p, fail.New("forbidden", "the request comes from another origin", "")
	}
	return p, nil
}

// ownRequest reports whether a request with a cookie comes from the sprite's own pages, or
// from a person who follows a link. The browser also sends the cookie with requests of sibling
// origins of the same site.
func ownRequest(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || isUpgrade(r) {
		probe := *r
		probe.Method = http.MethodPost // the protection lets GET pass
		return crossOrigin.Check(&probe) == nil
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	return true // also of a browser that does not say
}

// redeem exchanges a code for a cookie, and redirects to the address without the code.
func (vs *visits) redeem(w http.ResponseWriter, r *http.Request, info sprites.Info) error {
	q := r.URL.Query()
	v, ok := vs.take(q.Get(visitQuery), info.ID)
	if !ok || !time.Now().Before(v.until) {
		return fail.New("unauthorized", "this link has been used, or is too old", "make another: cove url --link "+info.Name)
	}
	v.until = time.Now().Add(visitTime)
	value, err := vs.seal(r.Context(), v)
	if err != nil {
		return err
	}
	q.Del(visitQuery)
	to := url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: q.Encode()}
	h := w.Header()
	http.SetCookie(w, &http.Cookie{
		Name: visitCookie, Value: value, Path: "/", MaxAge: int(visitTime.Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Location", "/"+strings.TrimLeft(to.String(), "/")) // never another host
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// seal makes a cookie's value.
func (vs *visits) seal(ctx context.Context, v visit) (string, error) {
	key, err := vs.cookieKey(ctx)
	if err != nil {
		return "", err
	}
	text := strings.Join([]string{strconv.FormatInt(v.until.Unix(), 10), v.spriteID, v.token}, ".")
	return text + "." + visitMAC(key, text), nil
}

// visitor finds the principal of a visit by its cookie. There may be other cookies of the same
// name before ours: a page of a sibling can set some for the whole domain.
func (vs *visits) visitor(r *http.Request, info sprites.Info) (principal, error) {
	for _, c := range r.CookiesNamed(visitCookie) {
		v, err := vs.open(r.Context(), c.Value)
		if err != nil {
			return principal{}, err
		}
		if v.spriteID != info.ID || !time.Now().Before(v.until) {
			continue
		}
		if p, ok := vs.access.visitor(r.Context(), v); ok {
			return p, nil
		}
	}
	return principal{}, fail.New("unauthorized", "this sprite's URL is not public", "make a link for the browser: cove url --link "+info.Name)
}

// open reads a cookie's value; a foreign one is a visit to nowhere (the zero visit).
func (vs *visits) open(ctx context.Context, value string) (visit, error) {
	key, err := vs.cookieKey(ctx)
	if err != nil {
		return visit{}, err
	}
	i := strings.LastIndexByte(value, '.')
	parts := strings.Split(value[:max(i, 0)], ".")
	if len(parts) != 3 || subtle.ConstantTimeCompare([]byte(visitMAC(key, value[:i])), []byte(value[i+1:])) != 1 {
		return visit{}, nil
	}
	until, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return visit{}, nil
	}
	return visit{spriteID: parts[1], token: parts[2], until: time.Unix(until, 0)}, nil
}

func visitMAC(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// cookieKey returns the key of the cookies, which is made once.
func (vs *visits) cookieKey(ctx context.Context) ([]byte, error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.key != nil {
		return vs.key, nil
	}
	const setting = "visit_key"
	text, err := vs.settings.Get(ctx, setting)
	if errors.Is(err, store.ErrNotFound) {
		text = rand.Text() + rand.Text()
		err = vs.settings.Set(ctx, setting, text)
	}
	if err != nil {
		return nil, err
	}
	vs.key = []byte(text)
	return vs.key, nil
}
