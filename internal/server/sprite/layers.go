package sprite

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// mergeWidth is how many layers of one level are merged into one of the next. So the
// length of chains, and how often a layer's files are linked anew, grow with the
// logarithm of the number of checkpoints.
const mergeWidth = 8

// layerKeeper keeps the layers of all disks. It pins layers for their users, removes layers
// that nobody has, lists the files of sealed layers, and merges chains that become too long.
// The method close ends its work in the background.
type layerKeeper struct {
	store   *store.Sprites
	runtime Runtime
	logger  *slog.Logger

	inUse  func(context.Context) (map[string]bool, error) // the layers that sandboxes have, or are about to have
	remove func(ctx context.Context, layer string) error  // from the disk

	ctx     context.Context // ends before close is called
	wg      sync.WaitGroup
	reads   reads
	merging keyedMutex // by the lowest layer of a chain

	collecting  sync.Mutex // held while layers are removed
	referencing sync.Mutex // held while it is found which layers nobody references, or one is made that nobody does yet

	mu     sync.Mutex
	closed bool
	pinned map[string]int  // layers that are being mounted or read, by how many
	making map[string]bool // layers that are being made of others, and nobody has yet
	left   bool            // the last collection left some layers to those who hold them
}

func newLayerKeeper(ctx context.Context, rt Runtime, rows *store.Sprites, logger *slog.Logger) *layerKeeper {
	k := &layerKeeper{store: rows, runtime: rt, logger: logger, ctx: ctx, pinned: map[string]int{}, making: map[string]bool{}}
	k.reads.init()
	return k
}

// close waits for the work in the background. No more work begins.
func (k *layerKeeper) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.wg.Wait()
}

// begin does something in the background.
func (k *layerKeeper) begin(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.wg.Go(f)
	}
}

// pin returns the chain that ends with a layer, the lowest layer first. No layer of the
// chain is removed before unpin is called.
func (k *layerKeeper) pin(ctx context.Context, layer string) (chain []string, unpin func(), err error) {
	count := func(n int) {
		k.mu.Lock()
		for _, l := range chain {
			if k.pinned[l] += n; k.pinned[l] == 0 {
				delete(k.pinned, l)
			}
		}
		again := n < 0 && k.left
		k.mu.Unlock()
		if again {
			k.collect()
		}
	}
	for {
		if chain, err = k.store.Chain(ctx, layer); err != nil {
			return nil, nil, err
		}
		count(1)
		again, err := k.store.Chain(ctx, layer)
		if err == nil && slices.Equal(again, chain) { // nothing was unreferenced before it was pinned
			return chain, func() { count(-1) }, nil
		}
		count(-1)
		if err != nil {
			return nil, nil, err
		}
	}
}

// unheld returns those of some layers that can be removed, because nobody has pinned them and
// no sandbox has them. The flag all says that these are all of them. If not, the end of a pin
// or of a sandbox leads to another look.
func (k *layerKeeper) unheld(ctx context.Context, unused []string) (free []string, all bool, err error) {
	k.mu.Lock()
	free = slices.DeleteFunc(slices.Clone(unused), func(l string) bool { return k.pinned[l] > 0 })
	k.left = len(free) < len(unused)
	k.mu.Unlock()
	if len(free) == 0 {
		return nil, len(unused) == 0, nil
	}
	held, err := k.inUse(ctx) // after the pins: a layer that was unpinned because a sandbox has it is seen here
	if err != nil {
		return nil, false, err
	}
	free = slices.DeleteFunc(free, func(l string) bool { return held[l] })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = k.left || len(free) < len(unused)
	return free, len(free) == len(unused), nil
}

