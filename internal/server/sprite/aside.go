package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// A store may be older than what lies beside it: a copy of it was put back. It does not
// know the sprites, checkpoints and layers that were made since. A start removes nothing
// because the store does not know it: it moves that aside. A sandbox that the store does
// not know is ended, with its memory and its disk kept there.

// Why something is moved aside, for people.
const (
	whyNoSprite     = "cove.db knows no such sprite"
	whyNoLayer      = "no disk and no checkpoint in cove.db has this layer"
	whyNoCheckpoint = "no checkpoint in cove.db has this memory"
	whyOtherDisk    = "this memory belongs to another disk than the one that the sprite has in cove.db"
)

// takeover makes the store and what an earlier server has left agree, when the server starts.
type takeover struct {
	runtime     Runtime
	store       *store.Store
	rows        *rows
	machines    *machines
	tasks       *tasks
	logger      *slog.Logger
	layers      *layerKeeper
	memories    *memories
	checkpoints *checkpoints
	settler     *settler
	network     *network
	lives       *lifecycle
	disk        *diskWatch

	older  atomic.Bool     // some of what an older store does not know is not aside yet
	builds []chan struct{} // of each build's sprite that was left: closed when its removal has ended
}

// agree makes the store and the disk agree as far as that is necessary before sandboxes
// are taken up. It returns the sprites of the store. It takes the sandboxes that it ends
// from live.
func (t *takeover) agree(ctx context.Context, live map[string]Sandbox) ([]store.Sprite, error) {
	older, err := t.store.Epoch.Older(ctx)
	if err != nil {
		return nil, err
	}
	t.older.Store(older)
	if older {
		t.logger.Warn("the store is or may be an older one: files that it does not know are moved aside")
		if err := t.disown(ctx); err != nil {
			return nil, err
		}
	}
	rows, err := t.store.Sprites.List(ctx, store.SpriteFilter{})
	if err != nil {
		return nil, err
	}
	t.settler.all(rows, live)
	if rows, err = t.store.Sprites.List(ctx, store.SpriteFilter{}); err != nil || !older {
		return rows, err
	}
	if err := t.endStrangers(ctx, rows, live); err != nil {
		return nil, err
	}
	done, err := t.reconcile(ctx, rows, live)
	if err != nil {
		return nil, err
	}
	if done {
		if err := t.store.Epoch.Reconciled(ctx); err != nil {
			return nil, err
		}
		t.older.Store(false)
	}
	return t.store.Sprites.List(ctx, store.SpriteFilter{})
}

// disown makes an older store forget what belonged to nobody when it was copied, because it may
// belong to somebody since. These are the sandboxes of the pool and of builds, installations,
// and memories that were being made.
func (t *takeover) disown(ctx context.Context) error {
	rows, err := t.store.Sprites.List(ctx, store.SpriteFilter{})
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Owner != store.PoolOwner && row.Owner != store.BuildOwner && !strings.HasPrefix(row.Owner, store.InstallOwner) {
			continue
		}
		if err := t.store.Sprites.Delete(ctx, row.ID); err != nil {
			return err
		}
	}
	_, unreferenced, err := t.store.Sprites.Memories(ctx)
	if err != nil || len(unreferenced) == 0 {
		return err
	}
	return t.store.Sprites.ForgetMemories(ctx, unreferenced)
}

