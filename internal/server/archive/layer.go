package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/layers"
)

// WriteLayer writes the changes that layers make to their base, as the tar of an OCI image's
// layer. If skip returns true for a path below the root, the path is left out, with all below
// it. A folder is left out, too, if nothing else in it was changed. So are sockets and devices.
// Nobody may change the layers meanwhile.
func WriteLayer(ctx context.Context, out io.Writer, v *layers.View, skip func(at string) bool) error {
	if v.FromBase(v.Root()) {
		return tar.NewWriter(out).Close()
	}
	v.KeepOpen()
	below, err := v.Base()
	if err != nil {
		return fmt.Errorf("write a layer: %w", err)
	}
	w := &layerWriter{ctx: ctx, tar: tar.NewWriter(out), view: v, skip: skip, links: map[[2]uint64]string{}, buf: make([]byte, 256<<10)}
	root := &openFolder{node: v.Root(), told: true}
	if err := w.folder(root, &below); err != nil {
		return fmt.Errorf("write a layer: %w", err)
	}
	return w.tar.Close()
}

type layerWriter struct {
	ctx       context.Context
	tar       *tar.Writer
	view      *layers.View
	skip      func(string) bool
	links     map[[2]uint64]string
	linkBytes int
	buf       []byte
}

// openFolder is a folder whose header is written before that of the first thing in it.
type openFolder struct {
	at     string
	node   layers.Node
	above  *openFolder
	told   bool
	opaque bool // of the base nothing is seen in it
}

func (w *layerWriter) tell(f *openFolder) error {
	if f.told {
		return nil
	}
	if err := w.tell(f.above); err != nil {
		return err
	}
	f.told = true
	if err := w.member(f.at, f.node, tar.Header{Typeflag: tar.TypeDir}); err != nil {
		return err
	}
	if f.opaque {
		return w.mark(path.Join(f.at, opaque), f.node)
	}
	return nil
}

// folder writes what has changed in a folder; below is what the base has there, or nil.
func (w *layerWriter) folder(f *openFolder, below *layers.Node) error {
	merged := below != nil && below.IsDir() && w.view.OnBase(f.node, f.at)
	switch {
	case below == nil, !below.IsDir():
		if err := w.tell(f); err != nil {
			return err
		}
	case !merged:
		f.opaque = true
		if err := w.tell(f); err != nil {
			return err
		}
	case f.node.Mode != below.Mode || f.node.UID != below.UID || f.node.GID != below.GID:
		if err := w.tell(f); err != nil {
			return err
		}
	}
	names, err := w.view.Names(f.node, !merged)
	if err != nil {
		return err
	}
	if !merged {
		below = nil
	}
	for _, name := range names {
		at := name
		if f.at != "" {
			at = f.at + "/" + name
		}
		if !w.skip(at) {
			if err := w.name(at, name, f, below); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *layerWriter) name(at, name string, f *openFolder, below *layers.Node) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	n, found, err := w.view.Lookup(f.node, name)
	if err != nil {
		return err
	}
	var was *layers.Node
	if below != nil {
		b, has, err := w.view.Lookup(*below, name)
		if err != nil {
			return err
		}
		if has {
			was = &b
		}
	}
	switch {
	case !found && was == nil, found && below != nil && w.view.FromBase(n):
		return nil
	case strings.HasPrefix(name, whiteout):
		return fmt.Errorf("%q: in a layer of an image, no name may begin with %s", at, whiteout)
	case !found:
		if err := w.tell(f); err != nil {
			return err
		}
		return w.mark(path.Join(f.at, whiteout+name), f.node)
	case n.IsDir():
		return w.folder(&openFolder{at: at, node: n, above: f}, was)
	}
	return w.file(at, n, f)
}

// mark writes a member that says that something of the base is gone.
func (w *layerWriter) mark(at string, dir layers.Node) error {
	return w.tar.WriteHeader(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: at, ModTime: time.Unix(0, dir.ModTime)})
}

func (w *layerWriter) file(at string, n layers.Node, f *openFolder) error {
	var h tar.Header
	dev, ino, links := n.Inode()
	id := [2]uint64{dev, ino}
	first, linked := w.links[id]
	switch {
	case linked:
		h = tar.Header{Typeflag: tar.TypeLink, Linkname: first}
	case n.Kind() == unix.S_IFLNK:
		h = tar.Header{Typeflag: tar.TypeSymlink, Linkname: n.Target}
	case n.Kind() == unix.S_IFIFO:
		h = tar.Header{Typeflag: tar.TypeFifo}
	case n.Kind() == unix.S_IFREG:
		h = tar.Header{Typeflag: tar.TypeReg, Size: n.Size}
		if links > 1 && w.linkBytes < maxLinks {
			w.links[id] = at
			w.linkBytes += len(at) + 64
		}
	default:
		return nil
	}
	if err := w.tell(f); err != nil {
		return err
	}
	if err := w.member(at, n, h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	opened, err := w.view.Open(n)
	if err != nil {
		return err
	}
	read, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, io.LimitReader(struct{ io.Reader }{opened}, n.Size), w.buf)
	if err == nil && read < n.Size {
		err = io.ErrUnexpectedEOF
	}
	if err := errors.Join(err, opened.Close()); err != nil {
		return fmt.Errorf("%q: %w", at, err)
	}
	return nil
}

func (w *layerWriter) member(at string, n layers.Node, h tar.Header) error {
	h.Format, h.Name = tar.FormatPAX, at
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.Mode, h.Uid, h.Gid, h.ModTime = int64(n.Mode&0o7777), int(n.UID), int(n.GID), time.Unix(0, n.ModTime)
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir {
		for name, value := range n.Attrs {
			if !carried(name) {
				continue
			}
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords[xattrRecord(name)] = value
		}
	}
	if err := w.tar.WriteHeader(&h); err != nil {
		return fmt.Errorf("%q: %w", h.Name, err)
	}
	return nil
}
