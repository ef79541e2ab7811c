package archive

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/safepath"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// Part is one mount of a disk, as layers show it over the base.
type Part struct {
	Target string // below the root, such as usr; the root's is empty
	View   *layers.View
}

// maxLinks bounds how many bytes Write remembers of files with several names. Beyond
// it, each name becomes a file of its own.
const maxLinks = 64 << 20

// Image is the image of a disk, for its archive.
type Image struct {
	Bytes int64                 // that Write writes
	Write func(io.Writer) error // as something that Options.Begin takes
}

// Write writes an archive of the difference between a disk, its root first, and its
// base. Its use of memory does not grow with the disk, except for the names of one
// folder and of files of several names. Sockets and devices are left out, and counted.
// After an error, Read refuses what was written. If a path is too long for an archive,
// nothing is written, and the error is layers.ErrPathTooLong. A nil image is not
// written.
func Write(ctx context.Context, out io.Writer, h Header, image *Image, disk []Part) (End, error) {
	if h.Format = Format; image != nil {
		h.Format = FormatWithImage
	}
	names := writer{ctx: ctx, dry: true}
	for _, part := range disk {
		if err := names.part(part, disk); err != nil {
			return End{}, fmt.Errorf("export: %w", err)
		}
	}
	zw, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxWindow))
	if err != nil {
		return End{}, err
	}
	w := writer{ctx: ctx, tar: tar.NewWriter(zw), sum: newDigest(), links: map[[2]uint64]string{}, buf: make([]byte, 256<<10)}
	err = w.document(headerName, h.Created, h)
	if err == nil && image != nil {
		err = w.image(h.Created, *image)
	}
	for _, part := range disk {
		if err == nil {
			err = w.part(part, disk)
		}
	}
	if err == nil {
		w.end.Digest = w.sum.text()
		err = w.document(endName, h.Created, w.end)
	}
	if err == nil {
		err = w.tar.Close()
	}
	if err != nil { // and no end mark: what was written must not pass for whole
		return End{}, fmt.Errorf("export: %w", err)
	}
	if err := zw.Close(); err != nil {
		return End{}, fmt.Errorf("export: %w", err)
	}
	return w.end, nil
}

type writer struct {
	ctx       context.Context
	dry       bool // only the names are looked at
	tar       *tar.Writer
	sum       digest
	links     map[[2]uint64]string // the first names of files of several
	linkBytes int
	buf       []byte
	end       End

	// Of the part at hand.
	view   *layers.View
	target string
	skip   []string // where, in the root, other parts are
}

// document writes one of the two members that are about the archive.
func (w *writer) document(name string, at time.Time, doc any) error {
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: at}
	if name == headerName {
		if _, err := w.sum.Write(text); err != nil {
			return err
		}
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.tar.Write(text)
	return err
}

// image writes the image of the base. It is written as a whole, or the next member is an error.
func (w *writer) image(at time.Time, image Image) error {
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: imageName, Mode: 0o644, Size: image.Bytes, ModTime: at}
	if err := w.sum.member(h); err != nil {
		return err
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	return image.Write(struct{ io.Writer }{io.MultiWriter(w.tar, w.sum)})
}

// part writes one mount of a disk, if there is anything of it.
func (w *writer) part(part Part, disk []Part) error {
	if part.View.FromBase(part.View.Root()) {
		return nil
	}
	w.view, w.target, w.skip = part.View, part.Target, nil
	if part.Target == "" {
		for _, other := range disk {
			w.skip = append(w.skip, other.Target)
		}
	}
	return w.folder("", w.view.Root(), true)
}

// folder writes a folder and what is in it. merged: nothing above it hides the base.
func (w *writer) folder(at string, n layers.Node, merged bool) error {
	if err := w.member(at, n, tar.Header{Typeflag: tar.TypeDir}); err != nil {
		return err
	}
	onBase := merged && w.view.OnBase(n, at)
	if merged && !onBase {
		if err := w.bare(path.Join(at, opaque), n); err != nil {
			return err
		}
	}
	names, err := w.view.Names(n, !onBase)
	if err != nil {
		return err
	}
	for _, name := range names {
		if at == "" && slices.Contains(w.skip, name) {
			continue
		}
		if err := w.name(path.Join(at, name), n, onBase); err != nil {
			return err
		}
	}
	return nil
}

// name writes what is at a name of a folder; merged: over what the base has there.
func (w *writer) name(at string, dir layers.Node, merged bool) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	n, found, err := w.view.Lookup(dir, path.Base(at))
	switch {
	case err != nil:
		return err
	case !found && !merged, found && merged && w.view.FromBase(n):
		return nil
	case !found:
		return w.bare(path.Join(path.Dir(at), whiteout+path.Base(at)), dir)
	case n.IsDir():
		return w.folder(at, n, merged)
	}
	return w.file(at, n)
}

