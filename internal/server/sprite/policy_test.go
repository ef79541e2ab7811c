package sprite_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
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
