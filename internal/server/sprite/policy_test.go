package sprite_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// A sprite that does not start holds up the policies and the connectors of no other.
func TestNobodyElseWaits(t *testing.T) {
	rt := &memory{hold: make(chan struct{})}
	h := start(t, &sprite.Host{Runtime: rt})
	create(t, h, "slow")
	create(t, h, "paint")
	release := sync.OnceFunc(func() { close(rt.hold) })
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	go func() {
		_, err := h.Use(ctx, "slow", "test")
		ended <- err
	}()
	for booting := false; !booting; <-time.After(time.Millisecond) {
		rt.set(func() { booting = rt.boots > 0 })
	}
	open := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "*", Action: "allow"}}}
	go func() { ended <- h.SetNetworkPolicy(ctx, "slow", open, true) }() // it may boot with the old one: it waits
	for stored := false; !stored; <-time.After(time.Millisecond) {
		p, err := h.NetworkPolicy(t.Context(), "slow")
		if err != nil {
			t.Fatal(err)
		}
		stored = len(p.Rules) > 0
	}
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(h.SetNetworkPolicy(t.Context(), "paint", open, true), h.SyncConnectors(t.Context()))
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case err := <-ended:
		t.Errorf("the other one did not wait: %v", err)
	case <-time.After(10 * time.Minute):
		t.Error("it waits for another sprite")
	}
	release()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// listening is a Runtime whose sandboxes take up what they are told after a while.
type listening struct {
	memory
	slow  chan struct{} // if not nil, Limit waits until it is closed
	rules int           // of the policy that is in force
	ram   int           // and the memory
}

func (r *listening) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	sb, err := r.memory.Boot(ctx, m)
	if err != nil {
		return nil, err
	}
	r.set(func() { r.rules, r.ram = len(m.Network.Rules), m.MemoryMB })
	return &listener{sb.(*fakeSandbox), r}, nil
}

type listener struct {
	*fakeSandbox
	runtime *listening
}

func (s *listener) SetNetwork(ctx context.Context, p policy.Set) error {
	s.runtime.set(func() { s.runtime.rules = len(p.Rules) })
	return ctx.Err()
}

// Limit gives the limits also if the caller does not wait for it.
func (s *listener) Limit(ctx context.Context, ram, _ int) error {
	s.runtime.set(func() { s.runtime.ram = ram })
	if s.runtime.slow != nil {
		select {
		case <-s.runtime.slow:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// TestClientLeaves: a client changes a sprite, and leaves while that starts with what it was, or
// while it is told. In the end, the sandbox has what the store has.
func TestClientLeaves(t *testing.T) {
	open := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "*", Action: "allow"}}}
	for what, c := range map[string]struct {
		awake  bool
		change func(context.Context, *sprite.Host) error
	}{
		"a policy during the start": {change: func(ctx context.Context, h *sprite.Host) error { return h.SetNetworkPolicy(ctx, "paint", open, true) }},
		"limits during the start": {change: func(ctx context.Context, h *sprite.Host) error {
			_, err := h.Update(ctx, "paint", sprites.UpdateRequest{RAMMB: new(100)})
			return err
		}},
		"limits of one that is awake": {awake: true, change: func(ctx context.Context, h *sprite.Host) error {
			_, err := h.Update(ctx, "paint", sprites.UpdateRequest{RAMMB: new(100)})
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, held := &listening{}, make(chan struct{})
				if rt.hold = held; c.awake {
					rt.hold, rt.slow = nil, held
				}
				h := start(t, &sprite.Host{Runtime: rt})
				create(t, h, "paint")
				used := make(chan error, 1)
				go func() {
					_, err := h.Use(t.Context(), "paint", "test")
					used <- err
				}()
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				changed := make(chan struct{})
				go func() {
					defer close(changed)
					_ = c.change(ctx, h) // nobody hears of it
				}()
				synctest.Wait()
				cancel()
				synctest.Wait()
				close(held)
				<-changed
				if err := <-used; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if row := rowOf(t, h); len(row.Policy.Rules) != rt.rules || row.Config.RAMMB != rt.ram {
					t.Errorf("the sandbox has %d rules and %d MiB, and the store %d and %d", rt.rules, rt.ram, len(row.Policy.Rules), row.Config.RAMMB)
				}
			})
		})
	}
}
