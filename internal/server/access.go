package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

var allVerbs = []string{cove.VerbRead, cove.VerbWrite, cove.VerbExec, cove.VerbAdmin}

// principal is the caller of a request, known by the token. All visitors of a public URL are
// one principal.
type principal struct {
	name  string
	title string // of the token, for people
	owner bool   // the server's own, not one of the store's
	hash  [sha256.Size]byte
	scope cove.TokenScope
	verbs []string
	until time.Time       // zero: for ever
	own   map[string]bool // the sprites of its jobs, by name, if the scope is a profile
}

// newPrincipal returns a principal that may do everything. Its name depends on its secret, so
// anything that it granted to others ends with that secret.
func newPrincipal(name, secret string) principal {
	hash := store.HashToken(secret)
	name += "-" + hex.EncodeToString(hash[:4])
	return principal{name: name, owner: true, hash: hash, scope: cove.TokenScope{All: true}, verbs: allVerbs}
}

// newSecret makes a token's secret.
func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return "cove_" + base64.RawURLEncoding.EncodeToString(b)
}

// may reports whether the principal has the verb; every principal has the empty verb.
func (p principal) may(verb string) bool {
	return verb == "" || slices.Contains(p.verbs, verb)
}

// reaches reports whether a sprite is in the principal's scope.
func (p principal) reaches(name string) bool {
	switch {
	case p.scope.All:
		return true
	case p.scope.Prefix != "":
		return strings.HasPrefix(name, p.scope.Prefix)
	case p.scope.Profile != "":
		return p.own[name]
	}
	return p.scope.Sprite != "" && name == p.scope.Sprite
}

// reachesAt is reaches for a sprite of a backend; the empty one is this server.
func (p principal) reachesAt(backend, name string) bool {
	return p.scope.All || backend == "" && p.reaches(name)
}

// sees reports whether the principal may see a job: one that it has begun, or one of a sprite that
// it reaches.
func (p principal) sees(job cove.Job) bool {
	return job.By != "" && job.By == p.name || p.reachesAt(job.Backend, job.Sprite)
}

// access finds out whose token a request carries, and what that may do.
type access struct {
	tokens  *store.Tokens
	sprites *store.Sprites
	owners  []principal // may do everything; they are not in the store
	log     *slog.Logger

	web    *webSessions // their bearers are good, too
	rights rights       // that calls on their way rest on
	used   usedTokens
}

type principalKey struct{}

func principalOf(r *http.Request) principal {
	p, _ := r.Context().Value(principalKey{}).(principal)
	return p
}

// authorize finds the principal of the request's token, and checks that it may do verb. If the
// path names a sprite, the principal must reach that sprite, whether it exists or not.
func (a *access) authorize(r *http.Request, verb string) (principal, error) {
	p, err := a.authenticate(r)
	if err != nil {
		return p, err
	}
	if !p.may(verb) {
		return p, p.lacks(verb)
	}
	name := r.PathValue("name")
	if name == "" {
		return p, nil
	}
	return p, a.mayActIn(r.Context(), p, name)
}

// knows reports whether the caller may look at a profile. A token for one profile, without the
// verb admin, knows that profile alone.
func (p principal) knows(profile string) bool {
	return p.may(admin) || p.scope.Profile == "" || p.scope.Profile == profile
}

// lacks refuses a principal that does not have a verb. The hint is for the server's owner: the
// refused token can't make a token that has the verb.
func (p principal) lacks(verb string) error {
	return fail.New("forbidden", "the token does not have the verb "+verb, "make one that has it, on the server's machine, as its owner: COVE_TOKEN= "+p.with(verb))
}

// with is the command that makes a token of the principal's scope and verbs, and one verb more.
func (p principal) with(verb string) string {
	scope := "--all"
	switch {
	case verb == admin: // which reaches everything
	case p.scope.Sprite != "":
		scope = "-s " + p.scope.Sprite
	case p.scope.Prefix != "":
		scope = "--prefix " + p.scope.Prefix
	case p.scope.Profile != "":
		scope = "--profile " + p.scope.Profile
	}
	verbs := append(slices.Clone(p.verbs), verb)
	return "cove token create NAME " + scope + " --verbs " + strings.Join(verbs, ",")
}

// mayActIn refuses a sprite that a principal does not reach, by whatever way it is named.
func (a *access) mayActIn(ctx context.Context, p principal, name string) error {
	shared, err := a.installs(ctx, name)
	if err != nil {
		return err
	}
	if !p.reaches(name) || shared && !p.may(cove.VerbAdmin) {
		return fail.New("forbidden", "the token does not reach this sprite", "")
	}
	return nil
}

