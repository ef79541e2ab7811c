package sprite

import (
	"context"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/sprites"
)

// ExportOptions say what of a sprite is exported.
type ExportOptions struct {
	Checkpoint  string // empty: what it is now
	Environment bool   // the values of its environment, too, which may be secrets
	WithBase    bool   // the image that its disk is over, too
}

// Export writes a sprite as an archive: its disk, without the base and never its
// memory, and its settings, without secrets. If the present state is exported, Export
// seals it first; a sprite that is awake is paused for a moment. After an error, Import
// refuses the archive.
func (h *Host) Export(ctx context.Context, name string, o ExportOptions, out io.Writer) (archive.End, error) {
	disks := h.Runtime.Layers()
	if disks == nil {
		return archive.End{}, fail.Newf(CodeNotAvailable, "", "this server can't export sprites")
	}
	row, s, err := h.openExport(ctx, name, o.Checkpoint)
	if err != nil {
		return archive.End{}, err
	}
	defer s.close()
	head := archive.Header{Created: time.Now().UTC().Truncate(time.Second), Name: row.Name, Checkpoint: o.Checkpoint, Settings: h.settingsOf(row)}
	if o.Environment {
		head.Settings.Environment = row.Env
	}
	if head.Base, err = disks.Base(ctx, row.Base); err != nil {
		return archive.End{}, err
	}
	head.Base.Image = row.Config.Image
	image, done, err := packBase(ctx, h, row, o)
	if err != nil {
		return archive.End{}, err
	}
	defer done()
	parts := make([]archive.Part, len(s.Disk))
	for i, part := range s.Disk {
		parts[i] = archive.Part(part)
	}
	end, err := archive.Write(ctx, out, head, image, parts)
	return end, pathTooLong(err)
}

// packBase packs the image of a sprite that is exported, if that was asked for. The caller calls
// done when it has been written.
func packBase(ctx context.Context, h *Host, row store.Sprite, o ExportOptions) (image *archive.Image, done func(), err error) {
	if !o.WithBase {
		return nil, func() {}, nil
	}
	if !base.IsImage(row.Base) {
		return nil, nil, fail.Newf(CodeHostBase, "leave --with-base out: the other machine has a base of its own", "sprite %s has its machine's own tools as its base, which can't be in an archive", row.Name)
	}
	all, ok := h.Images.(ImageArchives)
	if !ok {
		return nil, nil, fail.Newf(CodeNotAvailable, "", "this server can't export images")
	}
	one, done, err := all.Pack(ctx, row.Base)
	return &one, done, err
}

// openExport opens the state of a sprite that is to be exported.
func (h *Host) openExport(ctx context.Context, name, checkpoint string) (row store.Sprite, s *state, err error) {
	if checkpoint == "" {
		err = h.lives.alone(ctx, name, func(ctx context.Context, m *machine, row store.Sprite) error {
			_, err := h.sealer.seal(ctx, m, row, nil, sprites.KeepNever)
			return err
		})
		if err != nil {
			return row, nil, err
		}
	}
	if row, err = h.rows.named(ctx, name); err != nil {
		return row, nil, err
	}
	if err := h.checkpoints.checkWhole(ctx, row, checkpoint); err != nil {
		return row, nil, err
	}
	s, err = h.checkpoints.open(ctx, row, checkpoint)
	return row, s, err
}

// settingsOf are a sprite's settings, without what may be a secret.
func (h *Host) settingsOf(row store.Sprite) archive.Settings {
	own := h.machines.defaults.of(row) // another server has other ones
	set := archive.Settings{
		Labels: row.Labels, Include: row.Include, IdleSeconds: int64(own.idle / time.Second), Hibernate: new(int64(own.hibernate / time.Second)), NetworkPolicy: row.Policy,
		Variables: slices.Sorted(maps.Keys(row.Env)),
	}
	if c := row.Config; c.RAMMB != 0 || c.CPUs != 0 || c.DiskLimit() != 0 {
		c.Image = "" // the header's base says it
		set.Config = &c
	}
	return set
}