// bare writes a member that says something of the base.
func (w *writer) bare(at string, dir layers.Node) error {
	name, err := w.memberName(at)
	if err != nil || w.dry {
		return err
	}
	h := tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, ModTime: time.Unix(0, dir.ModTime)}
	w.end.Members++
	return errors.Join(w.sum.member(&h), w.tar.WriteHeader(&h))
}

// memberName is the name of what is at a path. Read takes none that is longer.
func (w *writer) memberName(at string) (string, error) {
	name := path.Join(diskName, w.target, at)
	if len(name) >= safepath.MaxPath {
		return "", fmt.Errorf("%w: %d bytes, %.100q…", layers.ErrPathTooLong, len(name), path.Join("/", w.target, at))
	}
	return name, nil
}

func (w *writer) file(at string, n layers.Node) error {
	if w.dry {
		_, err := w.memberName(at)
		return err
	}
	dev, ino, links := n.Inode()
	id := [2]uint64{dev, ino}
	if first, ok := w.links[id]; ok {
		return w.member(at, n, tar.Header{Typeflag: tar.TypeLink, Linkname: first})
	}
	switch n.Kind() {
	case unix.S_IFLNK:
		return w.member(at, n, tar.Header{Typeflag: tar.TypeSymlink, Linkname: n.Target})
	case unix.S_IFIFO:
		return w.member(at, n, tar.Header{Typeflag: tar.TypeFifo})
	case unix.S_IFREG:
		name := path.Join(diskName, w.target, at)
		if links > 1 && w.linkBytes < maxLinks {
			w.links[id] = name
			w.linkBytes += len(name) + 64
		}
		return w.regular(at, n)
	}
	w.end.LeftOut++
	return nil
}

// member writes a header. h has the fields that the node does not tell.
func (w *writer) member(at string, n layers.Node, h tar.Header) error {
	name, err := w.memberName(at)
	if err != nil || w.dry {
		return err
	}
	h.Format, h.Name = tar.FormatPAX, name
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.Mode, h.Uid, h.Gid, h.ModTime = int64(n.Mode&0o7777), int(n.UID), int(n.GID), time.Unix(0, n.ModTime)
	record := func(key, value string) {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[key] = value
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir {
		for name, value := range n.Attrs {
			if carried(name) {
				record(xattrRecord(name), value)
			}
		}
	}
	if h.Typeflag == tar.TypeReg && h.Size != n.Size {
		record(paxSparse, strconv.FormatInt(n.Size, 10))
	}
	if strings.HasPrefix(path.Base(at), whiteout) {
		record(paxLiteral, "1")
	}
	w.end.Members++
	if err := errors.Join(w.sum.member(&h), w.tar.WriteHeader(&h)); err != nil {
		return fmt.Errorf("%q: %w", h.Name, err)
	}
	return nil
}

// regular writes a file, without its holes.
func (w *writer) regular(at string, n layers.Node) error {
	f, err := w.view.Open(n)
	if err != nil {
		return err
	}
	defer f.Close()
	var stored, data int64
	err = parts(f, n.Size, func(_, size int64) error {
		stored += partHeader + size
		data += size
		return w.ctx.Err()
	})
	if err != nil {
		return err
	}
	if data == n.Size {
		stored = data
	}
	if stored >= n.Size { // too small a hole to be worth it
		stored = n.Size
	}
	if err := w.member(at, n, tar.Header{Typeflag: tar.TypeReg, Size: stored}); err != nil {
		return err
	}
	w.end.Bytes += stored
	if stored == n.Size {
		return w.copy(at, io.NewSectionReader(f, 0, n.Size), n.Size)
	}
	return parts(f, n.Size, func(offset, size int64) error {
		head := putPart(nil, offset, size)
		if _, err := io.MultiWriter(w.tar, w.sum).Write(head); err != nil {
			return err
		}
		return w.copy(at, io.NewSectionReader(f, offset, size), size)
	})
}

func (w *writer) copy(at string, r io.Reader, size int64) error {
	for size > 0 {
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		n, err := io.CopyBuffer(io.MultiWriter(w.tar, w.sum), io.LimitReader(r, int64(len(w.buf))), w.buf)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", at, err)
		}
		size -= n
	}
	return nil
}

// parts tells of the parts of a file that are no holes.
func parts(f *os.File, size int64, each func(offset, size int64) error) error {
	for end := int64(0); end < size; {
		begin, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		if end = min(end, size); begin >= end {
			return nil
		}
		if err := each(begin, end-begin); err != nil {
			return err
		}
	}
	return nil
}
