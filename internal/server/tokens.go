package server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// tokenRoutes makes, lists and deletes the tokens of the store.
type tokenRoutes struct {
	tokens   *store.Tokens
	profiles *store.Profiles
	rights   *rights // those of a token that is deleted end
}

const (
	maxTokenName = 100
	maxTTL       = 100 * 365 * 24 * time.Hour
)

func (g *tokenRoutes) create(w http.ResponseWriter, r *http.Request) error {
	var req cove.TokenRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if err := checkToken(req); err != nil {
		return err
	}
	if name := req.Scope.Profile; name != "" {
		if _, err := g.profiles.Get(r.Context(), name); err != nil {
			return profileError(name, err)
		}
	}
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails
	secret := newSecret()
	t := store.Token{
		ID:        hex.EncodeToString(id),
		Name:      req.Name,
		Hash:      store.HashToken(secret),
		Scope:     req.Scope,
		Verbs:     req.Verbs,
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	if req.TTLSeconds > 0 {
		t.ExpiresAt = t.CreatedAt.Add(time.Duration(req.TTLSeconds) * time.Second)
	}
	if err := g.tokens.Create(r.Context(), t); err != nil {
		return err
	}
	answer := tokenInfo(t)
	answer.Secret = secret
	writeJSON(w, http.StatusCreated, answer)
	return nil
}

func checkToken(req cove.TokenRequest) error {
	bad := func(format string, args ...any) error {
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf(format, args...), "")
	}
	if req.Name == "" || len(req.Name) > maxTokenName || strings.ContainsFunc(req.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return bad("a token needs a name, of at most %d printable characters", maxTokenName)
	}
	fields := 0
	for _, set := range []bool{req.Scope.All, req.Scope.Prefix != "", req.Scope.Sprite != "", req.Scope.Profile != ""} {
		if set {
			fields++
		}
	}
	if fields != 1 {
		return bad("a token's scope is one of: all, a prefix, a sprite, a profile")
	}
	if req.Scope.Sprite != "" {
		if err := sprite.CheckName(req.Scope.Sprite); err != nil {
			return err
		}
	}
	if len(req.Verbs) == 0 {
		return bad("a token needs at least one verb of: %s", strings.Join(allVerbs, ", "))
	}
	for i, v := range req.Verbs {
		if !slices.Contains(allVerbs, v) || slices.Contains(req.Verbs[:i], v) {
			return bad("the verbs can't have %.40q: use each of %s once at most", v, strings.Join(allVerbs, ", "))
		}
	}
	if slices.Contains(req.Verbs, admin) && !req.Scope.All {
		return bad("the verb admin reaches everything: its scope must be all")
	}
	if req.TTLSeconds < 0 || req.TTLSeconds > int64(maxTTL/time.Second) {
		return bad("a token can't expire after %d seconds; 0 means never", req.TTLSeconds)
	}
	return nil
}

func tokenInfo(t store.Token) cove.Token {
	info := cove.Token{ID: t.ID, Name: t.Name, Scope: t.Scope, Verbs: t.Verbs, CreatedAt: t.CreatedAt}
	if !t.ExpiresAt.IsZero() {
		info.ExpiresAt = &t.ExpiresAt
	}
	if !t.LastUsed.IsZero() {
		info.LastUsed = &t.LastUsed
	}
	return info
}

func (g *tokenRoutes) list(w http.ResponseWriter, r *http.Request) error {
	tokens, err := g.tokens.List(r.Context())
	if err != nil {
		return err
	}
	list := cove.TokenList{Tokens: make([]cove.Token, len(tokens))}
	for i, t := range tokens {
		list.Tokens[i] = tokenInfo(t)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g *tokenRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := g.tokens.Delete(r.Context(), id); err != nil {
		return err
	}
	g.rights.end(id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
