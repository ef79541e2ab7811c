package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// maxWindow bounds the memory that a decompression takes.
const maxWindow = 4 << 20

// memberCost is what a member counts for, besides its bytes: what the least file
// takes on a disk.
const memberCost = 4 << 10

// The units of a tar: of its headers and contents, and of what tar(1) writes at once.
const (
	tarBlock  = 512
	tarRecord = 20 * tarBlock
)

// Options say where an archive goes.
type Options struct {
	// Begin is called with the archive's header. It says where the disk will be. The reader
	// image is the image's archive in it, which may be anybody's; nil: there is none. Begin may
	// leave any of it unread.
	Begin func(h Header, image io.Reader) (Target, error)

	// MaxSize is how much it may be, unpacked, each member counted as 4 KiB at least.
	MaxSize int64

	// MaxFiles is how many members it may have; 0: any number.
	MaxFiles int64

	// Take is called before something is unpacked, with its bytes, and with 4 KiB for each
	// member besides. Read returns its error. nil: nobody counts.
	Take func(bytes int64) error
}

// Target is where the layer of an archive is made. Nothing is there yet.
type Target struct {
	// Uppers are the folders that become the uppers of overlays, by mount; the root's
	// mount is empty. They are made when they are met.
	Uppers    map[string]string
	UserXattr bool // as in layers.Overlay
}

// Read reads an archive, which may be anybody's, and makes its layer. The layer is
// whole only if there is no error. No name in the archive leads out of the target, and
// nothing replaces a file that is there. Read refuses, with an *Error, an archive that
// is damaged, cut short, or too large. It also refuses members other than files,
// folders, links and FIFOs. Its use of memory does not grow with the archive.
func Read(ctx context.Context, in io.Reader, o Options) (_ End, err error) {
	source := &source{ctx: ctx, r: in}
	zr, err := zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow*2))
	if err != nil {
		return End{}, err
	}
	defer zr.Close()
	r := reader{o: o, raw: &bounded{r: zr, left: o.MaxSize, take: o.Take}, sum: newDigest(), buf: make([]byte, 256<<10)}
	r.tar = tar.NewReader(r.raw)
	defer func() { err = errors.Join(err, r.tree.close()) }()
	end, err := r.read()
	switch {
	case err == nil:
		return end, nil
	case source.err != nil: // it did not arrive
		return End{}, source.err
	case r.raw.taking != nil:
		return End{}, r.raw.taking
	case r.raw.left < 0:
		return End{}, &Error{Why: fmt.Sprintf("it is larger than %d bytes unpacked", o.MaxSize), TooLarge: true}
	case errors.As(err, new(*Error)):
		return End{}, err
	case errors.Is(err, tar.ErrFieldTooLong):
		return End{}, refuse("", "a header in it is too long")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, tar.ErrInsecurePath), r.raw.damaged:
		return End{}, refuse("", "it is damaged, or cut short (%v)", err)
	}
	return End{}, err
}

// source is what the archive comes from. Its errors are not the archive's.
type source struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		s.err = err
		return 0, err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// bounded is what is unpacked, up to a limit.
type bounded struct {
	r       io.Reader
	left    int64
	take    func(int64) error // nil: nobody counts
	taking  error             // of take
	damaged bool
}

var errTooLarge = errors.New("too large")

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	b.damaged = b.damaged || err != nil && err != io.EOF
	if b.take != nil && n > 0 {
		if b.taking = b.take(int64(n)); b.taking != nil {
			return 0, b.taking
		}
	}
	return n, err
}

type reader struct {
	o    Options
	raw  *bounded
	tar  *tar.Reader
	sum  digest
	tree extractor
	end  End
	buf  []byte
}

