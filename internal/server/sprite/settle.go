package sprite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// The store has the next layer of a sprite's disk before anything is done. If the answer
// of the one who does it is lost, or bad, it has to be settled which layer is written now.
// As long as nobody knows, the sprite keeps both, and nothing that needs to know begins.

// outcome is what has become of a disk whose next layer was begun.
type outcome int

const (
	unsettled outcome = iota // nobody knows: the sprite keeps its Next
	stayed                   // the sandbox runs over the layer that it had: Next is forgotten
	moved                    // the sandbox runs over the next one: what was begun is done
	over                     // there is no sandbox: the next one is empty, or its last one wrote it
)

const (
	settleLimit = 30 * time.Second // for a sandbox to say what it runs over, while somebody waits
	settlePause = time.Second      // between two tries, while nobody does
	startLimit  = time.Second      // the same as settleLimit, while the whole server waits
)

// settle decides what has become of a sprite whose next layer was begun, by its sandbox,
// or nil. The error, with which it is unsettled, says why nobody knows. The time for it is
// its own: that of who began it may be over.
func (h *Host) settle(limit time.Duration, id string, next store.Next, sb Sandbox) (outcome, error) {
	ctx, cancel := context.WithTimeout(h.tasks.ctx, limit)
	defer cancel()
	if sb != nil && !ended(sb) {
		has, err := layersOf(ctx, sb, next.Layer)
		switch {
		case err == nil && slices.Contains(has, next.Layer):
			if _, err := h.Store.Sprites.Commit(ctx, id, next); err != nil {
				return unsettled, err
			}
			return moved, nil
		case err == nil:
			if err := h.Store.Sprites.Abort(ctx, id, next); err != nil {
				return unsettled, err
			}
			h.layers.collect()
			return stayed, nil
		case !ended(sb):
			return unsettled, fmt.Errorf("ask which layer its sandbox writes: %w", err)
		}
	}
	row, err := h.Store.Sprites.ByID(ctx, id)
	if err != nil {
		return unsettled, err
	}
	mounted, err := mounted(ctx, h.Runtime)
	if err != nil {
		return unsettled, err
	}
	if slices.Contains(mounted, next.Layer) || slices.Contains(mounted, row.Layer) {
		return unsettled, errors.New("a sandbox that can't be reached has its disk")
	}
	next.Checkpoint = nil // it was not made; an empty layer on top changes nothing of a disk
	if _, err := h.Store.Sprites.Commit(ctx, id, next); err != nil {
		return unsettled, err
	}
	return over, nil
}

// layersOf asks a sandbox for its layers. One that can't be moved has not been.
func layersOf(ctx context.Context, sb Sandbox, next string) ([]string, error) {
	if c, ok := sb.(Checkpointer); ok {
		return c.Settle(ctx, next)
	}
	return sb.Status().Layers, nil
}

// mounted are the layers that the runtime's sandboxes have, if it can say so.
func mounted(ctx context.Context, rt Runtime) ([]string, error) {
	m, ok := rt.(Mounter)
	if !ok {
		return nil, nil
	}
	all, err := m.Mounted(ctx)
	if err != nil {
		return nil, fmt.Errorf("look which layers are mounted: %w", err)
	}
	return all, nil
}

// settled is a sprite's row without a Next. sb is its sandbox, or nil.
func (h *Host) settled(ctx context.Context, row store.Sprite, sb Sandbox) (store.Sprite, error) {
	if row.Next.Layer == "" {
		return row, nil
	}
	_, why := h.settle(settleLimit, row.ID, row.Next, sb)
	row, err := h.Store.Sprites.ByID(ctx, row.ID) // somebody else may have done it
	if err == nil && row.Next.Layer != "" {
		err = notKnown(row.Name, why)
	}
	return row, err
}

func notKnown(name string, why error) error {
	e := fail.Newf(CodeUnavailable, "see in a moment with: cove checkpoint list -s "+name+"; or end its sandbox with: cove suspend "+name,
		"it is not known yet what has become of a change of the disk of sprite %s", name)
	e.Err = why
	return e
}

// settleLater settles in the background what could not be yet.
func (h *Host) settleLater(id, layer string) {
	h.tasks.more(func() {
		for h.tasks.ctx.Err() == nil {
			row, err := h.Store.Sprites.ByID(h.tasks.ctx, id)
			if errors.Is(err, store.ErrNotFound) || err == nil && row.Next.Layer != layer {
				return
			}
			if err == nil {
				if _, err = h.settle(settleLimit, id, row.Next, h.machines.sandbox(id)); err == nil {
					h.Logger.Info("settled which layer a sprite writes", "sprite", row.Name)
					h.tend(id)
					return
				}
			}
			h.Logger.Warn("it is not known yet which layer a sprite writes", "id", id, "err", err)
			select {
			case <-time.After(settlePause):
			case <-h.tasks.ctx.Done():
			}
		}
	})
}

// settleAll settles, when the server starts, what the last one began. What can't be yet
// holds up nobody.
func (h *Host) settleAll(rows []store.Sprite, live map[string]Sandbox) {
	done := make(chan string, len(rows))
	asked := 0
	for _, row := range rows {
		if row.Next.Layer == "" {
			continue
		}
		asked++
		h.tasks.more(func() {
			if _, err := h.settle(startLimit, row.ID, row.Next, live[row.ID]); err != nil {
				h.Logger.Error("finishing a checkpoint", "sprite", row.Name, "err", err)
				h.settleLater(row.ID, row.Next.Layer)
			}
			done <- row.ID
		})
	}
	for range asked {
		<-done
	}
}

// sealFailed settles a seal whose sandbox could not be moved, or did not say so, and
// returns what seal does.
func (h *Host) sealFailed(row store.Sprite, next store.Next, sb Sandbox, keep sprites.KeepMemory, err error) (kept, error) {
	was, unknown := h.settle(settleLimit, row.ID, next, sb)
	switch {
	case unknown != nil:
		h.settleLater(row.ID, next.Layer)
		return kept{}, notKnown(row.Name, errors.Join(err, unknown))
	case was == over:
		e := fail.Newf(CodeUnavailable, "use it as before: its next use boots it; the log of the server says more",
			"no checkpoint was made, and the sandbox of sprite %s has ended; its files are as they were", row.Name)
		e.Err = err
		if inner, ok := errors.AsType[*fail.Error](err); ok && inner.Err != nil {
			e.Err = inner.Err // it said so, too
		}
		return kept{}, e
	case was == moved:
		h.tend(row.ID)
		if next.Checkpoint == nil && keep != sprites.KeepNever {
			return kept{}, err // it was for the memory
		}
		h.Logger.Warn("a checkpoint was made, whose answer was lost", "sprite", row.Name, "err", err)
		if keep != sprites.KeepNever {
			return kept{why: "the answer of the process that looks after its sandbox was lost"}, nil
		}
		return kept{}, nil
	}
	return kept{}, err
}