// endStrangers ends the sandboxes that no sprite of an older store has, or that run over
// another disk, and returns when they have ended.
func (t *takeover) endStrangers(ctx context.Context, rows []store.Sprite, live map[string]Sandbox) error {
	known, err := t.knownLayers(ctx)
	if err != nil {
		return err
	}
	byID := make(map[string]store.Sprite, len(rows))
	for _, row := range rows {
		byID[row.ID] = row
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for id, sb := range live {
		row, there := byID[id]
		switch {
		case !there:
			wg.Go(func() { _ = t.retire(sb, whyNoSprite) }) // logged; what it has stays
		case !isFor(sb, row) || !isOver(sb, row, known):
			wg.Go(func() {
				t.reached(row, sb)
				_ = t.retire(sb, whyOtherDisk) // likewise
			})
		default:
			continue
		}
		delete(live, id)
	}
	return nil
}

// reconcile moves aside what an older store does not know, and sees to it that nothing
// that was sealed since is written again. It reports whether that is all done.
func (t *takeover) reconcile(ctx context.Context, rows []store.Sprite, live map[string]Sandbox) (done bool, err error) {
	unused, done, err := t.layers.unreferenced(ctx)
	if err != nil {
		return false, err
	}
	for _, layer := range unused { // somebody may have had it since
		if err := t.store.Sprites.Forget(ctx, layer); err != nil {
			t.logger.Error("forgetting an unreferenced layer", "layer", layer, "err", err)
			done = false
		}
	}
	all, err := t.sweep(ctx, rows, true)
	if err != nil {
		return false, err
	}
	for _, row := range rows {
		if live[row.ID] == nil && row.Next.Layer == "" && !row.Deleting {
			if err := t.sealOlder(ctx, row); err != nil {
				return false, err
			}
		}
		if err := t.checkpoints.checkLayers(ctx, row); err != nil {
			t.logger.Error("the disk of a sprite in an older store is no longer complete", "sprite", row.Name, "err", err)
			t.rows.note(row.ID, func(s *store.Sprite) { s.LastError = err.Error() })
		}
	}
	return done && all, nil
}

// sealOlder makes a checkpoint of what a sprite without a sandbox is in an older store. A
// checkpoint that the older store does not have may have sealed the sprite's layer since.
// So nobody writes that layer again, and the newer store can be put back.
func (t *takeover) sealOlder(ctx context.Context, row store.Sprite) error {
	if disks := t.runtime.Layers(); disks != nil && !isThere(disks.Dir(row.Layer).Path) {
		return nil // it has written nothing
	}
	list, err := t.store.Sprites.Checkpoints(ctx, row.ID)
	if err != nil {
		return err
	}
	before := &store.Checkpoint{Name: automatic("older-store", list), Auto: true, Comment: "before the server went on with an older cove.db"}
	next, err := t.store.Sprites.Begin(ctx, row.ID, row.Layer, store.Next{Checkpoint: before})
	if err != nil {
		return err
	}
	_, err = t.store.Sprites.Commit(ctx, row.ID, next)
	return err
}

// sweep moves aside the layers and the memories that the store does not know. With an older
// store, it also moves aside memories that go with another disk. It removes unreferenced
// memories. It leaves layers that a sandbox has mounted. It reports whether nothing is left to
// move or remove.
func (t *takeover) sweep(ctx context.Context, rows []store.Sprite, older bool) (all bool, err error) {
	stock, err := t.runtime.Stock(ctx) // before the store is read: it knows what was made meanwhile
	if err != nil {
		return false, err
	}
	known, err := t.knownLayers(ctx)
	if err != nil {
		return false, err
	}
	mounted, err := mounted(ctx, t.runtime)
	if err != nil {
		return false, err
	}
	kept, unreferenced, err := t.store.Sprites.Memories(ctx)
	if err != nil {
		return false, err
	}
	last := map[string]string{} // the layer that a sprite writes
	for _, row := range rows {
		last[row.ID] = row.Layer
	}
	all = true
	for _, item := range stock {
		why := ""
		switch layer, sprite := last[item.Name]; {
		case item.Kind == ItemLayer && !known[item.Name]:
			why = whyNoLayer
			if slices.Contains(mounted, item.Name) {
				why, all = "", false
			}
		case item.Kind == ItemMemory && !slices.Contains(kept, item.Name):
			why = whyNoCheckpoint
		case item.Kind == ItemImage && !sprite:
			why = whyNoSprite
		case item.Kind == ItemImage && older && (len(item.Layers) == 0 || item.Layers[len(item.Layers)-1] != layer):
			why = whyOtherDisk
		}
		switch {
		case why == "":
		case item.Kind != ItemLayer && slices.Contains(unreferenced, item.Name):
			t.dropUnreferenced(ctx, item)
		case !t.setAside(ctx, item, why):
			all = false
		}
	}
	if len(unreferenced) == 0 {
		return all, nil
	}
	return all, t.store.Sprites.ForgetMemories(ctx, t.gone(ctx, unreferenced))
}

// dropUnreferenced removes a memory that the store has marked unreferenced.
func (t *takeover) dropUnreferenced(ctx context.Context, item Item) {
	if item.Kind == ItemMemory {
		t.memories.forget(item.Name)
		return
	}
	if err := t.memories.discard(ctx, item.Name); err != nil {
		t.logger.Error("removing the memory of a sprite that no longer exists", "id", item.Name, "err", err)
	}
}

// gone returns those of some unreferenced memories that are not there any more.
func (t *takeover) gone(ctx context.Context, unreferenced []string) []string {
	stock, err := t.runtime.Stock(ctx)
	if err != nil {
		t.logger.Error("looking for unreferenced memories", "err", err)
		return nil
	}
	return slices.DeleteFunc(slices.Clone(unreferenced), func(name string) bool {
		return slices.ContainsFunc(stock, func(i Item) bool { return i.Kind != ItemLayer && i.Name == name })
	})
}

// setAside moves an item aside, and reports whether it is not in its place any more.
func (t *takeover) setAside(ctx context.Context, item Item, why string) bool {
	to, err := t.runtime.SetAside(ctx, item, why)
	switch {
	case err != nil:
		t.logger.Error("moving aside", "what", item.Kind, "name", item.Name, "why", why, "err", err)
	case to != "":
		t.logger.Warn("moved aside", "what", item.Kind, "name", item.Name, "why", why, "to", to)
	}
	return err == nil
}

// removeLayer removes a layer that nobody has. As long as the store may be an older one,
// somebody may have had it since: then it is moved aside.
func (t *takeover) removeLayer(ctx context.Context, layer string) error {
	if t.older.Load() {
		if !t.setAside(ctx, Item{Kind: ItemLayer, Name: layer}, whyNoLayer) {
			return errors.New("it could not be moved aside")
		}
		return nil
	}
	return t.runtime.RemoveLayer(ctx, layer)
}

// knownLayers are the layers that the store knows.
func (t *takeover) knownLayers(ctx context.Context) (map[string]bool, error) {
	all, err := t.store.Sprites.Layers(ctx)
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(all))
	for _, layer := range all {
		known[layer] = true
	}
	return known, nil
}