func (r *reader) read() (End, error) {
	h, err := r.tar.Next()
	if err != nil {
		return End{}, err
	}
	var head Header
	text, err := r.document(h, headerName, &head)
	if err != nil {
		return End{}, err
	}
	if head.Format != Format && head.Format != FormatWithImage {
		return End{}, refuse("", "it has the format %d, and this version of cove reads %d and %d", head.Format, Format, FormatWithImage)
	}
	_, _ = r.sum.Write(text) // never fails
	if err := r.begin(head); err != nil {
		return End{}, err
	}
	for {
		h, err := r.tar.Next()
		if err != nil {
			return End{}, err
		}
		if h.Name == endName {
			return r.finish(h)
		}
		r.end.Members++
		if r.raw.left -= memberCost; r.raw.left < 0 {
			return End{}, errTooLarge
		}
		if r.raw.take != nil {
			if err := r.raw.take(memberCost); err != nil {
				return End{}, err
			}
		}
		if r.o.MaxFiles > 0 && r.end.Members > r.o.MaxFiles {
			return End{}, &Error{Why: fmt.Sprintf("it has more than %d members", r.o.MaxFiles), TooLarge: true}
		}
		if err := r.sum.member(h); err != nil {
			return End{}, err
		}
		if err := r.member(h); err != nil {
			return End{}, err
		}
	}
}

// begin calls Begin, with the image if the archive has one.
func (r *reader) begin(head Header) (err error) {
	if head.Format != FormatWithImage {
		r.tree.target, err = r.o.Begin(head, nil)
		return err
	}
	h, err := r.tar.Next()
	if err != nil {
		return err
	}
	if h.Name != imageName || h.Typeflag != tar.TypeReg || h.Size < 0 {
		return refuse(h.Name, "%s was expected in its place", imageName)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refuse(h.Name, "it is sparse in a way that is not known")
		}
	}
	if err := r.sum.member(h); err != nil {
		return err
	}
	image := io.TeeReader(r.tar, r.sum)
	if r.tree.target, err = r.o.Begin(head, image); err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{image}, r.buf)
	return err
}

// document reads a member that is about the archive.
func (r *reader) document(h *tar.Header, name string, doc any) ([]byte, error) {
	if h.Name != name || h.Typeflag != tar.TypeReg || h.Size > maxDocument {
		return nil, refuse(h.Name, "%s was expected in its place", name)
	}
	text, err := io.ReadAll(io.LimitReader(r.tar, maxDocument))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, doc); err != nil {
		return nil, refuse(h.Name, "it can't be read: %v", err)
	}
	return text, nil
}

// finish compares what came with what was sent.
func (r *reader) finish(h *tar.Header) (End, error) {
	var want End
	if _, err := r.document(h, endName, &want); err != nil {
		return End{}, err
	}
	if want.Digest != r.sum.text() || want.Members != r.end.Members || want.Bytes != r.end.Bytes {
		return End{}, refuse("", "its contents do not match the digest and the counts at its end")
	}
	switch _, err := r.tar.Next(); {
	case err == nil:
		return End{}, refuse("", "there is data after its end")
	case err != io.EOF:
		return End{}, err
	}
	if err := r.padding(); err != nil {
		return End{}, err
	}
	return want, r.tree.finish()
}

// padding reads what a tar may have after its end: zeros, up to a whole record.
func (r *reader) padding() error {
	rest, err := io.ReadAll(io.LimitReader(r.raw, tarRecord))
	if err != nil {
		return err
	}
	if len(rest) == tarRecord || len(rest)%tarBlock != 0 || len(bytes.Trim(rest, "\x00")) > 0 {
		return refuse("", "there is data after its end")
	}
	return nil
}

// place returns a member's path below the disk's root.
func place(h *tar.Header) (at string, err error) {
	name := strings.TrimSuffix(h.Name, "/")
	if (name != h.Name) != (h.Typeflag == tar.TypeDir) {
		return "", refuse(h.Name, "a folder's name must end with a slash, and no other name may")
	}
	if err := safepath.Check(name); err != nil {
		return "", refuse(h.Name, "%v", err)
	}
	if name == diskName && h.Typeflag == tar.TypeDir {
		return "", nil
	}
	at, ok := strings.CutPrefix(name, diskName+"/")
	if !ok {
		return "", refuse(h.Name, "it is not in the folder %s", diskName)
	}
	return at, nil
}

