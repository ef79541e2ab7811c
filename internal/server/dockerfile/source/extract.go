package source

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// maxWindow bounds the memory that a decompression takes.
const maxWindow = 32 << 20

// plain is a file without its compression, which its first bytes tell.
func plain(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(br)), nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return nil, errXZ
	}
	return io.NopCloser(br), nil
}

var errXZ = fail.New("dockerfile_unsupported", "ADD does not extract an archive that is compressed with xz", "copy it with COPY, and extract it with RUN tar -xJf FILE")

// extract writes the content of a source, if the source is an archive.
func (w *writer) extract(s one, from Tree) (done bool, err error) {
	f, err := from.Open(s.at)
	if err != nil {
		return false, err
	}
	defer f.Close()
	r, err := plain(contextReader{w.ctx, f})
	if err == errXZ {
		return false, err
	}
	if err != nil {
		return false, nil //nolint:nilerr // it is no archive, and copied
	}
	defer r.Close()
	members := tar.NewReader(r)
	h, err := members.Next()
	if err != nil {
		return false, nil //nolint:nilerr // it is no archive, and copied
	}
	base, err := w.folders(w.c.Dest)
	if err != nil {
		return true, err
	}
	for ; err == nil; h, err = members.Next() {
		if err := w.extracted(base, h, members); err != nil {
			return true, err
		}
	}
	if err != io.EOF {
		return true, refused("the archive %.300q is damaged: %v", s.at, err)
	}
	return true, nil
}

// inside is the path in the layer for a name of an archive. No link leads out of the image's root.
func (w *writer) inside(base, name string) (string, error) {
	at := strings.TrimPrefix(path.Join("/", name), "/")
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refused("the archive has %.300q, which leads out of it", name)
		}
	}
	dir, last := split(at)
	dir, err := follow(w.to.Lstat, path.Join(base, dir))
	return path.Join(dir, last), err
}

// extracted writes one member of an archive.
func (w *writer) extracted(base string, h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if w.left -= 512; w.left < 0 {
		return refused("the archive has more than %d bytes", int64(maxBytes))
	}
	if len(h.Name) > maxPath || len(h.Linkname) > maxPath || strings.Count(h.Name, "/") > maxDepth {
		return refused("the archive has a name of more than %d bytes or %d folders: %.100q", maxPath, maxDepth, h.Name)
	}
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	at, err := w.inside(base, h.Name)
	if err != nil || at == base {
		return err
	}
	dir, _ := split(at)
	if _, err := w.folders(dir); err != nil {
		return err
	}
	info := Info{Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid, Size: h.Size, ModTime: h.ModTime, Target: h.Linkname}
	if h.Uid < 0 || h.Gid < 0 || h.Uid > 1<<32-2 || h.Gid > 1<<32-2 {
		return refused("the archive's %.300q has an impossible owner", h.Name)
	}
	if w.owned {
		info.UID, info.GID = w.uid, w.gid
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, paxXattr); ok {
			if info.Attrs == nil {
				info.Attrs = map[string]string{}
			}
			info.Attrs[name] = value
		}
	}
	linked := ""
	if h.Typeflag == tar.TypeLink {
		if linked, err = w.inside(base, h.Linkname); err != nil {
			return err
		}
		first, ok := w.to.made[linked]
		if !ok || !first.Mode.IsRegular() {
			return refused("the archive's %.300q is a hard link to %.300q, which is not a file before it", h.Name, h.Linkname)
		}
		info = first // it is one file
	}
	w.clear(at, info)
	return w.member(at, info, linked, func() (io.ReadCloser, error) { return io.NopCloser(r), nil })
}

// clear forgets the file at a path, if the new one replaces it.
func (w *writer) clear(at string, info Info) {
	was, err := w.to.Lstat(at)
	if err != nil || was.Mode.IsDir() && info.Mode.IsDir() {
		return
	}
	w.to.replaced = w.to.replaced || was.Mode.IsDir()
	if was.Mode.Type() == fs.ModeDir {
		for name := range w.to.made {
			if strings.HasPrefix(name, at+"/") {
				delete(w.to.made, name)
			}
		}
	}
}