// installs reports whether a sprite is installing an agent or building an image. Its files
// stay for everybody's jobs, even after the right to put them there has ended.
func (a *access) installs(ctx context.Context, name string) (bool, error) {
	if !strings.HasPrefix(name, store.InstallName) && !strings.HasPrefix(name, store.BuildName) {
		return false, nil
	}
	row, err := a.sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return strings.HasPrefix(row.Owner, store.InstallOwner) || row.Owner == store.BuildOwner, err
}

// authenticate finds out whose token the request carries. Only the header
// counts: a URL is logged in too many places.
func (a *access) authenticate(r *http.Request) (principal, error) {
	scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !ok || !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return principal{}, fail.New("unauthorized", "the request carries no token", "the server's own token is in the file token of its data folder")
	}
	if p, ok, err := a.web.principal(r, secret); ok {
		return p, err
	}
	hash := store.HashToken(secret)
	for _, p := range a.owners {
		if subtle.ConstantTimeCompare(hash[:], p.hash[:]) == 1 {
			return p, nil
		}
	}
	t, err := a.tokens.ByHash(r.Context(), hash)
	if errors.Is(err, store.ErrNotFound) {
		return principal{}, fail.New("unauthorized", "the token is not known", "make one on the server's machine: cove token create NAME --all")
	}
	if err != nil {
		return principal{}, err
	}
	now := time.Now()
	if expired(t, now) {
		return principal{}, fail.New("unauthorized", "the token has expired", "make one on the server's machine for what you need: cove token create --help")
	}
	a.noteUse(r.Context(), t, now)
	return a.principal(r.Context(), t)
}

func expired(t store.Token, now time.Time) bool {
	return !t.ExpiresAt.IsZero() && !now.Before(t.ExpiresAt)
}

// principal returns the principal of a token.
func (a *access) principal(ctx context.Context, t store.Token) (p principal, err error) {
	p = principal{name: t.ID, title: t.Name, hash: t.Hash, scope: t.Scope, verbs: t.Verbs, until: t.ExpiresAt}
	if t.Scope.Profile != "" {
		p.own, err = a.spritesOf(ctx, t.ID)
	}
	return p, err
}

// byName is the principal of a name, as long as its token may be used.
func (a *access) byName(ctx context.Context, name string) (principal, error) {
	for _, p := range a.owners {
		if name == p.name {
			return p, nil
		}
	}
	t, err := a.tokens.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && expired(t, time.Now()) {
		return principal{}, fail.New("unauthorized", "the token is not known, or has expired", "make one on the server's machine: cove token create NAME --all")
	}
	if err != nil {
		return principal{}, err
	}
	return a.principal(ctx, t)
}

// spritesOf are the names of the sprites that were made for the jobs of a token.
func (a *access) spritesOf(ctx context.Context, token string) (map[string]bool, error) {
	list, err := a.sprites.List(ctx, store.SpriteFilter{JobsBy: token})
	names := map[string]bool{}
	for _, s := range list {
		names[s.Name] = true
	}
	return names, err
}

// visitor is the principal of a visit, as long as its token may still be used.
func (a *access) visitor(ctx context.Context, v visit) (p principal, ok bool) {
	for _, p := range a.owners {
		if v.token == p.name {
			return principal{name: p.name, owner: true, until: v.until}, true
		}
	}
	list, err := a.tokens.List(ctx)
	if err != nil {
		a.log.Error("look for a visitor's token", "err", err)
		return p, false
	}
	for _, t := range list {
		if t.ID == v.token && (t.ExpiresAt.IsZero() || time.Now().Before(t.ExpiresAt)) {
			if t.ExpiresAt.IsZero() || v.until.Before(t.ExpiresAt) {
				t.ExpiresAt = v.until
			}
			return principal{name: t.ID, until: t.ExpiresAt}, true
		}
	}
	return p, false
}

// usedInterval is how exactly a token's last use is known.
const usedInterval = time.Minute

// usedTokens knows when the use of a token was last written down.
type usedTokens struct {
	mu sync.Mutex
	at map[string]time.Time
}

// due reports whether a token's use must be stored, and assumes that the caller then stores
// it.
func (u *usedTokens) due(t store.Token, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	last := u.at[t.ID]
	if last.Before(t.LastUsed) {
		last = t.LastUsed
	}
	if now.Sub(last) < usedInterval {
		return false
	}
	if u.at == nil || len(u.at) > 10000 {
		u.at = map[string]time.Time{}
	}
	u.at[t.ID] = now
	return true
}

// noteUse writes a token's use down, now and then.
func (a *access) noteUse(ctx context.Context, t store.Token, now time.Time) {
	if !a.used.due(t, now) {
		return
	}
	err := a.tokens.Used(context.WithoutCancel(ctx), t.ID, now)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		a.log.Warn("noting the use of a token", "id", t.ID, "err", err)
	}
}
