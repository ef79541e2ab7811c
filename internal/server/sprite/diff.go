package sprite

import (
	"context"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// Diff tells which files differ between two states of a sprite's disk. Each state is a
// checkpoint or CurrentState. Diff wakes nobody, and may see a file that is being written half
// done. Files that cove itself writes do not count; see layers.Diff for the other rules. An
// error of tell ends it.
func (h *Host) Diff(ctx context.Context, name, from, to string, tell func(sprites.DiffEntry) error) error {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	a, err := h.checkpoints.open(ctx, row, from)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := h.checkpoints.open(ctx, row, to)
	if err != nil {
		return err
	}
	defer b.close()
	for i, part := range a.Disk { // both are of one sprite, and have the same parts
		err := layers.Diff(ctx, part.View, b.Disk[i].View, func(c layers.Change) error {
			at := path.Join("/", part.Target, c.Path)
			if slices.Contains(boot.Written, at) {
				return nil
			}
			return tell(diffEntry(at, c))
		})
		if err != nil {
			return pathTooLong(err)
		}
	}
	return nil
}

// state is the disk of one state of a sprite, open for reading.
type state struct {
	Disk
	chain []string // of its layers, the lowest first
	unpin func()
}

func (s *state) close() {
	_ = s.Close() // nothing was written
	s.unpin()
}

// open opens a checkpoint of a sprite, or what its disk is now; with an empty id,
// the sealed state that it goes on from.
func (cs *checkpoints) open(ctx context.Context, row store.Sprite, id string) (*state, error) {
	disks := cs.runtime.Layers()
	if disks == nil {
		return nil, fail.Newf(CodeNotAvailable, "", "this server can't read the disks of sprites")
	}
	s := &state{}
	err := onLayer(func() (err error) {
		var layer string
		if id != CurrentState {
			layer, err = cs.sealed(ctx, row, id)
		} else if row, err = cs.store.ByID(ctx, row.ID); err == nil { // a checkpoint gives the disk another layer
			layer = row.Layer
		}
		if err == nil {
			s.chain, s.unpin, err = cs.layers.pin(ctx, layer)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.Disk, err = disks.Open(ctx, row.Base, s.chain); err != nil {
		s.unpin()
		if e := imageError(row, "the disk of sprite "+row.Name+" can't be read", err); e != nil {
			return nil, e
		}
		return nil, err
	}
	return s, nil
}

func diffEntry(at string, c layers.Change) sprites.DiffEntry {
	e := sprites.DiffEntry{Change: sprites.DiffChanged, Path: at, What: c.What}
	if !utf8.ValidString(at) {
		e.Path, e.RawPath = strings.ToValidUTF8(at, string(utf8.RuneError)), []byte(at)
	}
	if c.Old != nil {
		e.Type, e.OldSize = kindName(c.Old), c.Old.Size
	} else {
		e.Change = sprites.DiffAdded
	}
	if c.New != nil {
		e.Type, e.Size = kindName(c.New), c.New.Size
	} else {
		e.Change = sprites.DiffRemoved
	}
	return e
}

func kindName(s *layers.Stat) string {
	switch s.Kind() {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}