// isOver reports whether a sandbox runs over the disk that the store says. Such a sandbox
// writes the sprite's layer, or the next one, and has no layer that the store does not know.
// The layers below may differ, because a merge takes effect with the next sandbox.
func isOver(sb Sandbox, row store.Sprite, known map[string]bool) bool {
	has := sb.Status().Layers
	if len(has) == 0 {
		return true // the runtime does not say
	}
	if slices.ContainsFunc(has, func(layer string) bool { return !known[layer] }) {
		return false
	}
	last := has[len(has)-1]
	return last == row.Layer || last == row.Next.Layer
}

// reached notes the incarnation of a sandbox that an older store does not know yet.
func (t *takeover) reached(row store.Sprite, sb Sandbox) {
	n := sb.Status().Incarnation
	if n <= row.Incarnation {
		return
	}
	if err := t.store.Sprites.Reached(t.tasks.lasting(), row.ID, n); err != nil {
		t.logger.Error("noting the incarnation of a sandbox", "sprite", row.Name, "err", err)
	}
}

// endForeign ends the sandbox of a machine for which beginEnd was called, because it runs
// over another disk than the sprite's.
func (t *takeover) endForeign(m *machine, sb Sandbox) {
	err := t.retire(sb, whyOtherDisk)
	busy, freed := m.endEnd(nil) // if it has not ended, no other one starts beside it
	m.lose(whyOtherDisk)
	if freed {
		t.disk.noteHeld(m)
	}
	t.rows.note(m.id, func(s *store.Sprite) {
		s.Status, s.LastError = sprites.StatusCold, "its sandbox ran over another disk than the one in cove.db; its memory and its files are in aside/ in the data folder"
		if err != nil {
			s.LastError = "its sandbox runs over another disk than the one in cove.db, and could not be ended: " + err.Error()
		}
		s.Lost = s.LastError
	})
	busy.finish(nil)
}

// retire ends a sandbox that the store does not know in its present form. It moves aside
// the sandbox's memory, if that can be kept, and the layers of its disk that the store
// does not know.
func (t *takeover) retire(sb Sandbox, why string) error {
	ctx := t.tasks.lasting()
	id, has := sb.ID(), sb.Status().Layers
	t.logger.Warn("ending a sandbox; its memory and its disk are kept", "id", id, "why", why)
	image := Item{Kind: ItemImage, Name: id}
	if !t.setAside(ctx, image, why) { // the next memory would take its place
		return errors.New("its memory could not be moved aside")
	}
	err := errors.ErrUnsupported
	if hb, ok := sb.(Hibernator); ok {
		err = t.lives.hibernate(hb)
	}
	if err != nil && !ended(sb) {
		err = t.lives.stop(sb, stopGrace)
	}
	if !ended(sb) {
		return fmt.Errorf("end a sandbox: %w", err)
	}
	known, err := t.knownLayers(ctx)
	if err != nil {
		return err
	}
	mounted, err := mounted(ctx, t.runtime)
	if err != nil {
		return err
	}
	t.setAside(ctx, image, why)
	for _, layer := range has {
		if !known[layer] && !slices.Contains(mounted, layer) { // the last one that has it takes it along
			t.setAside(ctx, Item{Kind: ItemLayer, Name: layer}, whyNoLayer)
		}
	}
	return nil
}
