package sprite_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// reading is a Runtime that calls opening before it opens a disk. All its disks are
// empty.
type reading struct {
	memory
	noLayers
	opening func()
}

func (r *reading) Layers() sprite.LayerStore { return r }

func (r *reading) Open(context.Context, string, []string) (sprite.Disk, error) {
	r.opening()
	return sprite.Disk{}, nil
}

// TestDiffMeanwhile: a restore gives the sprite another disk while two states of it are
// compared, and the one that it had is deleted. The new one is compared then.
func TestDiffMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reading{noLayers: noLayers(t.TempDir())}
		h := start(t, &sprite.Host{Runtime: r})
		create(t, h, "paint")
		if _, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{}); err != nil {
			t.Fatal(err)
		}
		opened := 0
		r.opening = func() {
			if opened++; opened > 1 {
				return
			}
			restored, err := h.Restore(t.Context(), "paint", "v1", false)
			if err == nil && restored.Replaced != "" {
				err = h.DeleteCheckpoint(t.Context(), "paint", restored.Replaced)
			}
			if err != nil {
				t.Error(err)
			}
			synctest.Wait() // until its layer is gone
		}
		tell := func(sprites.DiffEntry) error { return nil }
		if err := h.Diff(t.Context(), "paint", "v1", sprite.CurrentState, tell); err != nil || opened != 2 {
			t.Errorf("opened %d disks, %v", opened, err)
		}
		err := h.Diff(t.Context(), "paint", "v2", sprite.CurrentState, tell)
		wantCode(t, "a checkpoint that is gone", err, sprite.CodeNotFound)
	})
}