// collect removes, in the background, the layers that are in no disk and no checkpoint.
// A layer that is still mounted is removed after it is unmounted.
func (k *layerKeeper) collect() {
	k.begin(func() {
		k.collecting.Lock()
		defer k.collecting.Unlock()
		ctx := context.WithoutCancel(k.ctx)
		unused, _, err := k.unreferenced(ctx)
		if err != nil {
			k.logger.Error("finding unreferenced layers", "err", err)
			return
		}
		for _, layer := range unused {
			if k.ctx.Err() != nil {
				return // the next start goes on
			}
			err := k.remove(ctx, layer)
			fault.Reach(fault.LayerRemoved)
			if err == nil {
				err = k.store.Forget(ctx, layer)
			}
			if err != nil {
				k.logger.Error("removing an unreferenced layer", "layer", layer, "err", err)
			}
		}
	})
}

// unreferenced returns the layers that can be removed, which from now on nobody gets. all: no
// others are in no disk and no checkpoint.
func (k *layerKeeper) unreferenced(ctx context.Context) (unused []string, all bool, err error) {
	k.referencing.Lock()
	defer k.referencing.Unlock()
	k.mu.Lock()
	making := slices.Collect(maps.Keys(k.making))
	k.mu.Unlock()
	unused, err = k.store.MarkUnreferenced(ctx, making...)
	for _, layer := range unused {
		k.reads.abandon(layer) // the end of that reading leads to another collection
	}
	if err != nil {
		return nil, false, err
	}
	return k.unheld(ctx, unused)
}

// adopt calls f, which makes a layer that nobody has yet, and gives it to a sprite. Before f
// has returned, no layer is removed because nobody has it.
func (k *layerKeeper) adopt(f func() error) error {
	k.referencing.Lock()
	defer k.referencing.Unlock()
	err := f()
	if err != nil {
		k.collect() // once the lock is free
	}
	return err
}

// abandon ends what reads all of a sprite.
func (k *layerKeeper) abandon(id string) { k.reads.abandon(allOf(id)) }

// listLater has the layers listed that were sealed.
func (k *layerKeeper) listLater() { k.begin(func() { k.list() }) }

// pinShort is pin of a chain that is about to be mounted as a sprite's disk. If the
// chain has grown faster than its layers were merged, pinShort merges them first.
func (k *layerKeeper) pinShort(ctx context.Context, id, layer string) (chain []string, unpin func(), err error) {
	chain, unpin, err = k.pin(ctx, layer)
	if err != nil || len(chain) <= layers.MaxLowers { // without the one that is written, but with the base
		return chain, unpin, err
	}
	unpin()
	if err := k.compact(ctx, id); err != nil {
		return nil, nil, err
	}
	return k.pin(ctx, layer)
}

// awaitLists waits until those of a sprite's disk are made.
func (k *layerKeeper) awaitLists(ctx context.Context, id string, done map[string]<-chan struct{}) {
	row, err := k.store.ByID(ctx, id)
	if err != nil {
		return // it is gone
	}
	chain, err := k.store.Chain(ctx, row.Layer)
	if err != nil {
		return // to merge them says why
	}
	for _, layer := range chain {
		if listed := done[layer]; listed != nil {
			select {
			case <-listed:
			case <-k.ctx.Done():
			}
		}
	}
}

// compact merges sealed layers of a sprite's disk. Checkpoints in the middle keep their
// own. It waits only for merges of sprites that share layers with this one: these share
// the lowest layer.
func (k *layerKeeper) compact(ctx context.Context, id string) error {
	if k.runtime.Layers() == nil {
		return nil
	}
	for k.ctx.Err() == nil {
		_, chain, run, err := k.toMerge(ctx, id)
		if run == nil || err != nil {
			return err
		}
		done, err := k.merging.lock(ctx, chain[0].ID)
		if err != nil {
			return err
		}
		merged, err := k.mergeOnce(ctx, id, chain[0].ID)
		done()
		if err != nil {
			return err
		}
		if merged {
			k.collect()
			k.listLater()
		}
	}
	return nil
}

