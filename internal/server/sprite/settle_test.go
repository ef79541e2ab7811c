package sprite_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// movers is a Runtime whose sandboxes do with a checkpoint what the test says, and lose
// the answer.
type movers struct {
	memory
	moves   bool     // a checkpoint moves its sandbox
	ends    bool     // it ends it
	mute    bool     // nobody knows what has become of one
	mounted []string // what Mounted says
	layers  []string // of the sandbox
}

func (r *movers) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	sb, err := r.memory.Boot(ctx, m)
	if err != nil {
		return nil, err
	}
	r.set(func() { r.layers = m.Layers })
	return &moved{sb.(*fakeSandbox), r}, nil
}

func (r *movers) Mounted(context.Context) (all []string, _ error) {
	r.set(func() { all = slices.Clone(r.mounted) })
	return all, nil
}

// gone are the layers that were removed.
func (r *movers) gone() (all []string) {
	r.set(func() { all = slices.Clone(r.removed) })
	return all
}

type moved struct {
	*fakeSandbox
	runtime *movers
}

var errLost = errors.New("the answer was lost")

func (s *moved) Checkpoint(_ context.Context, layers []string, _ sprite.Memory) (sprite.Pause, error) {
	ends := false
	s.runtime.set(func() {
		if ends = s.runtime.ends; s.runtime.moves {
			s.runtime.layers = layers
		}
	})
	if ends {
		s.end("it was not restored")
	}
	return sprite.Pause{}, errLost
}

func (s *moved) Settle(ctx context.Context, _ string) (layers []string, err error) {
	mute := false
	s.runtime.set(func() { layers, mute = s.runtime.layers, s.runtime.mute })
	if !mute {
		return layers, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.Done():
		return nil, errLost
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func checkpoints(t *testing.T, h *sprite.Host) (names []string) {
	t.Helper()
	list, err := h.Checkpoints(t.Context(), "paint", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list[1:] {
		names = append(names, c.ID)
	}
	return names
}

func rowOf(t *testing.T, h *sprite.Host) store.Sprite {
	t.Helper()
	row, err := h.Store.Sprites.Get(t.Context(), "paint")
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// A checkpoint's answer may be lost. Then the sandbox says whether the checkpoint was
// made. As long as nobody knows which layer the sandbox writes, no layer is removed and no
// sandbox booted.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name        string
		moves, ends bool
		mute        bool // at first
		made        bool
	}{
		{name: "moved", moves: true, made: true},
		{name: "stayed"},
		{name: "ended", moves: true, ends: true},
		{name: "moved, as it turns out", moves: true, mute: true, made: true},
		{name: "stayed, as it turns out", mute: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &movers{moves: c.moves, ends: c.ends, mute: c.mute}
				h := start(t, &sprite.Host{Runtime: rt})
				create(t, h, "paint")
				use(t, h, "paint").Release()
				before := rowOf(t, h).Layer
				_, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{})
				if c.mute {
					wantCode(t, "the checkpoint", err, sprite.CodeUnavailable)
					pass(5 * time.Minute)
					row := rowOf(t, h)
					if row.Layer != before || row.Next.Layer == "" || len(rt.gone()) > 0 {
						t.Errorf("nobody knows, and it has %s, next %q; removed: %q", row.Layer, row.Next.Layer, rt.gone())
					}
					_, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{})
					wantCode(t, "another", err, sprite.CodeUnavailable)
					rt.set(func() { rt.mute = false })
					pass(5 * time.Minute)
				} else if (err == nil) != c.made {
					t.Errorf("the checkpoint: %v", err)
				}
				synctest.Wait()
				row, names := rowOf(t, h), checkpoints(t, h)
				if made := slices.Equal(names, []string{"v1"}); made != c.made || !made && len(names) > 0 {
					t.Errorf("checkpoints: %q", names)
				}
				if row.Next.Layer != "" || (row.Layer != before) != c.moves || slices.Contains(rt.gone(), row.Layer) || slices.Contains(rt.gone(), before) {
					t.Errorf("it had %s, has %s, next %q; removed: %q", before, row.Layer, row.Next.Layer, rt.gone())
				}
				if _, err := h.Use(t.Context(), "paint", "test"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// As long as nobody knows, the next server does not decide either. Nor does it boot a
// sprite if a sandbox that it can't reach has the sprite's disk.
func TestSettleAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &movers{}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		row := rowOf(t, h)
		next, err := h.Store.Sprites.Begin(t.Context(), row.ID, row.Layer, store.Next{Checkpoint: &store.Checkpoint{}})
		if err != nil {
			t.Fatal(err)
		}
		rt.set(func() { rt.mounted = []string{row.Layer, next.Layer} })
		again := &sprite.Host{Runtime: rt, Store: h.Store}
		if err := again.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		})
		_, err = again.Use(t.Context(), "paint", "test")
		wantCode(t, "the use", err, sprite.CodeUnavailable)
		if got := rowOf(t, h); got.Next.Layer != next.Layer || rt.boots > 0 || len(rt.gone()) > 0 {
			t.Errorf("next %q, %d boots; removed: %q", got.Next.Layer, rt.boots, rt.gone())
		}
		rt.set(func() { rt.mounted = nil })
		pass(5 * time.Minute)
		if got := rowOf(t, h); got.Layer != next.Layer || got.Next.Layer != "" {
			t.Errorf("it has %s, next %q", got.Layer, got.Next.Layer)
		}
	})
}