func (r *reader) member(h *tar.Header) error {
	at, err := place(h)
	if err != nil {
		return err
	}
	if h.Mode&^0o7777 != 0 || h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > 1<<32-2 || int64(h.Gid) > 1<<32-2 {
		return refuse(h.Name, "it has an impossible mode or owner")
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refuse(h.Name, "it is sparse in a way that is not known")
		}
	}
	base := path.Base(at)
	if h.Typeflag == tar.TypeReg && strings.HasPrefix(base, whiteout) && h.PAXRecords[paxLiteral] == "" {
		if h.Size != 0 {
			return refuse(h.Name, "it is a whiteout, but has content")
		}
		if base == opaque {
			return r.tree.opaque(h, path.Dir(at))
		}
		return r.tree.whiteout(h, path.Join(path.Dir(at), strings.TrimPrefix(base, whiteout)))
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return r.tree.folder(h, at)
	case tar.TypeReg:
		return r.regular(h, at)
	case tar.TypeSymlink:
		return r.tree.symlink(h, at)
	case tar.TypeLink:
		to, err := place(&tar.Header{Name: h.Linkname})
		if err != nil {
			return refuse(h.Name, "it is a hard link to %.300q, which is not a file of the disk", h.Linkname)
		}
		return r.tree.link(h, at, to)
	case tar.TypeFifo:
		return r.tree.fifo(h, at)
	case tar.TypeChar, tar.TypeBlock:
		return refuse(h.Name, "it is a device")
	}
	return refuse(h.Name, "it is of a kind (%q) that is not known", h.Typeflag)
}

// regular makes a file of a member, with its holes.
func (r *reader) regular(h *tar.Header, at string) error {
	f, err := r.tree.create(h, at)
	if err != nil {
		return err
	}
	r.end.Bytes += h.Size
	if text, ok := h.PAXRecords[paxSparse]; ok {
		err = r.sparse(f, h, text)
	} else {
		err = r.copy(f, h.Size)
	}
	if err == nil {
		err = r.tree.describe(int(f.Fd()), h)
	}
	return errors.Join(err, f.Close())
}

// writerAt is the file that a content goes to.
type writerAt interface {
	io.WriteSeeker
	Truncate(size int64) error
}

func (r *reader) copy(w io.Writer, size int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(w, r.sum)}, io.LimitReader(r.tar, size), r.buf)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// sparse writes the parts of a file with holes.
func (r *reader) sparse(f writerAt, h *tar.Header, text string) error {
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 0 || text != strconv.FormatInt(size, 10) {
		return refuse(h.Name, "it has holes, and an impossible size")
	}
	if err := f.Truncate(size); errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EINVAL) {
		return refuse(h.Name, "this disk can't hold a file of %d bytes: %v", size, err)
	} else if err != nil {
		return err
	}
	left, end := h.Size, int64(0)
	for left > 0 {
		var head bytes.Buffer
		if left -= partHeader; left < 0 {
			return refuse(h.Name, "its parts do not match its size")
		}
		if err := r.copy(&head, partHeader); err != nil {
			return err
		}
		offset, n := int64(binary.BigEndian.Uint64(head.Bytes())), int64(binary.BigEndian.Uint64(head.Bytes()[8:]))
		if offset < end || n <= 0 || offset > size || n > size-offset || n > left {
			return refuse(h.Name, "its parts are out of order, or reach beyond its size")
		}
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return err
		}
		if err := r.copy(f, n); err != nil {
			return err
		}
		left -= n
		end = offset + n
	}
	return nil
}

// Fits says why a disk over one base can't lie on another; empty: it can.
func (b Base) Fits(on Base) string {
	for _, m := range b.Mounts {
		if !slices.Contains(on.Mounts, m) {
			return "it needs /" + m + " as a mount of its own, and this server has none"
		}
	}
	if b.Name != on.Name {
		return "its disk lies on the base " + strconv.Quote(b.Name)
	}
	return ""
}