// toMerge returns a sprite, the layers of its disk, and a run of them that is long
// enough to be merged; nil: there is none.
func (k *layerKeeper) toMerge(ctx context.Context, id string) (row store.Sprite, chain []store.Layer, run []string, err error) {
	row, chain, err = diskOf(
		func() (store.Sprite, error) { return k.store.ByID(ctx, id) },
		func(layer string) ([]store.Layer, error) { return k.store.Levels(ctx, layer) })
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	if err != nil || len(chain) == 0 {
		return row, nil, nil, err
	}
	return row, chain, mergeable(chain[:len(chain)-1]), nil
}

// diskOf reads a sprite and then the layers of its disk. If the disk is replaced in between, so
// that its layer is gone, it reads both again. No layers: the sprite's layer is not there.
func diskOf(sprite func() (store.Sprite, error), layersOf func(layer string) ([]store.Layer, error)) (row store.Sprite, chain []store.Layer, err error) {
	for was := ""; len(chain) == 0; was = row.Layer {
		if row, err = sprite(); err != nil || row.Layer == was {
			return row, nil, err
		}
		if chain, err = layersOf(row.Layer); err != nil {
			return row, nil, err
		}
	}
	return row, chain, nil
}

// begunMerge is a merge that has begun. Neither its sources nor its result is removed
// before end is called.
type begunMerge struct {
	sprite string // its name
	run    []string
	into   string
	end    func()
}

// beginMerge begins one on a lowest layer; nil: there is none.
func (k *layerKeeper) beginMerge(ctx context.Context, id, lowest string) (*begunMerge, error) {
	k.referencing.Lock()
	defer k.referencing.Unlock()
	row, chain, run, err := k.toMerge(ctx, id)
	if run == nil || chain[0].ID != lowest || err != nil { // it was merged meanwhile
		return nil, err
	}
	_, unpin, err := k.pin(ctx, row.Layer)
	if err != nil {
		return nil, err
	}
	into, err := k.store.NewMerged(ctx, run[0])
	if err != nil {
		unpin()
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.making[into] = true
	return &begunMerge{row.Name, run, into, func() {
		k.mu.Lock()
		delete(k.making, into)
		k.mu.Unlock()
		unpin()
	}}, nil
}

// mergeOnce merges one run of layers of a disk, if there is one that is long enough.
// Nobody else does so on the same lowest layer.
func (k *layerKeeper) mergeOnce(ctx context.Context, id, lowest string) (bool, error) {
	m, err := k.beginMerge(ctx, id, lowest)
	if m == nil || err != nil {
		return false, err
	}
	defer m.end()
	run, into := m.run, m.into
	fault.Reach(fault.MergeBegun)
	if err := k.runtime.Layers().Merge(ctx, into, run); err != nil {
		return false, err // nobody has it: it is collected
	}
	if err := k.listMerged(ctx, into, run); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeMade)
	top := run[len(run)-1]
	added, err := k.addedOn(ctx, top)
	if err != nil {
		return false, err
	}
	if err := k.store.Replace(ctx, top, into, added); err != nil {
		return false, err
	}
	fault.Reach(fault.MergeStored)
	k.logger.Info("layers merged", "sprite", m.sprite, "layers", len(run), "into", into)
	return true, nil
}

// addedOn is how many bytes the checkpoint with this last layer has added. It is asked
// before a merge makes it impossible to tell. nil: nobody knows.
func (k *layerKeeper) addedOn(ctx context.Context, layer string) (*int64, error) {
	id, err := k.store.SealedBy(ctx, layer)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := k.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, err
	}
	d, err := disksOf(ctx, k.store, id, list)
	if use := d.use(layer); err == nil && use != nil {
		return &use.AddedBytes, nil
	}
	return nil, err
}

// shortEnough is how many sealed layers a disk may have before its topmost layers are
// merged whatever their levels. With one more, the layer that is written, and the base,
// it can still be mounted.
const shortEnough = layers.MaxLowers - 4

// mergeable returns the topmost run of layers of one level in a sealed chain, if the
// run is long enough. If there is none, and the chain is too long, it returns the
// topmost layers.
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
