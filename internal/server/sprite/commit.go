package sprite

import (
	"context"
	"io"
	"slices"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/shim/base"
)

// A Commit is the disk of a sprite over an image, as it was when OpenCommit returned, for another
// image to be made of it.
type Commit struct {
	Base string // digest of the image that the disk is over

	state *state
}

// OpenCommit opens the disk of a sprite, at a checkpoint or as it is now. For the latter it is
// sealed: a sprite that is awake stands still for a moment, and goes on. The caller closes it.
func OpenCommit(ctx context.Context, h *Host, name, checkpoint string) (*Commit, error) {
	if h.Runtime.Layers() == nil {
		return nil, fail.Newf(CodeNotAvailable, "", "this server can't make images of sprites")
	}
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	if !base.IsImage(row.Base) {
		return nil, fail.Newf(CodeHostBase, "make one that starts from an image: cove create NAME --image debian:12",
			"sprite %s has the host's tools as its base, so no image can be made of it", name)
	}
	row, s, err := h.openExport(ctx, name, checkpoint)
	if err != nil {
		return nil, err
	}
	return &Commit{Base: row.Base, state: s}, nil
}

// Close lets go of the disk.
func (c *Commit) Close() { c.state.close() }

// sandboxFiles are on every disk, because the guest and the network of a sandbox write them.
var sandboxFiles = []string{".sprite", "dev", "proc", "sys", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id"}

// WriteLayer writes what the sprite has changed of its image as the tar of one layer, without what
// the sandbox itself has written.
func (c *Commit) WriteLayer(ctx context.Context, w io.Writer) error {
	return archive.WriteLayer(ctx, w, c.state.Disk[0].View, func(at string) bool { return slices.Contains(sandboxFiles, at) })
}
