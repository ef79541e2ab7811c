package sprite

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
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
// about to be, as this Host knows it, and as the runtime's sandboxes say. Where there are
// others, the end of a pin, or of a sandbox, has them looked at again.
func (h *Host) spare(ctx context.Context, unused []string) ([]string, error) {
	if len(unused) == 0 {
		return nil, nil
	}
	mounted, err := h.mounted(ctx)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]bool{}
	for _, l := range mounted {
		held[l] = true
	}
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
	return free, nil
}

// collect removes, in the background, the layers that are in no disk and no
// checkpoint. What is still mounted waits for the end of that.
func (h *Host) collect() {
	h.wg.Go(func() {
		h.collecting.Lock()
		defer h.collecting.Unlock()
		ctx := context.WithoutCancel(h.ctx)
		unused, err := h.doom(ctx)
		if err != nil {
			h.Logger.Error("finding layers that nobody has", "err", err)
			return
		}
		for _, layer := range unused {
			if h.ctx.Err() != nil {
				return // the next start goes on
			}
			err := h.removeLayer(ctx, layer)
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

// doom returns the layers that can be removed.
func (h *Host) doom(ctx context.Context) ([]string, error) {
	h.dooming.Lock()
	defer h.dooming.Unlock()
	h.mu.Lock()
	making := slices.Collect(maps.Keys(h.making))
	h.mu.Unlock()
	unused, err := h.Store.Sprites.Doom(ctx, making...)
	for _, layer := range unused {
		h.reads.abandon(layer) // whose end has it looked at again
	}
	if err != nil {
		return nil, err
	}
	return h.spare(ctx, unused)
}

// pinShort is pin of a chain that is about to be mounted as a sprite's disk. Where that
// has grown faster than its layers were merged, they are now.
func (h *Host) pinShort(ctx context.Context, id, layer string) (chain []string, unpin func(), err error) {
	chain, unpin, err = h.pin(ctx, layer)
	if err != nil || len(chain) <= layers.MaxLowers { // without the one that is written, but with the base
		return chain, unpin, err
	}
	unpin()
	if err := h.compact(ctx, id); err != nil {
		return nil, nil, err
	}
	return h.pin(ctx, layer)
}

// tend deletes, in the background, the checkpoints of a sprite that its rules don't
// keep, has listed what layers have been sealed, and merges those of its disk, so that
// no chain becomes too long to be mounted: in this order, because a merged layer's list
// is then made of the lists of others.
func (h *Host) tend(id string) {
	h.wg.Go(func() {
		ctx := context.WithoutCancel(h.ctx)
		if err := h.pruneAutomatic(ctx, id); err != nil {
			h.Logger.Error("deleting checkpoints that no rule keeps", "sprite", id, "err", err)
		}
		h.awaitLists(ctx, id, h.list())
		if err := h.compact(ctx, id); err != nil && h.ctx.Err() == nil {
			h.Logger.Error("merging layers", "sprite", id, "err", err)
		}
	})
}

// awaitLists waits until those of a sprite's disk are made.
func (h *Host) awaitLists(ctx context.Context, id string, done map[string]<-chan struct{}) {
	row, err := h.Store.Sprites.ByID(ctx, id)
	if err != nil {
		return // it is gone
	}
	chain, err := h.Store.Sprites.Chain(ctx, row.Layer)
	if err != nil {
		return // to merge them says why
	}
	for _, layer := range chain {
		if listed := done[layer]; listed != nil {
			select {
			case <-listed:
			case <-h.ctx.Done():
			}
		}
	}
}

// compact merges sealed layers of a sprite's disk. Checkpoints in the middle keep their
// own. Others are not waited for, but for those that have layers in common with it: they
// have the lowest one.
func (h *Host) compact(ctx context.Context, id string) error {
	merger, ok := h.Runtime.(Merger)
	if !ok {
		return nil
	}
	for h.ctx.Err() == nil {
		_, chain, run, err := h.toMerge(ctx, id)
		if run == nil || err != nil {
			return err
		}
		done, err := h.reads.alone(ctx, "merges on "+chain[0].ID)
		if err != nil {
			return err
		}
		merged, err := h.mergeOnce(ctx, merger, id, chain[0].ID)
		done()
		if err != nil {
			return err
		}
		if merged {
			h.collect()
			h.wg.Go(func() { h.list() })
		}
	}
	return nil
}

// toMerge returns a sprite, the layers of its disk, and a run of them that is long
// enough to be merged; nil: there is none.
func (h *Host) toMerge(ctx context.Context, id string) (row store.Sprite, chain []store.Layer, run []string, err error) {
	row, err = h.Store.Sprites.ByID(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return row, nil, nil, nil
	}
	if err == nil {
		chain, err = h.Store.Sprites.Levels(ctx, row.Layer)
	}
	if err != nil {
		return row, nil, nil, err
	}
	return row, chain, mergeable(chain[:len(chain)-1]), nil
}

// begunMerge is a merge of which nothing is removed, neither what it makes nor of what,
// before end is called.
type begunMerge struct {
	sprite string // its name
	run    []string
	into   string
	end    func()
}

// beginMerge begins one on a lowest layer; nil: there is none.
func (h *Host) beginMerge(ctx context.Context, id, lowest string) (*begunMerge, error) {
	h.dooming.Lock()
	defer h.dooming.Unlock()
	row, chain, run, err := h.toMerge(ctx, id)
	if run == nil || chain[0].ID != lowest || err != nil { // it was merged meanwhile
		return nil, err
	}
	_, unpin, err := h.pin(ctx, row.Layer)
	if err != nil {
		return nil, err
	}
	into, err := h.Store.Sprites.NewMerged(ctx, run[0])
	if err != nil {
		unpin()
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.making[into] = true
	return &begunMerge{row.Name, run, into, func() {
		h.mu.Lock()
		delete(h.making, into)
		h.mu.Unlock()
		unpin()
	}}, nil
}

// mergeOnce merges one run of layers of a disk, if there is one that is long enough.
// Nobody else does so on the same lowest layer.
func (h *Host) mergeOnce(ctx context.Context, merger Merger, id, lowest string) (bool, error) {
	m, err := h.beginMerge(ctx, id, lowest)
	if m == nil || err != nil {
		return false, err
	}
	defer m.end()
	run, into := m.run, m.into
	fault.Reach(fault.MergeBegun)
	if err := merger.MergeLayers(ctx, into, run); err != nil {
		return false, err // nobody has it: it is collected
	}
	if err := h.listMerged(ctx, into, run); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeMade)
	top := run[len(run)-1]
	added, err := h.addedOn(ctx, top)
	if err != nil {
		return false, err
	}
	if err := h.Store.Sprites.Replace(ctx, top, into, added); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeStored)
	h.Logger.Info("layers merged", "sprite", m.sprite, "layers", len(run), "into", into)
	return true, nil
}

// addedOn is what the checkpoint whose last layer that is has added, before a merge
// makes it impossible to tell; nil: nobody knows.
func (h *Host) addedOn(ctx context.Context, layer string) (*int64, error) {
	id, err := h.Store.Sprites.SealedBy(ctx, layer)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := h.Store.Sprites.Checkpoints(ctx, id)
	if err != nil {
		return nil, err
	}
	d, err := h.disks(ctx, id, list)
	if use := d.use(layer); err == nil && use != nil {
		return &use.AddedBytes, nil
	}
	return nil, err
}

// shortEnough is how many sealed layers a disk may have without two runs of a level
// being merged: with one more, the one that is written, and the base, it can be mounted.
const shortEnough = layers.MaxLowers - 4

// mergeable are the topmost layers of a sealed chain that are of one level, if they
// are enough; in a chain that is too long, those that are the topmost.
func mergeable(sealed []store.Layer) (run []string) {
	ids := func(part []store.Layer) (run []string) {
		for _, l := range part {
			run = append(run, l.ID)
		}
		return run
	}
	for end := len(sealed); end > 0; {
		begin := end
		for begin > 0 && sealed[begin-1].Level == sealed[end-1].Level {
			begin--
		}
		if end-begin >= mergeWidth {
			return ids(sealed[begin:end])
		}
		end = begin
	}
	if len(sealed) > shortEnough {
		return ids(sealed[len(sealed)-mergeWidth:])
	}
	return nil
}
