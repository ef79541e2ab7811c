package layers

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Dir is the folder of a layer, which has, for each mount of a disk, a folder with
// what is seen of the layer in it: MOUNT/upper.
type Dir struct {
	Path      string
	UserXattr bool // as in Overlay
}

// listName is, in a sealed layer, the list of what it has.
const listName = "files.list"

// Listing says what the list of a layer is, so that a change of it is seen.
type Listing struct {
	Digest string `json:"digest"` // SHA-256 of the list, in hexadecimal digits
	Files  int64  `json:"files"`  // of all kinds
	Size   int64  `json:"size"`   // of the contents of its files, holes included
	Disk   int64  `json:"disk"`   // bytes that it takes on the disk
}

// A Problem is how a layer is not what its list says.
type Problem struct {
	Path string // in the sprite
	What string // for people: "it is missing", …
}

// record is what the list says of one file.
type record struct {
	path string // below the layer's folder: MOUNT/upper/…
	Stat
	opaque, redirect string
	sum              [sha256.Size]byte // of the content of a regular file
}

// shown is the path of a record in the sprite.
func (r *record) shown() string { return shownPath(r.path) }

func shownPath(p string) string {
	mount, below, _ := strings.Cut(p, "/")
	if mount == "root" {
		mount = ""
	}
	return path.Join("/", mount, strings.TrimPrefix(below, "upper"))
}

// walker goes through what a layer has, in the order of its list.
type walker struct {
	ctx    context.Context
	t      *tree
	prefix string
	visit  func(*record) error
}

func (d Dir) walk(ctx context.Context, visit func(*record) error) error {
	t, err := openTree(d.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // of a sprite that has never run
	}
	if err != nil {
		return err
	}
	w := walker{ctx: ctx, t: t, prefix: Overlay{UserXattr: d.UserXattr}.xattrPrefix(), visit: visit}
	mounts, err := t.names("")
	for _, mount := range mounts {
		at := mount + "/upper"
		if err == nil && !gone(t.at(at, func(int) error { return nil })) {
			err = w.file(at)
		}
	}
	return errors.Join(err, t.close())
}

func (w *walker) file(at string) error {
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	r := record{path: at}
	err := w.t.at(at, func(fd int) (err error) {
		if r.Stat, err = statOf(fd); err != nil {
			return err
		}
		if r.IsDir() {
			r.opaque, r.redirect = mark(fd, w.prefix+"opaque"), mark(fd, w.prefix+"redirect")
		}
		r.Attrs, err = attributes(fd)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.visit(&r); err != nil || !r.IsDir() {
		return err
	}
	names, err := w.t.names(at)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.file(at + "/" + name); err != nil {
			return err
		}
	}
	return nil
}

// inOrder compares paths as a walk meets them.
func inOrder(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// hashFile hashes a file's content, and calls done with how much that was, at times.
func (d Dir) hashFile(ctx context.Context, at string, done func(int64)) (sum [sha256.Size]byte, err error) {
	t, err := openTree(d.Path)
	if err != nil {
		return sum, err
	}
	defer t.close()
	f, err := t.open(at)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		done(int64(n))
		if err == io.EOF {
			return [sha256.Size]byte(h.Sum(nil)), nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return sum, err
		}
	}
}

type inode struct{ dev, ino uint64 }

// List writes the list of a sealed layer, beside what it has, and says what it is.
// It is on disk when List returns. Of files that are those of other layers, which a
// merge has linked, the list is to say what known has; nil: there are none.
func (d Dir) List(ctx context.Context, known Known) (Listing, error) {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return Listing{}, fmt.Errorf("list a layer: %w", err)
	}
	file := filepath.Join(d.Path, listName)
	f, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return Listing{}, fmt.Errorf("list a layer: %w", err)
	}
	h := sha256.New()
	var l Listing
	enc, err := zstd.NewWriter(io.MultiWriter(f, h), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err == nil {
		err = errors.Join(d.list(ctx, enc, known, &l), enc.Close())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return Listing{}, errors.Join(fmt.Errorf("list a layer: %w", err), os.Remove(f.Name()))
	}
	l.Digest = fmt.Sprintf("%x", h.Sum(nil))
	return l, nil
}

