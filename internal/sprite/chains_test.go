package sprite_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/layers"
	"github.com/cove-dev/cove/internal/sprite"
	"github.com/cove-dev/cove/sprites"
)

// merging is a Runtime whose merges wait, and which mounts no more than the kernel does.
type merging struct {
	memory
	held chan struct{}
}

func (r *merging) MergeLayers(ctx context.Context, _ string, _ []string) error {
	select {
	case <-r.held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *merging) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	if len(m.Layers) > layers.MaxLowers {
		return nil, fmt.Errorf("%d layers", len(m.Layers))
	}
	return r.memory.Boot(ctx, m)
}

// A sprite whose checkpoints were made faster than their layers are merged starts once
// these are.
func TestChainGrowsFasterThanMerges(t *testing.T) {
	r := &merging{held: make(chan struct{})}
	h := start(t, &sprite.Host{Runtime: r})
	create(t, h, "paint")
	for range 2 * layers.MaxLowers {
		if _, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	used := make(chan error, 1)
	go func() {
		lease, err := h.Use(t.Context(), "paint", "test")
		if err == nil {
			lease.Release()
		}
		used <- err
	}()
	select {
	case err := <-used:
		t.Errorf("it did not wait for the merge: %v", err)
	case <-time.After(200 * time.Millisecond): // it waits; the merge would for ever
		close(r.held)
		if err := <-used; err != nil {
			t.Error(err)
		}
	}
	// What was merged has not become the end of the history.
	c, err := h.CheckpointOf(t.Context(), "paint", fmt.Sprintf("v%d", 2*layers.MaxLowers))
	if err != nil || len(c.History) != 2*layers.MaxLowers-1 || c.History[0] != fmt.Sprintf("v%d", 2*layers.MaxLowers-1) {
		t.Errorf("it grew from %v, %v", c.History, err)
	}
}
