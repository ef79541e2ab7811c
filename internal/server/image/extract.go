package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/extract"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// note is what the store knows of an extracted layer. It is beside its tree.
type note struct {
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"` // on the disk
	LeftOut int64 `json:"left_out,omitempty"`
	Steps   int64 `json:"steps,omitempty"`
}

// readNote reads the note of a layer; os.ErrNotExist: it is not extracted.
func (l folders) readNote(chain string) (n note, err error) {
	text, err := os.ReadFile(l.path(layerFolder, hexOf(chain), noteName))
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(text, &n)
}

// extract makes sure that the last of some layers is extracted. Its blob must be there, and
// the layers below it must be extracted.
func (s *Store) extract(ctx context.Context, all []Layer, m *meter) (err error) {
	l := &all[len(all)-1]
	gauge := m.gauge(Extracting, l.Digest, l.Bytes)
	leave, err := s.turns.enter(ctx, l.ChainID, gauge)
	if err != nil {
		return err
	}
	defer leave()
	n, err := s.readNote(l.ChainID)
	if errors.Is(err, os.ErrNotExist) {
		n, err = s.unpack(ctx, all)
	}
	if err != nil {
		if _, ok := errors.AsType[*fail.Error](onDisk(err)); ok || ctx.Err() != nil {
			return onDisk(err)
		}
		return fmt.Errorf("extract layer %s: %w", l.Digest, err)
	}
	l.Files, l.DiskBytes, l.LeftOut, l.Steps = n.Files, n.Bytes, n.LeftOut, n.Steps
	return nil
}

// unpack extracts the last of some layers in a folder of its own. The folder gets its name
// when it is whole.
func (s *Store) unpack(ctx context.Context, all []Layer) (n note, err error) {
	l := all[len(all)-1]
	b := &budget{bytes: maxBytes, files: maxFiles, steps: maxSteps, claim: s.Claim}
	for _, below := range all[:len(all)-1] {
		b.bytes -= below.DiskBytes
		b.files -= below.Files
		b.steps -= below.Steps
	}
	b.copied = b.bytes
	left := *b
	dir, err := os.MkdirTemp(s.path(stagingFolder), "layer-")
	if err != nil {
		return n, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, layers.Remove(dir))
		}
	}()
	if err := os.Mkdir(filepath.Join(dir, treeName), 0o700); err != nil {
		return n, err
	}
	if n.LeftOut, err = s.unpackTo(ctx, filepath.Join(dir, treeName), s.trees(all[:len(all)-1]), l, b); err != nil {
		return n, err
	}
	n.Files, n.Bytes, n.Steps = left.files-b.files, left.bytes-b.bytes, left.steps-b.steps
	text, err := json.Marshal(n)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, noteName), text, 0o600)
	}
	if err != nil {
		return n, err
	}
	fault.Reach(fault.ImageStaged)
	to := s.path(layerFolder, hexOf(l.ChainID))
	if err := layers.Remove(to); err != nil { // one without a note is not whole
		return n, err
	}
	if err := os.Rename(dir, to); err != nil {
		return n, err
	}
	if err := atomicfile.SyncFolder(filepath.Dir(to)); err != nil {
		return n, err
	}
	fault.Reach(fault.ImageLayered)
	return n, nil
}

// unpackTo fills a folder with a layer, and compares its tar with its diff ID.
func (s *Store) unpackTo(ctx context.Context, dir string, lower []string, l Layer, b *budget) (leftOut int64, err error) {
	f, err := os.Open(s.path(blobFolder, hexOf(l.Digest)))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	t, err := openTree(ctx, dir, lower, s.o.UserNS, b)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	from := &arriving{ctx: ctx, r: f, tell: func(n int64) { s.turns.tell(l.ChainID, n) }}
	x := &extraction{tree: t}
	err = x.stream(from, l)
	if from.err != nil { // it is not the layer's fault
		return 0, from.err
	}
	if err != nil && ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err != nil {
		return 0, err
	}
	return x.leftOut, t.finish()
}

// maxWindow bounds the memory that a decompression takes: it is what zstd -20 uses.
const maxWindow = 32 << 20

// plain is what a blob is without its compression, which its first bytes tell. The caller
// closes it.
func plain(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, copyBlock)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case isZstd(head):
		d, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte("BZh")), bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return nil, bad("it is compressed by bzip2 or xz; only gzip, zstd and no compression are supported")
	}
	return io.NopCloser(br), nil
}

// isZstd reports whether a blob that begins so is compressed by zstd. It may begin with a frame
// that is skipped.
func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) || len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.HasPrefix(head[1:], []byte{0x2a, 0x4d, 0x18})
}

// extraction makes the files of a tar.
type extraction struct {
	tree    *tree
	most    int64 // bytes that its files may have yet, holes included
	leftOut int64
}

var errLarge = fmt.Errorf("it has more than %d bytes", int64(maxBytes))

