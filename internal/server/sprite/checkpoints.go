package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// checkpoints is what the store knows of the checkpoints of sprites, and the disks that these
// had then.
type checkpoints struct {
	runtime  Runtime
	store    *store.Sprites
	layers   *layerKeeper
	memories *memories
	tasks    *tasks
	logger   *slog.Logger

	wanting keyedMutex // by sprite and checkpoint: held while one is restored, or deleted
}

// find finds one of a sprite's.
func (cs *checkpoints) find(ctx context.Context, row store.Sprite, id string) (store.Checkpoint, error) {
	c, err := cs.store.Checkpoint(ctx, row.ID, id)
	if errors.Is(err, store.ErrNotFound) {
		return c, fail.Newf(CodeNotFound, "see what there is with: cove checkpoint list -s "+row.Name, "sprite %s has no checkpoint %.80q", row.Name, id)
	}
	return c, err
}

// want keeps a checkpoint from being deleted until done is called: a restore needs it after the
// sandbox has ended. It waits for a delete that is under way.
func (cs *checkpoints) want(ctx context.Context, sprite, name string) (done func(), err error) {
	return cs.wanting.lock(ctx, sprite+" "+name)
}

// delete forgets a checkpoint; what only it has is there until a collection. If the sprite
// goes on from the checkpoint, the error is store.ErrInUse. A restore of it is awaited.
func (cs *checkpoints) delete(ctx context.Context, id string, c store.Checkpoint) error {
	done, err := cs.want(ctx, id, c.Name)
	if err != nil {
		return err
	}
	defer done()
	added, err := cs.addedBy(ctx, id, c)
	if err != nil {
		return err
	}
	if err := cs.store.DeleteCheckpoint(ctx, id, c.Name, added); err != nil {
		return err
	}
	fault.Reach(fault.ForgetStored)
	cs.memories.forget(c.Memory)
	return nil
}

// addedBy is what a checkpoint's disk has that its source's has not, in bytes, as far
// as that is known.
func (cs *checkpoints) addedBy(ctx context.Context, id string, c store.Checkpoint) (int64, error) {
	if c.Added != nil {
		return *c.Added, nil
	}
	list, err := cs.store.Checkpoints(ctx, id)
	if err != nil {
		return 0, err
	}
	d, err := disksOf(ctx, cs.store, id, list)
	if use := d.use(c.Layer); err == nil && use != nil {
		return use.AddedBytes, nil
	}
	return 0, err
}

// describe describes one; CurrentState is what the sprite is now.
func (cs *checkpoints) describe(ctx context.Context, spriteID, id string) (sprites.Checkpoint, error) {
	row, err := cs.store.ByID(ctx, spriteID)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	list, err := cs.store.Checkpoints(ctx, spriteID)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	if id == CurrentState {
		return sprites.Checkpoint{ID: id, CreateTime: time.Now().UTC(), SourceID: row.Source, History: history(sourcesOf(list), row.Source, len(list))}, nil
	}
	i := slices.IndexFunc(list, func(c store.Checkpoint) bool { return c.Name == id })
	if i < 0 {
		return sprites.Checkpoint{}, fail.Newf(CodeNotFound, "", "sprite %s has no checkpoint %.80q", row.Name, id)
	}
	disks, err := disksOf(ctx, cs.store, spriteID, list)
	if err != nil {
		return sprites.Checkpoint{}, err
	}
	return disks.describe(list[i], history(sourcesOf(list), list[i].Source, len(list))), nil
}

// listedHistory is how much of its history each checkpoint of a list has. Otherwise the
// list would grow with the square of the number of checkpoints.
const listedHistory = 32

