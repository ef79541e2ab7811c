package server

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestConfinedBeforeItIsMade: a sprite that is not there yet may be made for a job of a profile
// before it is changed, so nobody but an administrator may change it.
func TestConfinedBeforeItIsMade(t *testing.T) {
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	c := &confines{sprites: st.Sprites, jobs: st.Jobs, profiles: st.Profiles}
	for _, verb := range []string{cove.VerbExec, admin} {
		p := principal{scope: cove.TokenScope{All: true}, verbs: []string{verb}}
		r := httptest.NewRequest("POST", "/", nil)
		r = r.WithContext(context.WithValue(t.Context(), principalKey{}, p))
		for what, err := range map[string]error{
			"rules":  c.mayOpen(r, "job-aaaaaa"),
			"a copy": c.mayCopy(r, "job-aaaaaa"),
			"memory": c.mayGrow(r, "job-aaaaaa", sprites.UpdateRequest{RAMMB: new(1024)}),
		} {
			if noSprite(err) != (verb != admin) {
				t.Errorf("%s, with the verb %s: got %v", what, verb, err)
			}
		}
	}
}
