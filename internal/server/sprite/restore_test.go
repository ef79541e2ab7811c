package sprite_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// stopping is a Runtime whose sandboxes call a function before they end.
type stopping struct {
	memory
	before  func()   // nil: nothing
	mounted []string // what Mounted says
}

func (r *stopping) Mounted(context.Context) (all []string, _ error) {
	r.set(func() { all = slices.Clone(r.mounted) })
	return all, nil
}

func (r *stopping) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	sb, err := r.memory.Boot(ctx, m)
	if err != nil {
		return nil, err
	}
	return &stoppingSandbox{sb.(*fakeSandbox), r}, nil
}

type stoppingSandbox struct {
	*fakeSandbox
	runtime *stopping
}

func (s *stoppingSandbox) Stop(ctx context.Context, grace time.Duration) error {
	if f := s.runtime.before; f != nil {
		f()
	}
	return s.fakeSandbox.Stop(ctx, grace)
}

// TestRestoreKeepsTarget: while a restore ends the sandbox, nobody deletes the checkpoint that it
// goes back to. Neither does a rule that kept it no longer when it was asked.
func TestRestoreKeepsTarget(t *testing.T) {
	for what, remove := range map[string]func(t *testing.T, h *sprite.Host, target string){
		"rm": func(t *testing.T, h *sprite.Host, target string) {
			wantCode(t, "the delete", h.DeleteCheckpoint(t.Context(), "paint", target), sprite.CodeActiveCheckpoint)
		},
		"prune": func(t *testing.T, h *sprite.Host, target string) {
			pruned, err := h.Prune(t.Context(), "paint", sprites.PruneRequest{Retention: &sprites.Retention{Last: 1}})
			if err != nil || len(pruned.Removed) > 0 || !slices.ContainsFunc(pruned.Kept, func(i sprites.PruneItem) bool { return i.ID == target && i.Why != "" }) {
				t.Errorf("got %+v, %v", pruned, err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &stopping{}
				h := start(t, &sprite.Host{Runtime: rt})
				create(t, h, "paint")
				if _, err := h.Checkpoint(t.Context(), "paint", sprites.CheckpointRequest{}); err != nil {
					t.Fatal(err)
				}
				var targets []string
				for range 2 { // the rule keeps the newer one
					undo, err := h.Restore(t.Context(), "paint", "v1", false)
					if err != nil {
						t.Fatal(err)
					}
					targets = append(targets, undo.Replaced)
					pass(time.Second)
				}
				use(t, h, "paint").Release()
				removed := make(chan struct{})
				rt.before = sync.OnceFunc(func() {
					go func() {
						defer close(removed)
						remove(t, h, targets[0])
					}()
					synctest.Wait() // it has deleted what it can, or waits
				})
				if _, err := h.Restore(t.Context(), "paint", targets[0], false); err != nil {
					t.Errorf("the restore: %v", err)
				}
				<-removed
				if row, names := rowOf(t, h), checkpoints(t, h); row.Source != targets[0] || !slices.Contains(names, targets[0]) {
					t.Errorf("the sprite goes on from %q, and has %q", row.Source, names)
				}
			})
		})
	}
}