func (d Dir) list(ctx context.Context, out io.Writer, known Known, l *Listing) error {
	w := bufio.NewWriter(out)
	counted := map[inode]bool{} // files of several names
	var buf []byte
	err := d.walk(ctx, func(r *record) (err error) {
		id := inode{r.dev, r.ino}
		if was, ok := known[id]; ok {
			r.Size, r.ModTime, r.sum = was.size, was.modTime, was.sum
		} else if r.Kind() == unix.S_IFREG {
			if r.sum, err = d.hashFile(ctx, r.path, func(int64) {}); err != nil {
				return err
			}
		}
		l.Files++
		l.Size += r.Size
		if r.links == 1 || r.IsDir() || !counted[id] {
			l.Disk += r.blocks * 512
		}
		if r.links > 1 && !r.IsDir() {
			counted[id] = true
		}
		buf = r.append(buf[:0])
		_, err = w.Write(buf)
		return err
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(binary.AppendUvarint([]byte{0}, uint64(l.Files))); err != nil {
		return err
	}
	return w.Flush()
}

// Known has, of files that are listed already, what is said of them.
type Known map[inode]knownFile

type knownFile struct {
	size, modTime int64
	sum           [sha256.Size]byte
}

// Add takes over what the list of a layer says, if it is the one that l describes.
func (k Known) Add(ctx context.Context, d Dir, l Listing) error {
	t, err := openTree(d.Path)
	if err != nil {
		return err
	}
	defer t.close()
	return d.records(ctx, l, func(r *record) error {
		if r.Kind() != unix.S_IFREG {
			return nil
		}
		err := t.at(r.path, func(fd int) error {
			now, err := statOf(fd)
			k[inode{now.dev, now.ino}] = knownFile{r.Size, r.ModTime, r.sum}
			return err
		})
		if gone(err) {
			return nil // that is for a verification to find
		}
		return err
	})
}

// errList says that a list is not the one that was written.
var errList = errors.New("the list of its files is damaged or missing")

// records reads a list.
func (d Dir) records(ctx context.Context, l Listing, each func(*record) error) error {
	f, err := os.Open(filepath.Join(d.Path, listName))
	if err != nil {
		return fmt.Errorf("%w: %w", errList, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("%w: %w", errList, err)
	}
	if fmt.Sprintf("%x", h.Sum(nil)) != l.Digest {
		return errList
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	dec, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(1<<20))
	if err != nil {
		return err
	}
	defer dec.Close()
	r := bufio.NewReader(dec)
	for {
		var next record
		last, err := next.read(r)
		if err != nil {
			return fmt.Errorf("%w: %w", errList, err)
		}
		if last {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := each(&next); err != nil {
			return err
		}
	}
}

// append encodes a record.
func (r *record) append(b []byte) []byte {
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	text(r.path)
	for _, n := range []uint64{uint64(r.Mode), uint64(r.UID), uint64(r.GID), uint64(r.Size), r.Rdev} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendVarint(b, r.ModTime)
	text(r.Target)
	text(r.opaque)
	text(r.redirect)
	b = binary.AppendUvarint(b, uint64(len(r.Attrs)))
	for _, name := range slices.Sorted(maps.Keys(r.Attrs)) {
		text(name)
		text(r.Attrs[name])
	}
	if r.Kind() == unix.S_IFREG {
		b = append(b, r.sum[:]...)
	}
	return b
}

// maxText bounds a name or an attribute in a list.
const maxText = 1 << 20

// read decodes the next record; true: there is none, and the list is whole.
func (r *record) read(in *bufio.Reader) (last bool, err error) {
	number := func() (n uint64) {
		if err == nil {
			n, err = binary.ReadUvarint(in)
		}
		return n
	}
	text := func() string {
		n := number()
		if err == nil && n > maxText {
			err = errors.New("a text is too long")
		}
		if err != nil {
			return ""
		}
		b := make([]byte, n)
		_, err = io.ReadFull(in, b)
		return string(b)
	}
	if r.path = text(); r.path == "" {
		return number() > 0 || err == nil, err
	}
	r.Mode, r.UID, r.GID, r.Size, r.Rdev = uint32(number()), uint32(number()), uint32(number()), int64(number()), number()
	if err == nil {
		r.ModTime, err = binary.ReadVarint(in)
	}
	r.Target, r.opaque, r.redirect = text(), text(), text()
	for n := number(); n > 0 && err == nil; n-- {
		if r.Attrs == nil {
			r.Attrs = map[string]string{}
		}
		name := text()
		r.Attrs[name] = text()
	}
	if err == nil && r.Kind() == unix.S_IFREG {
		_, err = io.ReadFull(in, r.sum[:])
	}
	return false, err
}

// Verify compares a sealed layer with its list, which l describes, and tells of each
// problem, up to tell's error. With read, contents are read and compared, and done is
// told how many bytes were; without, only names, sizes, times and the like.
func (d Dir) Verify(ctx context.Context, l Listing, read bool, done func(int64), tell func(Problem) error) error {
	next, stop := d.pull(ctx, l)
	defer stop()
	want, err := next()
	walked := d.walk(ctx, func(r *record) error {
		for err == nil && want != nil && want.path != r.path && inOrder(want.path, r.path) < 0 {
			if err := tell(Problem{want.shown(), "it is missing"}); err != nil {
				return err
			}
			want, err = next()
		}
		if err != nil {
			return err
		}
		if want == nil || want.path != r.path {
			return tell(Problem{r.shown(), "it was not there when the layer was sealed"})
		}
		what := want.differs(r)
		if what == "" && read && r.Kind() == unix.S_IFREG {
			sum, err := d.hashFile(ctx, r.path, done)
			if err != nil {
				if ctx.Err() != nil {
					return err
				}
				what = "it can't be read: " + err.Error()
			} else if sum != want.sum {
				what = "its content is another"
			}
		}
		if want, err = next(); err != nil {
			return err
		}
		if what != "" {
			return tell(Problem{r.shown(), what})
		}
		return nil
	})
	if walked == nil {
		walked = err
	}
	for walked == nil && want != nil {
		if walked = tell(Problem{want.shown(), "it is missing"}); walked == nil {
			want, walked = next()
		}
	}
	if errors.Is(walked, errList) {
		return tell(Problem{"/", walked.Error()})
	}
	return walked
}

// differs says how a file is not what its record says; empty: it is. Of a folder the
// time does not count: all that is in it does.
func (r *record) differs(now *record) string {
	what := differences(&r.Stat, &now.Stat)
	if r.opaque != now.opaque || r.redirect != now.redirect {
		what = append(what, "overlay marks")
	}
	if what == nil {
		return ""
	}
	return "it has another " + strings.Join(what, ", ")
}

// pull reads a list record by record; nil: that was the last.
func (d Dir) pull(ctx context.Context, l Listing) (next func() (*record, error), stop func()) {
	records := make(chan *record, 64)
	ctx, cancel := context.WithCancel(ctx)
	var failed error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(records)
		failed = d.records(ctx, l, func(r *record) error {
			select {
			case records <- r:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	next = func() (*record, error) {
		if r, ok := <-records; ok {
			return r, nil
		}
		return nil, failed
	}
	return next, func() { cancel(); <-ended }
}
