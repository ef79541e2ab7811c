package gitwork

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// packLimits bound what a pack unfolds to.
type packLimits struct {
	objects  uint32
	object   uint64 // bytes of one object
	inflated uint64 // bytes of all that is compressed
	made     uint64 // bytes of all that deltas make
}

// The pack's object types (gitformat-pack).
const (
	packOfsDelta = 6
	packRefDelta = 7
)

// errBomb says that a pack would unfold to more than allowed.
var errBomb = errors.New("it unfolds to more than allowed")

// scanPack reads a pack, which must be all that br has, before git allocates space for
// it. It checks that the sizes that its objects state are within limits, and returns the
// number of objects. The pack's own integrity is left to git.
func scanPack(br *bufio.Reader, hashSize int, limits packLimits) (uint32, error) {
	var head [12]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return 0, cut(err)
	}
	version := binary.BigEndian.Uint32(head[4:])
	count := binary.BigEndian.Uint32(head[8:])
	if string(head[:4]) != "PACK" || version != 2 && version != 3 {
		return 0, errors.New("what follows its header is not a pack")
	}
	if count > limits.objects {
		return 0, fmt.Errorf("%w: %d objects", errBomb, count)
	}
	s := packScanner{br: br, hashSize: hashSize, limits: limits}
	for range count {
		if err := s.object(); err != nil {
			return 0, err
		}
	}
	rest, err := io.Copy(io.Discard, io.LimitReader(br, int64(hashSize)+1))
	if err != nil {
		return 0, cut(err)
	}
	if rest < int64(hashSize) {
		return 0, errors.New("its pack is cut off")
	}
	if rest > int64(hashSize) {
		return 0, errors.New("something follows its pack")
	}
	return count, nil
}

type packScanner struct {
	br       *bufio.Reader
	hashSize int
	limits   packLimits
	inflated uint64 // so far
	made     uint64 // so far
	inflate  io.ReadCloser
}

// object reads one entry of the pack.
func (s *packScanner) object() error {
	kind, size, err := s.entryHeader()
	if err != nil {
		return err
	}
	switch kind {
	case 1, 2, 3, 4:
	case packOfsDelta:
		if _, err := s.varint(s.br); err != nil {
			return err
		}
	case packRefDelta:
		if _, err := io.CopyN(io.Discard, s.br, int64(s.hashSize)); err != nil {
			return cut(err)
		}
	default:
		return fmt.Errorf("its pack has an object of unknown type %d", kind)
	}
	if err := s.count(size, &s.inflated, s.limits.inflated); err != nil {
		return err
	}
	return s.content(kind, size)
}

// entryHeader reads type and size: three bits of type, four of size, then seven
// of size in each byte that follows.
func (s *packScanner) entryHeader() (kind byte, size uint64, err error) {
	c, err := s.br.ReadByte()
	if err != nil {
		return 0, 0, cut(err)
	}
	kind, size = c>>4&7, uint64(c&15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = s.br.ReadByte(); err != nil {
			return 0, 0, cut(err)
		}
		if shift > 57 {
			return 0, 0, fmt.Errorf("%w: an object", errBomb)
		}
		size |= uint64(c&0x7f) << shift
	}
	return kind, size, nil
}

// varint reads a little-endian size from a delta. It also skips a number of another
// encoding with the same length.
func (s *packScanner) varint(r io.ByteReader) (uint64, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		c, err := r.ReadByte()
		if err != nil {
			return 0, cut(err)
		}
		if shift > 56 {
			return 0, fmt.Errorf("%w: a number in a delta", errBomb)
		}
		if n |= uint64(c&0x7f) << shift; c&0x80 == 0 {
			return n, nil
		}
	}
}

// count adds an object's size to a total, and checks both against their limits.
func (s *packScanner) count(size uint64, total *uint64, limit uint64) error {
	if size > s.limits.object {
		return fmt.Errorf("%w: an object of %d bytes", errBomb, size)
	}
	if *total += size; *total > limit {
		return fmt.Errorf("%w: more than %d bytes", errBomb, limit)
	}
	return nil
}

// content inflates an object of the given size, and for a delta counts the size
// of what it makes.
func (s *packScanner) content(kind byte, size uint64) error {
	var err error
	if s.inflate == nil {
		s.inflate, err = zlib.NewReader(s.br)
	} else {
		err = s.inflate.(zlib.Resetter).Reset(s.br, nil)
	}
	if err != nil {
		return cut(err)
	}
	body := &io.LimitedReader{R: s.inflate, N: int64(size)}
	if kind == packOfsDelta || kind == packRefDelta {
		br := bufio.NewReaderSize(body, 64)
		if _, err := s.varint(br); err != nil { // of the object it starts from
			return err
		}
		made, err := s.varint(br)
		if err != nil {
			return err
		}
		if err := s.count(made, &s.made, s.limits.made); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, br); err != nil {
			return cut(err)
		}
	} else if _, err := io.Copy(io.Discard, body); err != nil {
		return cut(err)
	}
	if body.N > 0 {
		return errors.New("an object in its pack is shorter than it says")
	}
	// One read more: to the end of the compressed data and its checksum.
	var more [1]byte
	if n, err := s.inflate.Read(more[:]); n > 0 {
		return errors.New("an object in its pack is longer than it says")
	} else if err != nil && err != io.EOF {
		return cut(err)
	}
	return nil
}

// cut is the error for a pack that could not be read on.
func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("its pack is cut off")
	}
	return fmt.Errorf("its pack is damaged: %w", err)
}
