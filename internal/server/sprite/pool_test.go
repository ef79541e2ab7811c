package sprite_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// named has the images of a host's store, by their names.
type named struct{ host *sprite.Host }

func (n *named) Resolve(ctx context.Context, ref string) (string, error) {
	row, err := n.host.Store.Images.Named(ctx, ref)
	if errors.Is(err, store.ErrNotFound) {
		err = fail.Newf(sprite.CodeImageNotFound, "cove image pull "+ref, "there is no image %q here", ref)
	}
	return row.Digest, err
}

// digestOf is a digest of one digit.
func digestOf(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// bases are those of the sandboxes that live, sorted.
func (r *memory) bases() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sb := range r.live {
		all = append(all, sb.machine.Base)
	}
	slices.Sort(all)
	return all
}

// TestPoolOfImages: the pool waits for a missing image, and is filled when the image comes. If
// another image gets the name, the pool changes to it. Each sprite gets a sandbox over its own
// base.
func TestPoolOfImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, in := &memory{}, &named{}
		var log strings.Builder
		in.host = &sprite.Host{
			Runtime: rt, Images: in, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Pool: []sprite.PoolPart{{Image: sprites.HostBase, Size: 1}, {Image: "small:1", Size: 2}, {Image: "other:1", Size: 1}},
		}
		h := start(t, in.host)
		synctest.Wait()
		state := h.PoolState()
		if got := rt.bases(); !slices.Equal(got, []string{"host"}) || state.Size != 4 || state.Ready != 1 || len(state.Parts) != 3 {
			t.Errorf("without the images: over %v, %+v", got, state)
		}
		if p := state.Parts[1]; p.Hint != "cove image pull small:1" || !strings.Contains(p.Error, "small:1") || p.Ready != 0 || p.Digest != "" {
			t.Errorf("an image that is not here: %+v", p)
		}
		if got := log.String(); strings.Count(got, "cove image pull small:1") != 1 {
			t.Errorf("the log says %s", got)
		}
		put := func(digit string, names ...string) {
			t.Helper()
			if err := h.Store.Images.Put(t.Context(), store.Image{Digest: digestOf(digit), Doc: []byte("{}"), Pulled: time.Now(), Names: names}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		put("a", "small:1")
		if got, p := rt.bases(), h.PoolState().Parts[1]; !slices.Equal(got, []string{"host", digestOf("a"), digestOf("a")}) || p.Ready != 2 || p.Error != "" || p.Digest != digestOf("a") {
			t.Errorf("the image has come: over %v, %+v", got, p)
		}
		put("a", "other:1") // both names: there are as many as both ask for
		if got, all := rt.bases(), h.PoolState(); len(got) != 4 || all.Ready != 4 || all.Parts[1].Ready != 2 || all.Parts[2].Ready != 1 {
			t.Errorf("one image for two: over %v, %+v", got, all)
		}
		put("b", "small:1")
		if got := rt.bases(); !slices.Equal(got, []string{"host", digestOf("a"), digestOf("b"), digestOf("b")}) {
			t.Errorf("the name is another's: over %v", got)
		}
		for digit, want := range map[string]bool{"a": true, "b": true, "c": false} {
			if got := sprite.InPool(h, digestOf(digit)); got != want {
				t.Errorf("in the pool is %s: %v", digit, got)
			}
		}

		// A sprite takes one over its own base, and there is another soon.
		pooled := map[string]string{}
		rt.set(func() {
			for id, sb := range rt.live {
				pooled[id] = sb.machine.Base
			}
		})
		for image, base := range map[string]string{"small:1": digestOf("b"), "other:1": digestOf("a"), "": "host"} {
			req := sprites.CreateRequest{Name: "x" + image[:min(1, len(image))], Config: &sprites.Config{Image: image}}
			info, err := h.Create(t.Context(), req)
			if err != nil || pooled[info.ID] != base || info.Cove.Base != base {
				t.Errorf("over %q: %+v, one of the pool's over %q, %v", image, info.Cove, pooled[info.ID], err)
			}
		}
		pass(time.Minute)
		if all := h.PoolState(); all.Ready != 4 {
			t.Errorf("after three were taken: %+v", all)
		}
		// One that asks for more than they are is not of the pool.
		info, err := h.Create(t.Context(), sprites.CreateRequest{Name: "limited", Config: &sprites.Config{Image: "small:1", RAMMB: 300}})
		if all := h.PoolState(); err != nil || all.Ready != 4 || pooled[info.ID] != "" {
			t.Errorf("with a limit: %+v, %v", all, err)
		}
	})
}

// TestPoolDoesNotStart: sandboxes of one image that don't start hold up no others, are told of, and
// are tried again.
func TestPoolDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, in := &memory{err: errors.New("no such kernel")}, &named{}
		in.host = &sprite.Host{Runtime: rt, Images: in, Pool: []sprite.PoolPart{{Image: "small:1", Size: 1}, {Image: sprites.HostBase, Size: 1}}}
		h := start(t, in.host)
		if err := h.Store.Images.Put(t.Context(), store.Image{Digest: digestOf("a"), Doc: []byte("{}"), Pulled: time.Now(), Names: []string{"small:1"}}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		var boots int
		rt.set(func() { boots = rt.boots })
		if all := h.PoolState(); all.Ready != 0 || all.Parts[0].Error == "" || all.Parts[1].Error == "" || boots != 2 {
			t.Errorf("after %d starts: %+v", boots, all)
		}
		rt.set(func() { rt.err = nil })
		pass(time.Minute)
		if all := h.PoolState(); all.Ready != 2 || all.Parts[0].Error != "" || all.Parts[1].Error != "" {
			t.Errorf("later: %+v", all)
		}
	})
}
