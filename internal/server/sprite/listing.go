package sprite

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// list begins to list the files of sealed layers that have no list yet. That happens in
// the background, at idle priority. The layers of one sprite are listed one after the
// other; several sprites have their turn at once. The channel of a layer is closed once
// it was listed, or that has failed.
func (k *layerKeeper) list() map[string]<-chan struct{} {
	if k.runtime.Layers() == nil {
		return nil
	}
	ctx := context.WithoutCancel(k.ctx)
	unlisted, err := k.store.Unlisted(ctx)
	bySprite := map[string][]string{}
	for _, layer := range unlisted {
		var of string
		if of, err = k.store.SpriteOn(ctx, layer); err != nil {
			break
		}
		bySprite[of] = append(bySprite[of], layer)
	}
	if err != nil {
		k.logger.Error("finding layers to be listed", "err", err)
	}
	done := map[string]<-chan struct{}{}
	for of, all := range bySprite {
		q, begun := k.reads.queue(of, all)
		if begun {
			k.begin(func() { k.listQueue(of, q) })
		}
		for _, layer := range all {
			done[layer] = q.done
		}
	}
	return done
}

// listQueue lists the layers of one sprite.
func (k *layerKeeper) listQueue(of string, q *listQueue) {
	r := &k.reads
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-k.ctx.Done():
	}
	for {
		layer := r.next(of, q)
		if layer == "" {
			return
		}
		if k.ctx.Err() != nil {
			continue
		}
		if _, err := k.listLayer(k.ctx, layer); err != nil && k.ctx.Err() == nil && !errors.Is(err, errAbandoned) {
			k.logger.Error("listing a layer", "layer", layer, "err", err)
		}
	}
}

// listLayer lists a sealed layer, or waits until somebody else has; false: it has a
// list already, or has gone.
func (k *layerKeeper) listLayer(ctx context.Context, layer string) (listed bool, err error) {
	ctx, end := k.reading(ctx, layer) // before it is pinned: a mark as unreferenced ends this reading
	defer end()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errAbandoned) {
			err = errAbandoned
		}
	}()
	done, err := k.reads.listed.lock(ctx, layer)
	if err != nil {
		return false, err
	}
	defer done()
	f, err := k.store.FactsOf(ctx, layer)
	if err == nil && f.Digest != "" {
		return false, nil
	}
	var unpin func()
	if err == nil {
		_, unpin, err = k.pin(ctx, layer)
	}
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unpin()
	var l layers.Listing
	atLeisure(func() {
		t := turn{ctx: ctx, turns: k.reads.turns}
		defer t.end()
		if err = t.begin(); err == nil {
			l, err = k.runtime.Layers().Dir(layer).List(ctx, nil, t.next)
		}
	})
	if err != nil {
		return false, err
	}
	return true, k.setListing(ctx, layer, l, f.Damage)
}

// setListing stores the list of a layer. The damage is that of layers that it was merged from.
func (k *layerKeeper) setListing(ctx context.Context, layer string, l layers.Listing, damage string) error {
	return k.store.SetFacts(context.WithoutCancel(ctx), layer, store.Facts{Digest: l.Digest, Files: l.Files, Size: l.Size, Disk: l.Disk, Damage: damage})
}

func listingOf(f store.Facts) layers.Listing {
	return layers.Listing{Digest: f.Digest, Files: f.Files, Size: f.Size, Disk: f.Disk}
}

// The class and level of ionice -c 3.
const (
	ioprioWhoProcess = 1
	ioprioIdle       = 3 << 13
)

// atLeisure calls f on a thread of the lowest priority, which ends with it.
func atLeisure(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread is of no other use now
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, ioprioIdle)
		f()
	}()
	<-done
}

// listMerged lists a layer that was merged from others, if all of them have been
// listed. The merged layer must have the files that they had when they were sealed, so
// nothing is read again. Otherwise it is listed later, like any other.
func (k *layerKeeper) listMerged(ctx context.Context, into string, of []string) error {
	disks := k.runtime.Layers()
	if disks == nil {
		return nil
	}
	ctx, end := k.reading(ctx, into)
	defer end()
	known := layers.Known{}
	for _, layer := range of {
		f, err := k.store.FactsOf(ctx, layer)
		if err == nil && f.Digest == "" {
			return nil
		}
		if err == nil {
			err = known.Add(ctx, disks.Dir(layer), listingOf(f))
		}
		if err != nil {
			return err
		}
	}
	l, err := disks.Dir(into).List(ctx, known, nil)
	if err != nil {
		return err
	}
	return k.setListing(ctx, into, l, "") // their damage is added with the merge
}

// glance is for how long a chain is looked at before something is put on it.
const glance = 250 * time.Millisecond

// damageError is a problem that ends a look.
type damageError struct{ layers.Problem }

func (e *damageError) Error() string { return e.Path + ": " + e.What }

// look looks at a chain, the topmost layer first, as long as glance allows.
func (k *layerKeeper) look(ctx context.Context, chain []string) error {
	brief, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	for _, layer := range slices.Backward(chain) {
		f, err := k.store.FactsOf(ctx, layer)
		if err != nil {
			return err
		}
		if f.Damage != "" {
			return &damageError{layers.Problem{Path: "a file", What: f.Damage}}
		}
		if f.Digest == "" || brief.Err() != nil {
			continue
		}
		err = k.runtime.Layers().Dir(layer).Verify(brief, listingOf(f), false, func(int64) {}, func(p layers.Problem) error { return &damageError{p} })
		if err != nil && (brief.Err() == nil || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}
