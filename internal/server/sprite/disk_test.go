package sprite_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestHeldAfterRestart: a sprite that sleeps and was held when the last server ended may be used
// again once there is no reason any more. Nobody has to try first.
func TestHeldAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &memory{}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		_, err := h.Store.Sprites.Update(t.Context(), rowOf(t, h).ID, func(s *store.Sprite) error {
			s.Config.StorageMB = 16
			s.Held = &sprites.Held{Code: sprite.CodeDiskLimit, UsedBytes: 16 << 20, LimitBytes: 16 << 20}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		next := &sprite.Host{Runtime: rt, Store: h.Store}
		if err := next.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := next.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := next.Update(t.Context(), "paint", sprites.UpdateRequest{StorageMB: new(32)}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if held := status(t, next, "paint").Cove.Held; held != nil {
			t.Errorf("it is held: %+v", held)
		}
		use(t, next, "paint").Release()
	})
}
