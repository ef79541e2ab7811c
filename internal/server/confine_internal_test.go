package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// confinesOf returns the confines of a store without sprites, and requests of a token for
// everything with one verb.
func confinesOf(t *testing.T) (c *confines, st *store.Store, by func(verb string) *http.Request) {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return &confines{sprites: st.Sprites, jobs: st.Jobs, profiles: st.Profiles}, st, func(verb string) *http.Request {
		p := principal{scope: cove.TokenScope{All: true}, verbs: []string{verb}}
		return httptest.NewRequest("POST", "/", nil).WithContext(context.WithValue(t.Context(), principalKey{}, p))
	}
}

// asked asks what may be done to a sprite.
func asked(c *confines, r *http.Request, name string) map[string]func() (context.Context, error) {
	return map[string]func() (context.Context, error){
		"rules":  func() (context.Context, error) { return c.mayOpen(r, name) },
		"a copy": func() (context.Context, error) { return c.mayCopy(r, name) },
		"memory": func() (context.Context, error) { return c.mayGrow(r, name, sprites.UpdateRequest{RAMMB: new(1024)}) },
	}
}

// TestConfinedBeforeItIsMade: a sprite that is not there yet may be made for a job of a profile
// before it is changed. So nobody but an administrator may change it.
func TestConfinedBeforeItIsMade(t *testing.T) {
	c, _, by := confinesOf(t)
	for _, verb := range []string{cove.VerbExec, admin} {
		for what, ask := range asked(c, by(verb), "job-aaaaaa") {
			if _, err := ask(); noSprite(err) != (verb != admin) {
				t.Errorf("%s, with the verb %s: got %v", what, verb, err)
			}
		}
	}
}

// TestConfinedAnew: after a sprite was found to be nobody's, it may be deleted, and one of that
// name made for a job of a profile. A change that was allowed for the first leaves the second alone.
func TestConfinedAnew(t *testing.T) {
	c, st, by := confinesOf(t)
	h := &sprite.Host{Store: st, Runtime: noRuntime{}}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	for what, ask := range asked(c, by(cove.VerbExec), "job-aaaaaa") {
		if err := st.Sprites.Create(t.Context(), &store.Sprite{ID: "1", Name: "job-aaaaaa", Base: "host"}); err != nil {
			t.Fatal(err)
		}
		judged, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := h.Get(judged, "job-aaaaaa"); err != nil {
			t.Errorf("%s, of the one that was judged: %v", what, err)
		}
		again := &store.Sprite{ID: "2", Name: "job-aaaaaa", Base: "host", Owner: store.JobOwner("aaaaaa")}
		if err := errors.Join(st.Sprites.Delete(t.Context(), "1"), st.Sprites.Create(t.Context(), again)); err != nil {
			t.Fatal(err)
		}
		_, updateErr := h.Update(judged, "job-aaaaaa", sprites.UpdateRequest{RAMMB: new(1024)})
		_, forkErr := h.Fork(judged, "job-aaaaaa", sprites.ForkRequest{Name: "copy"}, true)
		for call, err := range map[string]error{
			"SetNetworkPolicy": h.SetNetworkPolicy(judged, "job-aaaaaa", sprites.NetworkPolicy{}, true), "Update": updateErr, "Fork": forkErr,
		} {
			if !noSprite(err) {
				t.Errorf("%s, then %s of another sprite: got %v", what, call, err)
			}
		}
		if err := st.Sprites.Delete(t.Context(), "2"); err != nil {
			t.Fatal(err)
		}
	}
}

// noRuntime is a Runtime with nothing in it.
type noRuntime struct{ sprite.Runtime }

func (noRuntime) Occupied(string) error                          { return nil }
func (noRuntime) Live(context.Context) ([]sprite.Sandbox, error) { return nil, nil }
func (noRuntime) Mounted(context.Context) ([]string, error)      { return nil, nil }
func (noRuntime) Stock(context.Context) ([]sprite.Item, error)   { return nil, nil }
func (noRuntime) RemoveLayer(context.Context, string) error      { return nil }
func (noRuntime) Layers() sprite.LayerStore                      { return nil }
func (noRuntime) Memories() sprite.MemoryStore                   { return nil }
func (noRuntime) Unlimited() []string                            { return nil }
func (noRuntime) MemoryMB(limit int) int                         { return limit }
