package sprite_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestEndBuilds: the sprite of a build that an earlier server has left is gone before another build
// begins. If its removal has failed, it is removed then.
func TestEndBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := start(t, &sprite.Host{Runtime: &memory{}})
		leave := func(id string) {
			t.Helper()
			if err := first.Store.Sprites.Create(t.Context(), &store.Sprite{
				ID: id, MachineID: id, Name: store.BuildName + id, Owner: store.BuildOwner, Base: "host",
				URL: sprites.URLSettings{Auth: "sprite"}, Status: sprites.StatusCold,
			}); err != nil {
				t.Fatal(err)
			}
		}
		again := func(rt *memory) *sprite.Host {
			t.Helper()
			h := &sprite.Host{Runtime: rt, Store: first.Store}
			if err := h.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			})
			return h
		}
		left := func() int {
			t.Helper()
			rows, err := first.Store.Sprites.List(t.Context(), store.SpriteFilter{Prefix: store.BuildName})
			if err != nil {
				t.Fatal(err)
			}
			return len(rows)
		}

		leave("one")
		slow := &memory{keep: make(chan struct{})}
		h := again(slow)
		ended := make(chan error, 1)
		go func() { ended <- sprite.EndBuilds(t.Context(), h) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("it did not wait: %v", err)
		default:
		}
		close(slow.keep)
		if err := <-ended; err != nil || left() != 0 {
			t.Errorf("got %v, %d sprites are left", err, left())
		}

		leave("two")
		refused := errors.New("refused")
		rt := &memory{refuse: refused}
		h = again(rt)
		if err := sprite.EndBuilds(t.Context(), h); !errors.Is(err, refused) || left() != 1 {
			t.Errorf("a removal that fails: %v, %d sprites are left", err, left())
		}
		rt.set(func() { rt.refuse = nil })
		if err := sprite.EndBuilds(t.Context(), h); err != nil || left() != 0 {
			t.Errorf("the next try: %v, %d sprites are left", err, left())
		}
	})
}
