package filesync

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
)

// maxRecord bounds one record: a path, a link's target, and some numbers.
const maxRecord = 16 << 10

var errRecord = errors.New("a damaged record")

// enc builds a record.
type enc struct{ b []byte }

func (e *enc) byte(v byte)     { e.b = append(e.b, v) }
func (e *enc) uint(v uint64)   { e.b = binary.AppendUvarint(e.b, v) }
func (e *enc) int(v int64)     { e.b = binary.AppendVarint(e.b, v) }
func (e *enc) bytes(v []byte)  { e.b = append(e.b, v...) }
func (e *enc) string(v string) { e.uint(uint64(len(v))); e.b = append(e.b, v...) }

func (e *enc) stamp(s stamp) {
	e.int(s.Size)
	e.int(s.Mtime)
	e.int(s.Ctime)
}

func (e *enc) entry(v *Entry) {
	e.string(v.Path)
	e.byte(byte(v.Type))
	e.uint(uint64(v.Mode))
	e.stamp(v.stamp())
	e.string(v.Target)
}

// dec takes a record apart. After the first missing part, everything is zero and err says so.
type dec struct {
	b   []byte
	err error
}

func (d *dec) fail() { d.b, d.err = nil, errRecord }

func (d *dec) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *dec) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes returns n bytes, which are the record's own.
func (d *dec) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *dec) string() string { return string(d.bytes(d.uint())) }

func (d *dec) hash() (h Hash) {
	copy(h[:], d.bytes(uint64(len(h))))
	return h
}

func (d *dec) stamp() stamp { return stamp{d.int(), d.int(), d.int()} }

func (d *dec) entry(v *Entry) {
	v.Path = d.string()
	v.Type = Type(d.byte())
	v.Mode = fs.FileMode(d.uint())
	s := d.stamp()
	v.Size, v.Mtime, v.Ctime = s.Size, s.Mtime, s.Ctime
	v.Target = d.string()
}

// end is the error of the whole record, which must have been read to its end.
func (d *dec) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errRecord
	}
	return d.err
}

// A spool is a file of records, in the order of their paths, for data that does not fit into
// memory. One goroutine writes it; then any may read it.
type spool[T any] struct {
	file   *os.File
	mu     sync.Mutex // of the reading's beginning, which ends the writing
	w      *bufio.Writer
	count  int64
	decode func(*dec) (T, error)
	encode func(*enc, T)
	buf    enc
}

// newSpool makes a spool in the folder dir. It has no name there, so it is gone when the
// process ends.
func newSpool[T any](dir string, encode func(*enc, T), decode func(*dec) (T, error)) (*spool[T], error) {
	f, err := os.CreateTemp(dir, "spool-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &spool[T]{file: f, w: bufio.NewWriterSize(f, 64<<10), encode: encode, decode: decode}, nil
}

// add appends a record.
func (s *spool[T]) add(v T) error {
	s.buf.b = s.buf.b[:0]
	s.encode(&s.buf, v)
	s.count++
	return writeRecord(s.w, s.buf.b)
}

func writeRecord(w *bufio.Writer, b []byte) error {
	var n [binary.MaxVarintLen64]byte
	if _, err := w.Write(binary.AppendUvarint(n[:0], uint64(len(b)))); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// close gives the space back.
func (s *spool[T]) close() {
	if s != nil {
		_ = s.file.Close()
	}
}

// read starts a reading from the beginning. A spool that is nil is empty.
func (s *spool[T]) read() (*reading[T], error) {
	if s == nil {
		return &reading[T]{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.w.Flush(); err != nil {
		return nil, err
	}
	info, err := s.file.Stat()
	if err != nil {
		return nil, err
	}
	return &reading[T]{r: bufio.NewReaderSize(io.NewSectionReader(s.file, 0, info.Size()), 64<<10), decode: s.decode}, nil
}

// A reading goes through a spool once.
type reading[T any] struct {
	r      *bufio.Reader
	decode func(*dec) (T, error)
	buf    []byte
	fetch  func() (T, bool) // if not nil, where the records come from instead

	cur T    // the record that peek found
	has bool // cur is one
}

// peek returns the next record without going past it; ok is false at the end.
func (r *reading[T]) peek() (v *T, ok bool, err error) {
	if r.has {
		return &r.cur, true, nil
	}
	if r.fetch != nil {
		r.cur, r.has = r.fetch()
		return &r.cur, r.has, nil
	}
	if r.r == nil {
		return nil, false, nil
	}
	b, err := readRecord(r.r, r.buf)
	if err == io.EOF {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	r.buf = b
	d := &dec{b: b}
	if r.cur, err = r.decode(d); err != nil {
		return nil, false, err
	}
	r.has = true
	return &r.cur, true, d.end()
}

// next returns the next record.
func (r *reading[T]) next() (v T, ok bool, err error) {
	p, ok, err := r.peek()
	if !ok || err != nil {
		return v, false, err
	}
	r.has = false
	return *p, true, nil
}

// readRecord reads one record into buf, or a larger one. io.EOF is the end.
func readRecord(r *bufio.Reader, buf []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if n > maxRecord {
		return nil, errRecord
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n, max(n, 512))
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, errors.Join(errRecord, err)
	}
	return buf, nil
}
