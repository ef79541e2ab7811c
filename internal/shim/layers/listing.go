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
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// Dir is the folder of a layer. For each mount of a disk it has a folder
// (MOUNT/upper) with the layer's files there.
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

// record is what the list says of one file. Records come in the order of a walk: a
// folder, then what is in it, by name.
type record struct {
	depth int    // in how many folders it is; the topmost one of a mount does not count
	name  string // of the topmost folder: the mount's
	Stat
	opaque, redirect string
	digest           // of a regular file
}

// before reports whether r comes before b. Both must follow the same record, which
// the walk and the list have in common.
func (r *record) before(b *record) bool {
	return r.depth > b.depth || r.depth == b.depth && r.name < b.name
}

type inode struct{ dev, ino uint64 }

// List writes the list of a sealed layer, beside what it has, and says what it is. It
// is on disk when List returns. If a merge has linked files of other layers, the list
// takes what known says of them; a nil known knows none. List calls turn after each
// file, and while it reads one. turn may wait, and its error ends List; nil: List
// never waits.
func (d Dir) List(ctx context.Context, known Known, turn func() error) (Listing, error) {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return Listing{}, fmt.Errorf("list a layer: %w", err)
	}
	file := filepath.Join(d.Path, listName)
	f, err := atomicfile.Create(file)
	if err != nil {
		return Listing{}, fmt.Errorf("list a layer: %w", err)
	}
	defer f.Discard()
	h := sha256.New()
	var l Listing
	enc, err := zstd.NewWriter(io.MultiWriter(f, h), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err == nil {
		err = errors.Join(d.list(ctx, enc, &lister{known: known, turn: turn, counted: map[inode]bool{}, hashed: hashed{}, l: &l}), enc.Close())
	}
	if err == nil {
		err = f.Commit(0o600)
	}
	if err != nil {
		return Listing{}, fmt.Errorf("list a layer: %w", err)
	}
	l.Digest = fmt.Sprintf("%x", h.Sum(nil))
	return l, nil
}

type lister struct {
	known   Known
	turn    func() error
	counted map[inode]bool // files of several names
	hashed  hashed
	l       *Listing
	buf     []byte
}

// listForm begins a list, as the name of its first record would. Before there were
// forms, a list began with the path of a topmost folder, which is longer.
const listForm = "\x02"