// A layer that a sandbox says it has is not removed, though no sprite has it any more.
func TestMountedLayersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &movers{}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		layer := rowOf(t, h).Layer
		rt.set(func() { rt.mounted = []string{layer} })
		for _, name := range []string{"paint", "other"} {
			if name == "other" { // the end of its sandbox leads to another collection
				create(t, h, name)
				rt.set(func() { rt.mounted = nil })
			}
			if err := h.Delete(t.Context(), name, true); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if gone := slices.Contains(rt.gone(), layer); gone != (name == "other") {
				t.Errorf("after the end of %s: removed %q", name, rt.gone())
			}
		}
	})
}

// A sprite that is at something which does not end is deleted all the same.
func TestDeleteWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &movers{mute: true}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		use(t, h, "paint").Release()
		failed := make(chan error, 1)
		go func() {
			_, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{})
			failed <- err
		}()
		synctest.Wait()    // it asks
		remove := func() { // by the bubble's clock, at once
			t.Helper()
			began := time.Now()
			if err := h.Delete(t.Context(), "paint", true); err != nil || time.Since(began) > time.Second {
				t.Errorf("the delete took %v: %v", time.Since(began), err)
			}
		}
		remove()
		wantCode(t, "the checkpoint", <-failed, sprite.CodeDeleting)

		rt.set(func() { rt.hold = make(chan struct{}) }) // no boot ends
		create(t, h, "paint")
		go func() {
			_, err := h.Use(t.Context(), "paint", "test")
			failed <- err
		}()
		synctest.Wait()
		remove()
		wantCode(t, "the use", <-failed, sprite.CodeDeleting)
	})
}

// A sprite that is at something which does not end holds up the pool for some seconds.
func TestPoolBesideWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &movers{mute: true}
		rt.err = errors.New("not yet") // the pool tries again after 30 s
		h := start(t, &sprite.Host{Runtime: rt, Pool: []sprite.PoolPart{{Image: sprites.HostBase, Size: 1}}})
		pass(time.Second)
		rt.set(func() { rt.err = nil })
		create(t, h, "paint")
		use(t, h, "paint").Release()
		pass(19 * time.Second)
		failed := make(chan error, 1)
		go func() {
			_, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{})
			failed <- err
		}()
		pass(15 * time.Second)
		if pool := h.PoolState(); pool.Ready != 1 || len(failed) > 0 {
			t.Errorf("the pool is %+v", *pool)
		}
		wantCode(t, "the checkpoint", <-failed, sprite.CodeUnavailable)
	})
}

// A transition may leave a disk with a change that is not settled. A use that has waited for the
// transition boots no sandbox over that disk.
func TestUseAfterUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &stopping{}
		h := start(t, &sprite.Host{Runtime: rt})
		create(t, h, "paint")
		use(t, h, "paint").Release()
		used := make(chan error, 1)
		rt.before = func() {
			go func() {
				_, err := h.Use(t.Context(), "paint", "test")
				used <- err
			}()
			synctest.Wait() // it has read the sprite, and waits
			row := rowOf(t, h)
			next, err := h.Store.Sprites.Begin(t.Context(), row.ID, row.Layer, store.Next{})
			if err != nil {
				t.Error(err)
			}
			rt.set(func() { rt.mounted = []string{next.Layer} })
		}
		if err := h.Stop(t.Context(), "paint"); err == nil {
			t.Error("the stop has settled what can't be")
		}
		wantCode(t, "the use", <-used, sprite.CodeUnavailable)
		if rt.boots != 1 {
			t.Errorf("got %d boots", rt.boots)
		}
	})
}
