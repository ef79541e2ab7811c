package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

// The store has the next layer of a sprite's disk before anything is done. If the answer
// of the sandbox is lost, or bad, the settler must find out which layer is written now. As
// long as nobody knows, the sprite keeps both, and nothing that needs to know begins.

// outcome is what has become of a disk whose next layer was begun.
type outcome int

const (
	unsettled outcome = iota // nobody knows: the sprite keeps its Next
	stayed                   // the sandbox runs over the layer that it had: Next is forgotten
	moved                    // the sandbox runs over the next one: what was begun is done
	noSandbox                // no sandbox runs: the next layer is empty, or the last sandbox wrote to it
)

const (
	settleLimit = 30 * time.Second // for a sandbox to say what it runs over, while somebody waits
	settlePause = time.Second      // between two tries, while nobody does
	hasteLimit  = time.Second      // the same as settleLimit, while the whole server waits for its start
)

// settler decides which layer is written.
type settler struct {
	runtime  Runtime
	store    *store.Sprites
	machines *machines
	layers   *layerKeeper
	tend     func(id string) // what is due after a disk has changed
	tasks    *tasks
	logger   *slog.Logger
}

// settle finds out what has become of a sprite's disk after its next layer was begun. The
// sprite's sandbox is sb, or nil. If the outcome is unsettled, the error says why nobody
// knows. The time limit is its own, because the caller's may be over.
func (s *settler) settle(limit time.Duration, id string, next store.Next, sb Sandbox) (outcome, error) {
	ctx, cancel := context.WithTimeout(s.tasks.ctx, limit)
	defer cancel()
	if sb != nil && !ended(sb) {
		has, err := layersOf(ctx, sb, next.Layer)
		switch {
		case err == nil && slices.Contains(has, next.Layer):
			if _, err := s.store.Commit(ctx, id, next); err != nil {
				return unsettled, err
			}
			return moved, nil
		case err == nil:
			if err := s.store.Abort(ctx, id, next); err != nil {
				return unsettled, err
			}
			s.layers.collect()
			return stayed, nil
		case !ended(sb):
			return unsettled, fmt.Errorf("ask which layer its sandbox writes: %w", err)
		}
	}
	row, err := s.store.ByID(ctx, id)
	if err != nil {
		return unsettled, err
	}
	mounted, err := mounted(ctx, s.runtime)
	if err != nil {
		return unsettled, err
	}
	if slices.Contains(mounted, next.Layer) || slices.Contains(mounted, row.Layer) {
		return unsettled, errors.New("a sandbox that can't be reached has its disk")
	}
	next.Checkpoint = nil // it was not made; an empty layer on top changes nothing of a disk
	if _, err := s.store.Commit(ctx, id, next); err != nil {
		return unsettled, err
	}
	return noSandbox, nil
}

// layersOf asks a sandbox for its layers. If it makes no checkpoints, its status is right.
func layersOf(ctx context.Context, sb Sandbox, next string) ([]string, error) {
	if c, ok := sb.(Checkpointer); ok {
		return c.Settle(ctx, next)
	}
	return sb.Status().Layers, nil
}

// mounted are the layers that the runtime's sandboxes have.
func mounted(ctx context.Context, rt Runtime) ([]string, error) {
	all, err := rt.Mounted(ctx)
	if err != nil {
		return nil, fmt.Errorf("find which layers are mounted: %w", err)
	}
	return all, nil
}

// settled is a sprite's row without a Next. sb is its sandbox, or nil.
func (s *settler) settled(ctx context.Context, row store.Sprite, sb Sandbox) (store.Sprite, error) {
	if row.Next.Layer == "" {
		return row, nil
	}
	_, why := s.settle(settleLimit, row.ID, row.Next, sb)
	row, err := s.store.ByID(ctx, row.ID) // somebody else may have done it
	if err == nil && row.Next.Layer != "" {
		err = notKnown(row.Name, why)
	}
	return row, err
}

func notKnown(name string, why error) error {
	e := fail.Newf(CodeUnavailable, "check in a moment with: cove checkpoint list -s "+name+"; or end its sandbox with: cove suspend "+name,
		"it is not known yet whether a change to the disk of sprite %s was made", name)
	e.Err = why
	return e
}

// later settles in the background what could not be yet.
func (s *settler) later(id, layer string) {
	s.tasks.more(func() {
		for s.tasks.ctx.Err() == nil {
			row, err := s.store.ByID(s.tasks.ctx, id)
			if errors.Is(err, store.ErrNotFound) || err == nil && row.Next.Layer != layer {
				return
			}
			if err == nil {
				if _, err = s.settle(settleLimit, id, row.Next, s.machines.sandbox(id)); err == nil {
					s.logger.Info("settled which layer a sprite writes", "sprite", row.Name)
					s.tend(id)
					return
				}
			}
			s.logger.Warn("it is not known yet which layer a sprite writes", "id", id, "err", err)
			select {
			case <-time.After(settlePause):
			case <-s.tasks.ctx.Done():
			}
		}
	})
}

// all settles, when the server starts, what the last one began. If a sprite can't be
// settled yet, the start does not wait for it.
func (s *settler) all(rows []store.Sprite, live map[string]Sandbox) {
	done := make(chan string, len(rows))
	asked := 0
	for _, row := range rows {
		if row.Next.Layer == "" {
			continue
		}
		asked++
		s.tasks.more(func() {
			if _, err := s.settle(hasteLimit, row.ID, row.Next, live[row.ID]); err != nil {
				s.logger.Error("finishing a checkpoint", "sprite", row.Name, "err", err)
				s.later(row.ID, row.Next.Layer)
			}
			done <- row.ID
		})
	}
	for range asked {
		<-done
	}
}
