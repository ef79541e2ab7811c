package sprite

import (
	"context"
	"slices"

	"github.com/cove-dev/cove/internal/fault"
	"github.com/cove-dev/cove/internal/store"
)

// mergeWidth is how many layers of one level are merged into one of the next: chains
// grow by the logarithm of the number of checkpoints, and what a layer has is linked
// anew as often.
const mergeWidth = 8

// pin returns the chain below a layer, the lowest first, none of which is removed
// before unpin is called.
func (h *Host) pin(ctx context.Context, layer string) (chain []string, unpin func(), err error) {
	count := func(n int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, l := range chain {
			if h.pinned[l] += n; h.pinned[l] == 0 {
				delete(h.pinned, l)
			}
		}
		if n < 0 && h.spared && !h.closed {
			h.collect()
		}
	}
	for {
		if chain, err = h.Store.Sprites.Chain(ctx, layer); err != nil {
			return nil, nil, err
		}
		count(1)
		again, err := h.Store.Sprites.Chain(ctx, layer)
		if err == nil && slices.Equal(again, chain) { // nothing was doomed before it was pinned
			return chain, func() { count(-1) }, nil
		}
		count(-1)
		if err != nil {
			return nil, nil, err
		}
	}
}

// spare returns those of some layers that can be removed: they are not mounted, nor
// about to be. Where there are others, the end of a pin has them looked at again.
func (h *Host) spare(unused []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]bool{}
	for l := range h.pinned {
		held[l] = true
	}
	for _, m := range h.machines {
		for _, sb := range []Sandbox{m.sandbox, m.ending} {
			if sb != nil && !ended(sb) {
				for _, l := range sb.Status().Layers {
					held[l] = true
				}
			}
		}
	}
	free := slices.DeleteFunc(slices.Clone(unused), func(l string) bool { return held[l] })
	h.spared = len(free) < len(unused)
	return free
}

// collect removes, in the background, the layers that are in no disk and no
// checkpoint. What is still mounted waits for the end of that.
func (h *Host) collect() {
	h.wg.Go(func() {
		h.collecting.Lock()
		defer h.collecting.Unlock()
		ctx := context.WithoutCancel(h.ctx)
		unused, err := h.Store.Sprites.Doom(ctx)
		if err != nil {
			h.Logger.Error("finding layers that nobody has", "err", err)
			return
		}
		for _, layer := range h.spare(unused) {
			if h.ctx.Err() != nil {
				return // the next start goes on
			}
			err := h.Runtime.RemoveLayer(ctx, layer)
			fault.Reach(fault.LayerRemoved)
			if err == nil {
				err = h.Store.Sprites.Forget(ctx, layer)
			}
			if err != nil {
				h.Logger.Error("removing a layer that nobody has", "layer", layer, "err", err)
			}
		}
	})
}

// compact merges, in the background, sealed layers of a sprite's disk, so that no
// chain becomes too long to be mounted. Checkpoints in the middle keep their own.
func (h *Host) compact(id string) {
	merger, ok := h.Runtime.(Merger)
	if !ok {
		return
	}
	h.wg.Go(func() {
		h.collecting.Lock() // nothing is removed meanwhile
		defer h.collecting.Unlock()
		for h.ctx.Err() == nil {
			merged, err := h.mergeOnce(context.WithoutCancel(h.ctx), merger, id)
			if err != nil {
				h.Logger.Error("merging layers", "sprite", id, "err", err)
			}
			if !merged || err != nil {
				return
			}
		}
	})
}

// mergeOnce merges one run of layers of one level, if there is one that is long
// enough.
func (h *Host) mergeOnce(ctx context.Context, merger Merger, id string) (bool, error) {
	row, err := h.Store.Sprites.ByID(ctx, id)
	if err != nil {
		return false, err
	}
	chain, err := h.Store.Sprites.Levels(ctx, row.Layer)
	if err != nil {
		return false, err
	}
	run := mergeable(chain[:len(chain)-1])
	if run == nil {
		return false, nil
	}
	into, err := h.Store.Sprites.NewMerged(ctx, run[0])
	if err != nil {
		return false, err
	}
	fault.Reach(fault.MergeBegun)
	if err := merger.MergeLayers(ctx, into, run); err != nil {
		return false, err // nobody has it: it is collected
	}
	if err := h.listMerged(ctx, into, run); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeMade)
	if err := h.Store.Sprites.Replace(ctx, run[len(run)-1], into); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeStored)
	h.Logger.Info("layers merged", "sprite", row.Name, "layers", len(run), "into", into)
	h.collect()
	h.list()
	return true, nil
}

// mergeable are the topmost layers of a sealed chain that are of one level, if they
// are enough.
func mergeable(sealed []store.Layer) (run []string) {
	for end := len(sealed); end > 0; {
		begin := end
		for begin > 0 && sealed[begin-1].Level == sealed[end-1].Level {
			begin--
		}
		if end-begin >= mergeWidth {
			for _, l := range sealed[begin:end] {
				run = append(run, l.ID)
			}
			return run
		}
		end = begin
	}
	return nil
}
