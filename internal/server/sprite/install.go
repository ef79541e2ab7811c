package sprite

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/store"
)

// Fingerprint is that of the host base, on which new disks lie unless they are to lie on an
// image.
func (h *Host) Fingerprint(ctx context.Context) (string, error) {
	disks := h.Runtime.Layers()
	if disks == nil {
		return "", errors.ErrUnsupported
	}
	base, err := disks.Base(ctx, defaultBase)
	return base.Fingerprint, err
}

// KeepInstall makes what was installed in a sprite the disk that others begin with, and
// the sprite is no more. After an error it is as it was, or gone.
func (h *Host) KeepInstall(ctx context.Context, name string, in store.Install) error {
	if err := h.Stop(ctx, name); err != nil {
		return err
	}
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	if err := h.sync(); err != nil {
		return err
	}
	fault.Reach(fault.InstallMade)
	if err := h.Store.Installs.Keep(ctx, row.ID, in); err != nil {
		return err
	}
	fault.Reach(fault.InstallStored)
	if err := h.Delete(ctx, name, true); err != nil {
		h.Logger.Error("deleting the sprite of an installation; the next start tries again", "sprite", name, "err", err)
	}
	h.layers.listLater()
	return nil
}

// sync has all that sandboxes have written on the disk.
func (h *Host) sync() error {
	if h.Data == "" {
		return nil
	}
	f, err := os.Open(h.Data)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// Installs describes the installations of agents that sprites share, the newest first.
func (h *Host) Installs(ctx context.Context) ([]cove.AgentInstall, error) {
	all, err := h.Store.Installs.List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]cove.AgentInstall, len(all))
	for i, in := range all {
		list[i] = cove.AgentInstall{Key: in.Key, Agent: in.Agent, Version: in.Version, TookMS: in.Took.Milliseconds(), CreatedAt: in.CreatedAt, UsedAt: in.UsedAt}
		if facts, err := h.Store.Sprites.FactsOf(ctx, in.Layer); err == nil {
			list[i].Bytes = facts.Disk // once it is listed
		}
	}
	return list, nil
}

// DropInstall forgets an installation that was not used since a time. Sprites that
// began with it keep it.
func (h *Host) DropInstall(ctx context.Context, in cove.AgentInstall) (bool, error) {
	gone, err := h.Store.Installs.Drop(ctx, in.Key, in.UsedAt)
	if gone {
		h.layers.collect()
	}
	return gone, err
}

// begun is the layer of an install, that a new disk over a base is to begin with. One that
// was made over another base is none.
func (h *Host) begun(ctx context.Context, key, base string) (string, error) {
	in, err := h.Store.Installs.Use(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return "", noInstall(key)
	}
	if err != nil {
		return "", err
	}
	disks := h.Runtime.Layers()
	if disks == nil {
		return in.Layer, nil // nor are there images
	}
	chain, unpin, err := h.layers.pin(ctx, in.Layer)
	if err != nil {
		return "", err
	}
	defer unpin()
	if under, err := disks.Under(chain[0]); err != nil || under != "" && under != base {
		return "", errors.Join(err, noInstall(key))
	}
	return in.Layer, nil
}

func noInstall(key string) error {
	return fail.Newf(CodeNotFound, "see which there are: cove agent list", "%s", fmt.Sprintf("there is no installation %.80q", key))
}
