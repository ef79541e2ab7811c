package server_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// TestNarrowToken: the error for a token that lacks a verb has a command that makes a token
// with it. The command does not use the narrow token. A client learns before it listens that
// its token may not connect into a sprite.
func TestNarrowToken(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	with := func(verbs ...string) *cove.Client {
		t.Helper()
		token, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "t-" + strings.Join(verbs, "-"), Scope: cove.TokenScope{All: true}, Verbs: verbs})
		must(t, err)
		c := *s.Client().Client
		c.Token = token.Secret
		return &cove.Client{Client: &c}
	}
	reader := with(cove.VerbRead)
	_, err := reader.ListTokens(t.Context())
	e, _ := errors.AsType[*sprites.Error](err)
	failIf(t, e == nil || !strings.HasSuffix(e.Hint, "on the server's machine, as its owner: COVE_TOKEN= cove token create NAME --all --verbs read,admin"), "got %v", err)
	for what, by := range map[string]string{"GET /v1/tokens": reader.Token, "GET /v1/sprites/paint/exec": with(cove.VerbWrite).Token} {
		a := ask(t, s, what, "", bearer(cove.Token{Secret: by}))
		var body sprites.ErrorBody
		failIf(t, json.Unmarshal(a.body, &body) != nil || !strings.Contains(body.Hint, "COVE_TOKEN= cove token create"), "%s: %s", what, a.body)
	}
	err = sprites.MayDial(t.Context(), reader.Sprite("paint"))
	failIf(t, !errors.Is(err, sprites.ErrForbidden), "a token that only reads: got %v", err)
	must(t, sprites.MayDial(t.Context(), with(cove.VerbExec).Sprite("paint")))
}
