package sprite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// BuildRequest describes the sprite that runs a step of an image's build.
type BuildRequest struct {
	Image         string // digest
	NetworkPolicy sprites.NetworkPolicy
	CPUs, RAMMB   int // 0: no limit
	Binds         []Bind
}

// Building is a sprite that runs a step of an image's build. It is in no list, and its disk has
// nothing but what the image needs to run. The caller removes it; else the next start does.
type Building struct {
	host  *Host
	row   store.Sprite
	lease *Lease
}

// CheckBuild refuses what no step could run with.
func CheckBuild(ctx context.Context, h *Host, req BuildRequest) error {
	if err := checkConfig(&sprites.Config{CPUs: req.CPUs, RAMMB: req.RAMMB}); err != nil {
		return err
	}
	_, err := h.network.compile(ctx, req.NetworkPolicy)
	return err
}

// EndBuilds waits until the sandboxes of builds that an earlier server has left have ended, and
// removes the sprites whose removal has failed. No build may have started a sprite yet.
func EndBuilds(ctx context.Context, h *Host) error {
	for _, ended := range h.takeover.builds {
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	rows, err := h.Store.Sprites.List(ctx, store.SpriteFilter{Prefix: store.BuildName})
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Owner != store.BuildOwner {
			continue
		}
		if err := h.Delete(ctx, row.Name, true); err != nil {
			return fmt.Errorf("delete the sprites that an earlier build has left: %w", err)
		}
	}
	return nil
}

// StartBuild makes a sprite for a step of a build, and starts its sandbox.
func StartBuild(ctx context.Context, h *Host, req BuildRequest) (*Building, error) {
	if err := CheckBuild(ctx, h, req); err != nil {
		return nil, err
	}
	row := store.Sprite{
		ID: randomHex(8), MachineID: randomHex(16), Base: req.Image, Owner: store.BuildOwner, Policy: req.NetworkPolicy,
		Config: sprites.Config{Image: req.Image, CPUs: req.CPUs, RAMMB: req.RAMMB}, URL: sprites.URLSettings{Auth: "sprite"}, Status: sprites.StatusCold,
	}
	row.Name = store.BuildName + row.ID
	err := h.Store.Sprites.Create(ctx, &row)
	if errors.Is(err, store.ErrNoImage) {
		return nil, goneImage(row)
	}
	if err != nil {
		return nil, err
	}
	b := &Building{host: h, row: row}
	h.lives.booter.binds.set(row.ID, req.Binds)
	fault.Reach(fault.BuildBegun)
	if b.lease, err = h.Use(ctx, row.Name, "a build"); err != nil {
		return nil, errors.Join(err, b.Remove())
	}
	return b, nil
}

// Name is the sprite's name.
func (b *Building) Name() string { return b.row.Name }

// Lease keeps the sandbox running until Layer or Remove is called.
func (b *Building) Lease() *Lease { return b.lease }

// Layer ends the sandbox, and writes what it has changed as the layer of an image.
func (b *Building) Layer(ctx context.Context, w io.Writer) error {
	b.lease.Release()
	if err := b.host.lives.stopSprite(ctx, b.row.Name, false); err != nil {
		return err
	}
	return writeLayer(ctx, b.host, b.row.Name, w)
}

// Remove ends the sandbox, and removes the sprite with its disk. It may be called again.
func (b *Building) Remove() error {
	if b.lease != nil {
		b.lease.Release()
	}
	b.host.lives.booter.binds.set(b.row.ID, nil)
	err := b.host.Delete(context.Background(), b.row.Name, true)
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == CodeNotFound {
		return nil
	}
	return err
}

// bindings are what the sandboxes of builds are shown, by the sprite's ID.
type bindings struct {
	mu  sync.Mutex
	all map[string][]Bind
}

func (b *bindings) set(id string, binds []Bind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[string][]Bind{}
	}
	if b.all[id] = binds; len(binds) == 0 {
		delete(b.all, id)
	}
}

func (b *bindings) of(id string) []Bind {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[id]
}

// writeLayer writes what a sprite has changed of its image.
func writeLayer(ctx context.Context, h *Host, name string, w io.Writer) error {
	_, s, err := h.openExport(ctx, name, "")
	if err != nil {
		return err
	}
	defer s.close()
	return archive.WriteLayer(ctx, w, s.Disk[0].View, func(at string) bool { return slices.Contains(sandboxFiles, at) })
}
