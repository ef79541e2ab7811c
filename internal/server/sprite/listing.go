package sprite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// list has the files of sealed layers listed that have no list yet, in the background,
// when the machine has nothing better to do: those of one sprite after the other, those
// of some sprites at once. It returns, by layer, what is closed once that was done, or
// has failed.
func (h *Host) list() map[string]<-chan struct{} {
	reader, ok := h.Runtime.(DiskReader)
	if !ok {
		return nil
	}
	ctx := context.WithoutCancel(h.ctx)
	unlisted, err := h.Store.Sprites.Unlisted(ctx)
	bySprite := map[string][]string{}
	for _, layer := range unlisted {
		var of string
		if of, err = h.Store.Sprites.SpriteOn(ctx, layer); err != nil {
			break
		}
		bySprite[of] = append(bySprite[of], layer)
	}
	if err != nil {
		h.Logger.Error("finding layers to be listed", "err", err)
	}
	done := map[string]<-chan struct{}{}
	for of, all := range bySprite {
		q, begun := h.reads.queue(of, all)
		if begun {
			h.wg.Go(func() { h.listQueue(reader, of, q) })
		}
		for _, layer := range all {
			done[layer] = q.done
		}
	}
	return done
}

// listQueue lists the layers of one sprite.
func (h *Host) listQueue(reader DiskReader, of string, q *listQueue) {
	r := &h.reads
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-h.ctx.Done():
	}
	for {
		layer := r.next(of, q)
		if layer == "" {
			return
		}
		if h.ctx.Err() != nil {
			continue
		}
		if _, err := h.listLayer(h.ctx, reader, layer); err != nil && h.ctx.Err() == nil && !errors.Is(err, errAbandoned) {
			h.Logger.Error("listing a layer", "layer", layer, "err", err)
		}
	}
}

// listLayer lists a sealed layer, or waits until somebody else has; false: it has a
// list already, or has gone.
func (h *Host) listLayer(ctx context.Context, reader DiskReader, layer string) (listed bool, err error) {
	ctx, end := h.reading(ctx, layer) // before it is pinned: who dooms it ends it
	defer end()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errAbandoned) {
			err = errAbandoned
		}
	}()
	done, err := h.reads.alone(ctx, layer)
	if err != nil {
		return false, err
	}
	defer done()
	f, err := h.Store.Sprites.FactsOf(ctx, layer)
	if err == nil && f.Digest != "" {
		return false, nil
	}
	var unpin func()
	if err == nil {
		_, unpin, err = h.pin(ctx, layer)
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
		t := turn{ctx: ctx, turns: h.reads.turns}
		defer t.end()
		if err = t.begin(); err == nil {
			l, err = reader.LayerDir(layer).List(ctx, nil, t.next)
		}
	})
	if err != nil {
		return false, err
	}
	return true, h.setListing(ctx, layer, l)
}

func (h *Host) setListing(ctx context.Context, layer string, l layers.Listing) error {
	return h.Store.Sprites.SetFacts(context.WithoutCancel(ctx), layer, store.Facts{Digest: l.Digest, Files: l.Files, Size: l.Size, Disk: l.Disk})
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

// listMerged lists a layer that was made of others, if they all have been listed:
// what they had when they were sealed is what it has to have, and nothing is read
// again. If not, it is listed later, like any other.
func (h *Host) listMerged(ctx context.Context, into string, of []string) error {
	reader, ok := h.Runtime.(DiskReader)
	if !ok {
		return nil
	}
	ctx, end := h.reading(ctx, into)
	defer end()
	known := layers.Known{}
	for _, layer := range of {
		f, err := h.Store.Sprites.FactsOf(ctx, layer)
		if err == nil && f.Digest == "" {
			return nil
		}
		if err == nil {
			err = known.Add(ctx, reader.LayerDir(layer), listingOf(f))
		}
		if err != nil {
			return err
		}
	}
	l, err := reader.LayerDir(into).List(ctx, known, nil)
	if err != nil {
		return err
	}
	return h.setListing(ctx, into, l)
}

// glance is for how long a chain is looked at before something is put on it.
const glance = 250 * time.Millisecond

// checkWhole refuses a state of a sprite, as sealed takes it, in which files are
// known to be damaged, or found missing, or of another size or time, by a look of
// limited length. Contents are for Verify.
func (h *Host) checkWhole(ctx context.Context, row store.Sprite, id string) error {
	reader, ok := h.Runtime.(DiskReader)
	if !ok {
		return nil
	}
	var chain []string
	err := h.onLayer(func() error {
		layer, err := h.sealed(ctx, row, id)
		if err != nil || layer == "" {
			return err
		}
		var unpin func()
		if chain, unpin, err = h.pin(ctx, layer); err == nil {
			defer unpin()
			err = h.look(ctx, reader, chain)
		}
		return err
	})
	if e := (*damageError)(nil); errors.As(err, &e) {
		return fail.Newf(CodeDamaged, fmt.Sprintf("put the file back, and see with: cove checkpoint verify -s %s; or use another checkpoint", row.Name),
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

// damageError is a problem that ends a look.
type damageError struct{ layers.Problem }

func (e *damageError) Error() string { return e.Path + ": " + e.What }

// look looks at a chain, the topmost layer first, as long as glance allows.
func (h *Host) look(ctx context.Context, reader DiskReader, chain []string) error {
	brief, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	for _, layer := range slices.Backward(chain) {
		f, err := h.Store.Sprites.FactsOf(ctx, layer)
		if err != nil {
			return err
		}
		if f.Damage != "" {
			return &damageError{layers.Problem{Path: "a file", What: f.Damage}}
		}
		if f.Digest == "" || brief.Err() != nil {
			continue
		}
		err = reader.LayerDir(layer).Verify(brief, listingOf(f), false, func(int64) {}, func(p layers.Problem) error { return &damageError{p} })
		if err != nil && (brief.Err() == nil || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}
