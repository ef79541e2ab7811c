package gvisor

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
)

// TestMergedBeforeFirstStart: a sprite over an image may start for the first time while its empty
// layers are merged. Its next checkpoint lies on the image all the same.
func TestMergedBeforeFirstStart(t *testing.T) {
	rt := newRuntime(t, t.TempDir())
	digest, lower := "sha256:"+strings.Repeat("1", 64), t.TempDir()
	rt.Images = func(context.Context, string) (base.Image, error) {
		return base.Image{Digest: digest, Lowers: []string{lower}}, nil
	}
	rt.init()
	const merged, top, next = "aaaaaaaaaaaaaaaa", "2222222222222222", "3333333333333333"
	empty := []string{"0000000000000000", "1111111111111111"}
	if err := rt.layers.Merge(t.Context(), merged, empty); err != nil {
		t.Fatal(err)
	}
	chain := append(slices.Clone(empty), top)
	was, err := rt.layers.ground(t.Context(), disk{base: digest, chain: chain}, rt.base.current)
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{layers: rt.layers, base: rt.base, state: shim.State{Layers: chain}}
	now, err := s.ground(t.Context(), []string{merged, top, next})
	if err != nil || len(now.mounts) != 1 || !slices.Equal(now.mounts[0].lowers, was.mounts[0].lowers) {
		t.Errorf("got %+v, %v, want %+v", now, err, was)
	}
	if name, err := rt.layers.Under(merged); err != nil || name != digest {
		t.Errorf("the next disks lie on %q, %v", name, err)
	}
}
