package filesync

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// known is one path of a base: what the last sync left at both ends.
type known struct {
	entry         Entry // without stamps; Size is set
	hash          Hash  // of a file
	local, remote stamp // of the file at either end, when it was that
}

const baseMagic = "cove sync base 1\n"

func encodeKnown(e *enc, k known) {
	k.entry.Ctime = 0
	e.entry(&k.entry)
	if k.entry.Type == File {
		e.bytes(k.hash[:])
		e.stamp(k.local)
		e.stamp(k.remote)
	}
}

func decodeKnown(d *dec) (k known, err error) {
	d.entry(&k.entry)
	if k.entry.Type == File {
		k.hash = d.hash()
		k.local = d.stamp()
		k.remote = d.stamp()
	}
	return k, d.err
}

// openBase reads a base from its file. If there is no file, the base is empty.
func openBase(name string) (*reading[known], func(), error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &reading[known]{}, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReaderSize(f, 64<<10)
	magic := make([]byte, len(baseMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != baseMagic {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s is damaged: it is not the base of a sync", name)
	}
	return &reading[known]{r: r, decode: decodeKnown}, func() { _ = f.Close() }, nil
}

// baseWriter writes a new base, which is there once it is closed.
type baseWriter struct {
	name string
	f    *os.File
	w    *bufio.Writer
	rec  enc
}

func newBase(name string) (*baseWriter, error) {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	b := &baseWriter{name: name, f: f, w: bufio.NewWriterSize(f, 64<<10)}
	_, err = b.w.WriteString(baseMagic)
	return b, err
}

func (b *baseWriter) add(k known) error {
	b.rec.b = b.rec.b[:0]
	encodeKnown(&b.rec, k)
	return writeRecord(b.w, b.rec.b)
}

// keep replaces the base. The old one gets the name old, if that is not empty.
func (b *baseWriter) keep(old string) error {
	if err := errors.Join(b.w.Flush(), b.f.Sync(), b.f.Close()); err != nil {
		return err
	}
	if old != "" {
		err := os.Link(b.name, old)
		if errors.Is(err, fs.ErrNotExist) { // the first sync: before it, nothing was known
			err = os.WriteFile(old, []byte(baseMagic), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(b.name+".new", b.name)
}

// drop gives the new base up.
func (b *baseWriter) drop() {
	_ = b.f.Close()
	_ = os.Remove(b.name + ".new")
}
