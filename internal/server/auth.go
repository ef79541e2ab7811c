package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
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

// principal is who makes a request, by the token; for who visits a URL that is
// public, everybody who does.
type principal struct {
	name  string
	owner bool // the server's own, not one of the store's
	hash  [sha256.Size]byte
	scope cove.TokenScope
	verbs []string
	until time.Time // zero: for ever
}

// newPrincipal is one that may do everything. Its name is another with another
// secret, so that what it gave to others ends with that.
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

// may reports whether the principal has the verb; every one has the empty verb.
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
	}
	return p.scope.Sprite != "" && name == p.scope.Sprite
}

// reachesAt is reaches for a sprite of a backend; the empty one is this server.
func (p principal) reachesAt(backend, name string) bool {
	return p.scope.All || backend == "" && p.reaches(name)
}

type principalKey struct{}

func principalOf(r *http.Request) principal {
	p, _ := r.Context().Value(principalKey{}).(principal)
	return p
}

// authorize finds out whose token the request carries, and whether that may do
// verb, to the sprite that the path names if it names one. Whether that sprite
// exists makes no difference.
func (s *Server) authorize(r *http.Request, verb string) (principal, error) {
	p, err := s.authenticate(r)
	if err != nil {
		return p, err
	}
	if !p.may(verb) {
		return p, lacksVerb(verb)
	}
	name := r.PathValue("name")
	if name == "" {
		return p, nil
	}
	return p, s.mayActIn(r.Context(), p, name)
}

// lacksVerb refuses a token that has not a verb. Only the server's owner can make one that has it: the
// token that is refused may not.
func lacksVerb(verb string) error {
	return fail.New("forbidden", "the token does not have the verb "+verb, "make one that has it, on the server's machine, as its owner: COVE_TOKEN= cove token create NAME --all --verbs "+verb)
}

// mayActIn refuses a sprite that a principal does not reach, by whatever way it is named.
func (s *Server) mayActIn(ctx context.Context, p principal, name string) error {
	shared, err := s.installs(ctx, name)
	if err != nil {
		return err
	}
	if !p.reaches(name) || shared && !p.may(cove.VerbAdmin) {
		return fail.New("forbidden", "the token does not reach this sprite", "")
	}
	return nil
}

// installs reports whether an agent is being installed in a sprite: what is put there
// stays for the jobs of all, however long the right to put it there lasts.
func (s *Server) installs(ctx context.Context, name string) (bool, error) {
	if !strings.HasPrefix(name, store.InstallName) {
		return false, nil
	}
	row, err := s.Store.Sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return strings.HasPrefix(row.Owner, store.InstallOwner), err
}

// authenticate finds out whose token the request carries. Only the header
// counts: a URL is logged in too many places.
func (s *Server) authenticate(r *http.Request) (principal, error) {
	scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !ok || !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return principal{}, fail.New("unauthorized", "the request carries no token", "the server's own is in the file token of its data folder")
	}
	hash := store.HashToken(secret)
	for _, p := range []principal{s.inside, s.boot} {
		if subtle.ConstantTimeCompare(hash[:], p.hash[:]) == 1 {
			return p, nil
		}
	}
	t, err := s.Store.Tokens.ByHash(r.Context(), hash)
	if errors.Is(err, store.ErrNotFound) {
		return principal{}, fail.New("unauthorized", "the token is not known", "make one on the server's machine: cove token create NAME --all")
	}
	if err != nil {
		return principal{}, err
	}
	now := time.Now()
	if !t.ExpiresAt.IsZero() && !now.Before(t.ExpiresAt) {
		return principal{}, fail.New("unauthorized", "the token has expired", "make one on the server's machine: cove token create NAME --all")
	}
	s.noteUse(t, now)
	return principal{name: t.ID, hash: t.Hash, scope: t.Scope, verbs: t.Verbs, until: t.ExpiresAt}, nil
}

// usedInterval is how exactly a token's last use is known.
const usedInterval = time.Minute

// usedTokens knows when the use of a token was last written down.
type usedTokens struct {
	mu sync.Mutex
	at map[string]time.Time
}

// noteUse writes a token's use down, now and then.
func (s *Server) noteUse(t store.Token, now time.Time) {
	u := &s.lastUsed
	u.mu.Lock()
	last := u.at[t.ID]
	if last.Before(t.LastUsed) {
		last = t.LastUsed
	}
	due := now.Sub(last) >= usedInterval
	if due {
		if u.at == nil || len(u.at) > 10000 {
			u.at = map[string]time.Time{}
		}
		u.at[t.ID] = now
	}
	u.mu.Unlock()
	if !due {
		return
	}
	err := s.Store.Tokens.Used(context.WithoutCancel(s.ctx), t.ID, now)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		s.Logger.Warn("noting the use of a token", "id", t.ID, "err", err)
	}
}