func (d Dir) list(ctx context.Context, out io.Writer, ls *lister) error {
	w := bufio.NewWriter(out)
	if _, err := w.Write(appendText(nil, listForm)); err != nil {
		return err
	}
	if ls.turn == nil {
		ls.turn = func() error { return nil }
	}
	err := d.walk(ctx, func(m *met) error {
		if err := ls.add(ctx, m); err != nil {
			return err
		}
		_, err := w.Write(ls.buf)
		return errors.Join(err, ls.turn())
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(binary.AppendUvarint([]byte{0}, uint64(ls.l.Files))); err != nil {
		return err
	}
	return w.Flush()
}

// add counts a file, and encodes its record in buf.
func (ls *lister) add(ctx context.Context, m *met) (err error) {
	r, l := &m.record, ls.l
	id := inode{r.dev, r.ino}
	if was, ok := ls.known[id]; ok {
		r.Size, r.ModTime, r.digest = was.size, was.modTime, was.digest
	} else if r.Kind() == unix.S_IFREG {
		r.form = withoutZeros
		if r.sum, err = ls.hashed.hash(ctx, m, r.form, func(int64) error { return ls.turn() }); err != nil {
			return err
		}
	}
	l.Files++
	if l.Size += r.Size; l.Size < 0 { // holes have no bounds
		l.Size = math.MaxInt64
	}
	if r.links == 1 || r.IsDir() || !ls.counted[id] {
		l.Disk += r.blocks * 512
	}
	if r.links > 1 && !r.IsDir() {
		ls.counted[id] = true
	}
	ls.buf = r.append(ls.buf[:0])
	return nil
}

// Known has what lists say of files that are listed already.
type Known map[inode]knownFile

type knownFile struct {
	size, modTime int64
	digest
}

// Add takes over the records of a layer's list, if it is the list that l describes.
func (k Known) Add(ctx context.Context, d Dir, l Listing) error {
	return d.compare(ctx, l, func(p *pair) error { // a verification finds differences
		if p.want != nil && p.now != nil && p.want.Kind() == unix.S_IFREG {
			k[inode{p.now.dev, p.now.ino}] = knownFile{p.want.Size, p.want.ModTime, p.want.digest}
		}
		return nil
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
	read := (*record).read
	if head, err := r.Peek(2); err == nil && string(head) == string(appendText(nil, listForm)) {
		_, _ = r.Discard(len(head))
	} else {
		read = (*record).readFirst
	}
	for depth := 0; ; {
		var next record
		last, err := read(&next, r)
		if err == nil && next.depth > depth {
			err = errors.New("it has a file without its folder")
		}
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
		depth = next.depth + 1
	}
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// append encodes a record.
func (r *record) append(b []byte) []byte {
	b = appendText(b, r.name)
	for _, n := range []uint64{uint64(r.depth), uint64(r.Mode), uint64(r.UID), uint64(r.GID), uint64(r.Size), r.Rdev} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendVarint(b, r.ModTime)
	b = appendText(b, r.Target)
	b = appendText(b, r.opaque)
	b = appendText(b, r.redirect)
	b = binary.AppendUvarint(b, uint64(len(r.Attrs)))
	for _, name := range slices.Sorted(maps.Keys(r.Attrs)) {
		b = appendText(b, name)
		b = appendText(b, r.Attrs[name])
	}
	if r.Kind() == unix.S_IFREG {
		b = append(b, byte(r.form))
		b = append(b, r.sum[:]...)
	}
	return b
}

// maxText bounds a name or an attribute in a list.
const maxText = 1 << 20

// decoder reads the fields of records; after an error they are all empty.
type decoder struct {
	in  *bufio.Reader
	err error
}

func (d *decoder) number() (n uint64) {
	if d.err == nil {
		n, d.err = binary.ReadUvarint(d.in)
	}
	return n
}

func (d *decoder) text() string {
	n := d.number()
	if d.err == nil && n > maxText {
		d.err = errors.New("a text is too long")
	}
	if d.err != nil {
		return ""
	}
	b := make([]byte, n)
	_, d.err = io.ReadFull(d.in, b)
	return string(b)
}

// end reads what follows the last record.
func (d *decoder) end() (last bool, err error) {
	return d.number() > 0 || d.err == nil, d.err
}

// read decodes the next record. last says that there is none, and that the list is
// whole.
func (r *record) read(in *bufio.Reader) (last bool, err error) {
	d := decoder{in: in}
	if r.name = d.text(); r.name == "" {
		return d.end()
	}
	depth := d.number()
	if depth > math.MaxInt32 {
		return false, errors.New("it is too deep")
	}
	r.depth = int(depth)
	r.fields(&d)
	if d.err == nil && r.Kind() == unix.S_IFREG {
		var form byte
		if form, d.err = in.ReadByte(); d.err == nil {
			_, d.err = io.ReadFull(in, r.sum[:])
		}
		if r.form = digestForm(form); d.err == nil && r.form != whole && r.form != withoutZeros {
			d.err = errors.New("it has a digest of an unknown kind")
		}
	}
	return false, d.err
}

// readFirst is read of a list as they were first: by paths, with digests of all that
// can be read.
func (r *record) readFirst(in *bufio.Reader) (last bool, err error) {
	d := decoder{in: in}
	path := d.text()
	if path == "" {
		return d.end()
	}
	mount, below, _ := strings.Cut(path, "/upper")
	r.depth, r.name = strings.Count(below, "/"), mount
	if r.depth > 0 {
		r.name = below[strings.LastIndexByte(below, '/')+1:]
	}
	r.fields(&d)
	if d.err == nil && r.Kind() == unix.S_IFREG {
		r.form = whole
		_, d.err = io.ReadFull(in, r.sum[:])
	}
	return false, d.err
}

func (r *record) fields(d *decoder) {
	r.Mode, r.UID, r.GID, r.Size, r.Rdev = uint32(d.number()), uint32(d.number()), uint32(d.number()), int64(d.number()), d.number()
	if d.err == nil {
		r.ModTime, d.err = binary.ReadVarint(d.in)
	}
	r.Target, r.opaque, r.redirect = d.text(), d.text(), d.text()
	for n := d.number(); n > 0 && d.err == nil; n-- {
		if r.Attrs == nil {
			r.Attrs = map[string]string{}
		}
		name := d.text()
		r.Attrs[name] = d.text()
	}
}

// Verify compares a sealed layer with its list, which l describes, and tells of each
// problem, up to tell's error. With read, contents are read and compared, and done is
// told how many bytes were; without, only names, sizes, times and the like.
func (d Dir) Verify(ctx context.Context, l Listing, read bool, done func(int64), tell func(Problem) error) error {
	known := hashed{}
	err := d.compare(ctx, l, func(p *pair) error {
		var what string
		switch {
		case p.now == nil:
			what = "it is missing"
		case p.want == nil:
			what = "it was not there when the layer was sealed"
		default:
			what = p.want.differs(&p.now.record)
		}
		if what == "" && read && p.want.Kind() == unix.S_IFREG {
			sum, err := known.hash(ctx, p.now, p.want.form, func(n int64) error { done(n); return nil })
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				what = "it can't be read: " + err.Error()
			case sum != p.want.sum:
				what = "its content is different"
			}
		}
		if what == "" {
			return nil
		}
		return tell(Problem{p.path(), what})
	})
	if errors.Is(err, errList) {
		return tell(Problem{"/", err.Error()})
	}
	return err
}

// pair is what a list and its layer have of one file.
type pair struct {
	want *record // nil: it is not in the list
	now  *met    // nil: it is not there

	wanted, walked trail
}

// path is that of the file in the sprite.
func (p *pair) path() string {
	if p.now == nil {
		return p.wanted.shown()
	}
	return p.walked.shown()
}

// compare goes through a layer and its list side by side.
func (d Dir) compare(ctx context.Context, l Listing, each func(*pair) error) error {
	next, stop := d.pull(ctx, l)
	defer stop()
	var p pair
	want, err := next()
	tell := func(with *record, now *met) error {
		if p.want, p.now = with, now; with != nil {
			p.wanted.to(with)
		}
		if err := each(&p); err != nil || with == nil {
			return err
		}
		want, err = next()
		return err
	}
	walked := d.walk(ctx, func(now *met) error {
		p.walked.to(&now.record)
		for err == nil && want != nil && want.before(&now.record) {
			if err := tell(want, nil); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if want == nil || now.before(want) {
			return tell(nil, now)
		}
		return tell(want, now)
	})
	if walked == nil {
		walked = err
	}
	for walked == nil && want != nil {
		walked = tell(want, nil)
	}
	return walked
}

// differs says how a file differs from its record. Empty: it does not. The time of a
// folder does not count, but all that is in the folder does.
func (r *record) differs(now *record) string {
	what := differences(&r.Stat, &now.Stat)
	if r.opaque != now.opaque || r.redirect != now.redirect {
		what = append(what, "overlay marks")
	}
	if what == nil {
		return ""
	}
	return "it differs in " + strings.Join(what, ", ")
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
