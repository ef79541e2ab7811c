package layers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// digest is that of a file's content.
type digest struct {
	form digestForm
	sum  [sha256.Size]byte
}

// digestForm says which bytes a digest is of.
type digestForm byte

const (
	// whole is of all that can be read, holes included. It takes as long as the file
	// is large. It is in lists of other versions of cove, and is not made any more.
	whole digestForm = 1

	// withoutZeros is of the size, and then of each block of 4 KiB that is not all
	// zeros. The blocks are in order, and each follows its offset. Size and offset are
	// eight bytes, big endian. A hole and written zeros have the same digest.
	withoutZeros digestForm = 2
)

const digestBlock = 4 << 10

var zeros [digestBlock]byte

// hash is the digest of a file's content. done is called with how much was read, at
// times, and may end it.
func (m *met) hash(ctx context.Context, form digestForm, done func(int64) error) (sum [sha256.Size]byte, err error) {
	fd, err := openIn(m.dir, m.file, unix.O_RDONLY|unix.O_NONBLOCK) // were it a FIFO by now, this would not wait
	if err != nil {
		return sum, &fs.PathError{Op: "open", Path: inBrief(m.file), Err: err}
	}
	f, err := regularFile(fd, m.file)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	sink := func(at int64, b []byte) error {
		if form == whole {
			h.Write(b)
		} else {
			writeBlocks(h, at, b)
		}
		if err := done(int64(len(b))); err != nil {
			return err
		}
		return context.Cause(ctx)
	}
	size := m.Size
	if form == whole {
		err = readRange(f, 0, size, sink)
	} else {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(size)))
		err = readParts(f, size, sink)
	}
	return [sha256.Size]byte(h.Sum(nil)), err
}

// hashed has the digests of files that have several names, so that each is read once.
type hashed map[inode]digest

// worthNoting is the least size of a file whose digest is noted: to read less takes no
// longer than to look at a name.
const worthNoting = 64 << 10

// hash is the noted digest of a file, or met.hash if there is none.
func (k hashed) hash(ctx context.Context, m *met, form digestForm, done func(int64) error) ([sha256.Size]byte, error) {
	id := inode{m.dev, m.ino}
	if was, ok := k[id]; ok && was.form == form {
		return was.sum, nil
	}
	sum, err := m.hash(ctx, form, done)
	if err == nil && m.links > 1 && m.Size >= worthNoting {
		k[id] = digest{form, sum}
	}
	return sum, err
}

// writeBlocks hashes the bytes at an offset, which is the offset of a block.
func writeBlocks(h io.Writer, at int64, b []byte) {
	for len(b) > 0 {
		block := b[:min(digestBlock, len(b))]
		if !bytes.Equal(block, zeros[:len(block)]) {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(at))) // never fails
			_, _ = h.Write(block)
		}
		at += int64(len(block))
		b = b[len(block):]
	}
}

// readParts reads a file in whole blocks, without its holes.
func readParts(f *os.File, size int64, sink func(int64, []byte) error) error {
	for end := int64(0); end < size; {
		begin, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && begin >= size {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		begin -= begin % digestBlock
		if end = size; hole <= size-digestBlock {
			end = (hole + digestBlock - 1) / digestBlock * digestBlock
		}
		if err := readRange(f, begin, end, sink); err != nil {
			return err
		}
	}
	return nil
}

// readRange reads a part of a file, a whole number of blocks at a time.
func readRange(f *os.File, begin, end int64, sink func(int64, []byte) error) error {
	buf := make([]byte, min(256<<10, end-begin))
	for begin < end {
		part := buf[:min(int64(len(buf)), end-begin)]
		n, err := f.ReadAt(part, begin)
		if err == io.EOF && n < len(part) {
			return io.ErrUnexpectedEOF // it was cut
		}
		if n < len(part) {
			return err
		}
		if err := sink(begin, part); err != nil {
			return err
		}
		begin += int64(n)
	}
	return nil
}