// stream takes a blob apart.
func (x *extraction) stream(from io.Reader, l Layer) error {
	x.most = maxBytes
	r, err := plain(from)
	if err != nil {
		return damaged(l, err)
	}
	defer r.Close()
	sum := sha256.New()
	in := &limited{r: io.TeeReader(r, sum), left: maxBytes, step: x.tree.budget.step}
	if err := x.members(tar.NewReader(in)); err != nil {
		return damaged(l, err)
	}
	if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{in}, x.tree.buf); err != nil { // what follows a tar's end is part of its digest
		return damaged(l, err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != l.DiffID {
		return bad("its layer %s has the digest %s when extracted, and should have %s", l.Digest, got, l.DiffID)
	}
	return nil
}

// limited is a reader of a tar. Beyond its limit it returns errLarge. The image's steps
// bound what it reads, however much the blob is compressed.
type limited struct {
	r    io.Reader
	left int64
	step func() error // for each copyBlock bytes; nil: nobody counts
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	blocks := (l.left-1)/copyBlock - (l.left-int64(n)-1)/copyBlock // that are begun by now, but for the first
	if l.left -= int64(n); l.left < 0 {
		return 0, errLarge
	}
	for ; blocks > 0 && l.step != nil; blocks-- {
		if err := l.step(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// damaged refuses a layer that can't be read. Errors of the disk, and those that say what
// is wrong, stay what they are.
func damaged(l Layer, err error) error {
	if _, ok := errors.AsType[*fail.Error](err); ok {
		return err
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		switch errno {
		case unix.ENAMETOOLONG, unix.EMLINK, unix.EFBIG:
			return bad("this disk can't hold a file of its layer %s: %v", l.Digest, err)
		}
		return err
	}
	return bad("its layer %s is damaged: %v", l.Digest, err)
}

func (x *extraction) members(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := x.tree.ctx.Err(); err != nil { // a blob that was read may have many members yet
			return err
		}
		b := x.tree.budget
		files := b.files
		if err := x.member(h, r); err != nil {
			return err
		}
		if b.files == files {
			if err := b.step(); err != nil {
				return err
			}
		}
	}
}

// Names that stand for something else: https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts.
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // what aufs keeps for itself
)

func (x *extraction) member(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	at, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	dir, base := parent(at), lastOf(at)
	switch {
	case base == opaqueName:
		return x.tree.opaque(dir)
	case strings.HasPrefix(base, aufsPrefix):
		return nil
	case strings.HasPrefix(base, whiteoutPrefix):
		name := strings.TrimPrefix(base, whiteoutPrefix)
		if name == "" || name == "." || name == ".." {
			return refused(h.Name, "it is a whiteout that names nothing")
		}
		return x.tree.whiteout(joined(dir, name))
	}
	if at == "" && h.Typeflag != tar.TypeDir {
		return refused(h.Name, "it is the root, but not a folder")
	}
	m, err := metaFrom(h)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.tree.folder(at, m)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if x.most -= h.Size; x.most < 0 {
			return errLarge
		}
		return x.tree.file(at, m, r, h.Size)
	case tar.TypeSymlink:
		return x.tree.symlink(at, h.Linkname, m)
	case tar.TypeLink:
		to, err := cleanName(h.Linkname)
		if err != nil || to == "" {
			return refused(h.Name, "it is a hard link to %.300q", h.Linkname)
		}
		return x.tree.link(at, to)
	case tar.TypeFifo:
		return x.tree.fifo(at, m)
	case tar.TypeChar, tar.TypeBlock:
		x.leftOut++
		return x.tree.remove(at)
	}
	return refused(h.Name, "it is of a kind (%q) that is not known", h.Typeflag)
}

func lastOf(at string) string { return at[strings.LastIndexByte(at, '/')+1:] }

func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// cleanName is a member's name as a path below the root, which is "".
func cleanName(name string) (string, error) {
	if len(name) > 2*maxPath {
		return "", refused(name, "its path has more than %d bytes", maxPath)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return "", refused(name, `its path has ".."`)
		case len(part) > 255:
			return "", refused(name, "a part of its path has more than 255 bytes")
		case strings.ContainsRune(part, 0):
			return "", refused(name, "its path has a zero byte")
		}
		parts = append(parts, part)
	}
	at := strings.Join(parts, "/")
	if len(at) >= maxPath {
		return "", refused(name, "its path has more than %d bytes", maxPath)
	}
	if len(parts) > maxDepth {
		return "", refused(name, "it is in more than %d folders", maxDepth)
	}
	return at, nil
}

// paxXattr begins the record of an extended attribute.
const paxXattr = "SCHILY.xattr."

// metaFrom is what a header says of a file. Attributes that are not a file's own are left out.
func metaFrom(h *tar.Header) (extract.Meta, error) {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > 1<<32-2 || int64(h.Gid) > 1<<32-2 {
		return extract.Meta{}, refused(h.Name, "it has an impossible owner")
	}
	m := extract.Meta{UID: h.Uid, GID: h.Gid, Mode: uint32(h.Mode) & 0o7777, Time: h.ModTime}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, paxXattr); ok && ownAttr(name) {
			if m.Attrs == nil {
				m.Attrs = map[string]string{}
			}
			m.Attrs[name] = value
		}
	}
	return m, nil
}

// ownAttr reports whether an extended attribute is a file's own, and not the machine's or
// an overlay's.
func ownAttr(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && len(name) > len("user.") && !strings.ContainsRune(name, 0)
}
