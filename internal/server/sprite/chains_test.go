package sprite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// merging is a Runtime with merges that wait. It mounts no more layers than the kernel
// does.
type merging struct {
	memory
	noLayers
	held  chan struct{}
	began chan []string // if not nil, the first one's layers come here, and others don't wait
	first sync.Once
	gone  chan string // if not nil, layers that were removed
}

func (r *merging) RemoveLayer(ctx context.Context, layer string) error {
	if r.gone != nil {
		r.gone <- layer
	}
	return r.memory.RemoveLayer(ctx, layer)
}

func (r *merging) Layers() sprite.LayerStore { return r }

func (r *merging) Merge(ctx context.Context, into string, layers []string) error {
	if r.began != nil {
		waits := false
		r.first.Do(func() { waits = true; r.began <- append([]string{into}, layers...) })
		if !waits {
			return nil
		}
	}
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

// If checkpoints are made faster than their layers are merged, the sprite starts once
// the layers are merged.
func TestChainGrowsFasterThanMerges(t *testing.T) {
	r := &merging{noLayers: noLayers(t.TempDir()), held: make(chan struct{})}
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
	// The history goes on below the layers that were merged.
	c, err := h.CheckpointOf(t.Context(), "paint", fmt.Sprintf("v%d", 2*layers.MaxLowers))
	if err != nil || len(c.History) != 2*layers.MaxLowers-1 || c.History[0] != fmt.Sprintf("v%d", 2*layers.MaxLowers-1) {
		t.Errorf("it grew from %v, %v", c.History, err)
	}
}

// While layers of one sprite are merged, layers of others can be merged and removed. The
// layers of the merge stay, even if everything else that has them is deleted.
func TestMergeHoldsNobodyUp(t *testing.T) {
	r := &merging{noLayers: noLayers(t.TempDir()), held: make(chan struct{}), began: make(chan []string, 1), gone: make(chan string, 1000)}
	h := start(t, &sprite.Host{Runtime: r})
	release := sync.OnceFunc(func() { close(r.held) })
	t.Cleanup(release)
	checkpoints := func(name string, times int) {
		t.Helper()
		for range times {
			if _, err := h.Checkpoint(t.Context(), name, sprites.CheckpointRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	create(t, h, "slow")
	checkpoints("slow", 10)
	of := <-r.began
	checkpoints("slow", 1) // so that the layer that is written is none of those that the merge holds
	create(t, h, "paint")
	checkpoints("paint", 2*layers.MaxLowers)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if l, err := h.Use(ctx, "paint", "test"); err != nil { // it waits for merges of its own
		t.Fatalf("it waited for another's merge: %v", err)
	} else {
		l.Release()
	}
	for _, name := range []string{"paint", "slow", "last"} { // one after the other, so that what could go has gone
		if name == "last" {
			create(t, h, name)
		}
		row, err := h.Store.Sprites.Get(t.Context(), name)
		if err == nil {
			err = h.Delete(t.Context(), name, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		for gone := ""; gone != row.Layer; {
			select {
			case gone = <-r.gone:
				if slices.Contains(of, gone) {
					t.Errorf("layer %s was removed while it was merged", gone)
				}
			case <-ctx.Done():
				t.Fatalf("the layers of %s were not removed while another's were merged", name)
			}
		}
	}
	release()
	for len(of) > 0 {
		select {
		case layer := <-r.gone:
			of = slices.DeleteFunc(of, func(l string) bool { return l == layer })
		case <-ctx.Done():
			t.Fatalf("%q were not removed after the merge", of)
		}
	}
}

// watched is a Runtime that keeps folders of layers, and tells when somebody asks for one.
type watched struct {
	merging
	asked func() // while somebody waits for the answer
}

func (r *watched) Layers() sprite.LayerStore { return r }

func (r *watched) Dir(layer string) layers.Dir {
	dir := r.merging.Dir(layer)
	r.asked()
	return dir
}

func (r *watched) RemoveLayer(ctx context.Context, layer string) error {
	return errors.Join(os.RemoveAll(r.merging.Dir(layer).Path), r.merging.RemoveLayer(ctx, layer))
}

// TestMergeDuringCheck: layers that were merged while a sprite starts stay until it has been
// seen that all of its disk is there.
func TestMergeDuringCheck(t *testing.T) {
	r := &watched{merging: merging{noLayers: noLayers(t.TempDir()), held: make(chan struct{}), began: make(chan []string, 1), gone: make(chan string, 1000)}}
	var merged func()
	var starts, looked atomic.Bool
	r.asked = func() {
		if starts.Load() && looked.CompareAndSwap(false, true) {
			merged()
		}
	}
	h := start(t, &sprite.Host{Runtime: r})
	release := sync.OnceFunc(func() { close(r.held) })
	t.Cleanup(release)
	for _, name := range []string{"paint", "first", "second"} {
		create(t, h, name)
	}
	for range 8 {
		if _, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	of := <-r.began
	row, err := h.Store.Sprites.Get(t.Context(), "paint")
	for unlisted := of; err == nil && len(unlisted) > 0; { // then nobody else asks for a folder
		unlisted, err = h.Store.Sprites.Unlisted(t.Context())
		<-time.After(time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	merged = func() {
		release()
		for chain := of[1:]; slices.Contains(chain, of[1]); {
			if chain, err = h.Store.Sprites.Chain(t.Context(), row.Layer); err != nil {
				t.Error(err)
			}
		}
		// One after the other: what could go at the end of the first has gone at that of the second.
		for _, name := range []string{"first", "second"} {
			other, err := h.Store.Sprites.Get(t.Context(), name)
			if err == nil {
				err = h.Delete(t.Context(), name, true)
			}
			for gone := ""; err == nil && gone != other.Layer; {
				gone = <-r.gone
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	starts.Store(true)
	l, err := h.Use(t.Context(), "paint", "test")
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if !looked.Load() {
		t.Error("nobody looked for the layers")
	}
}