// describeAll describes all, what the sprite is now first.
func (cs *checkpoints) describeAll(ctx context.Context, row store.Sprite) ([]sprites.Checkpoint, error) {
	list, err := cs.store.Checkpoints(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	disks, err := disksOf(ctx, cs.store, row.ID, list)
	if err != nil {
		return nil, err
	}
	sources := sourcesOf(list)
	all := []sprites.Checkpoint{{ID: CurrentState, CreateTime: time.Now().UTC(), SourceID: row.Source, History: history(sources, row.Source, listedHistory)}}
	for _, c := range list {
		all = append(all, disks.describe(c, history(sources, c.Source, listedHistory)))
	}
	return all, nil
}

func sourcesOf(list []store.Checkpoint) map[string]string {
	sources := make(map[string]string, len(list))
	for _, c := range list {
		sources[c.Name] = c.Source
	}
	return sources
}

// history is what a state grew from, what that grew from, and so on.
func history(sources map[string]string, source string, most int) (names []string) {
	for ; source != "" && len(names) < most; source = sources[source] {
		names = append(names, source)
	}
	return names
}

// sealed is the layer that a checkpoint is the chain of, or, without one, what the
// sprite goes on from.
func (cs *checkpoints) sealed(ctx context.Context, row store.Sprite, checkpoint string) (string, error) {
	if checkpoint != "" {
		c, err := cs.find(ctx, row, checkpoint)
		return c.Layer, err
	}
	row, err := cs.store.ByID(ctx, row.ID)
	if err != nil {
		return "", err
	}
	chain, err := cs.store.Chain(ctx, row.Layer)
	if err != nil || len(chain) < 2 {
		return "", err
	}
	return chain[len(chain)-2], nil
}

// onLayer calls f, which looks for a sealed layer and puts something on it. If the
// layer was merged into another in between, onLayer calls f again.
func onLayer(f func() error) (err error) {
	for range 5 {
		if err = f(); !errors.Is(err, store.ErrNotFound) {
			break
		}
	}
	return err
}

// checkWhole refuses a state of a sprite, which id names as for sealed, if files of it
// are damaged. It knows of earlier findings, and looks for a limited time for files
// that are missing, or of another size or time. Only Verify compares contents.
func (cs *checkpoints) checkWhole(ctx context.Context, row store.Sprite, id string) error {
	if cs.runtime.Layers() == nil {
		return nil
	}
	var chain []string
	err := onLayer(func() error {
		layer, err := cs.sealed(ctx, row, id)
		if err != nil || layer == "" {
			return err
		}
		var unpin func()
		if chain, unpin, err = cs.layers.pin(ctx, layer); err == nil {
			defer unpin()
			err = cs.layers.look(ctx, chain)
		}
		return err
	})
	if e := (*damageError)(nil); errors.As(err, &e) {
		return fail.Newf(CodeDamaged, fmt.Sprintf("put the file back, and check with: cove checkpoint verify -s %s; or use another checkpoint", row.Name),
			"sprite %s: %s of %s was changed behind the server's back: %s", row.Name, e.Path, describeState(id), e.What)
	}
	return err
}

func describeState(id string) string {
	if id == "" {
		return "its disk"
	}
	return id
}

// checkLayers refuses a disk if a layer that had files is gone. Otherwise the files would
// seem to be deleted. A merge removes no layer meanwhile.
func (cs *checkpoints) checkLayers(ctx context.Context, row store.Sprite) error {
	disks := cs.runtime.Layers()
	if disks == nil {
		return nil
	}
	chain, unpin, err := cs.layers.pin(ctx, row.Layer)
	if err != nil {
		return err
	}
	defer unpin()
	listed, err := cs.store.Listed(ctx, chain)
	if err != nil {
		return err
	}
	for _, layer := range listed {
		if dir := disks.Dir(layer).Path; !isThere(dir) {
			return fail.Newf(CodeDamaged, "put the folder back; or use a checkpoint that is whole: cove checkpoint list -s "+row.Name,
				"sprite %s: a part of its disk is gone: %s", row.Name, dir)
		}
	}
	return nil
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// tend works in the background, in this order. It deletes the checkpoints that the
// sprite's rules don't keep. It has the sealed layers listed. It merges the layers of
// the disk, so that no chain becomes too long to be mounted. The merge comes last,
// because a merged layer's list is made of the other layers' lists.
func (cs *checkpoints) tend(id string) {
	cs.tasks.more(func() {
		ctx := cs.tasks.lasting()
		if err := cs.pruneAutomatic(ctx, id); err != nil {
			cs.logger.Error("deleting checkpoints that no rule keeps", "sprite", id, "err", err)
		}
		cs.layers.awaitLists(ctx, id, cs.layers.list())
		if err := cs.layers.compact(ctx, id); err != nil && cs.tasks.ctx.Err() == nil {
			cs.logger.Error("merging layers", "sprite", id, "err", err)
		}
	})
}
