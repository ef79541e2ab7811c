package filesync

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
)

// version is the protocol's. Two ends of different versions do not speak to each
// other: both are cove's own.
const version = 1

// A frame is one message between the ends. It has a byte for its kind, a byte of flags, the
// length of the data (four bytes, big-endian), a CRC-32C, and the data. The CRC is that of the
// first six bytes and the data.
type frame struct {
	kind byte
	data []byte
}

// The kinds of frames. Requests are the caller's; an end answers one after the
// other.
const (
	kindHello   = 'h' // request and answer, JSON
	kindScan    = 's' // request, JSON Rules. Answer: a list of entries, then kindDone with []Skipped
	kindAsk     = 'a' // request, then a list of questions. Answer: a list of answers
	kindPlan    = 'p' // request, JSON planHead, then a list of operations. Answer: a list of what is there already
	kindFetch   = 'f' // request, then a list of wants. Answer: content
	kindContent = 'c' // request, then content. Answer: kindDone
	kindCommit  = 'C' // request. Answer: a list of what was written, then kindDone with the backup's id
	kindUndo    = 'u' // request, JSON undoHead. Answer as to kindCommit
	kindBackups = 'b' // request. Answer: kindDone with []Backup
	kindDone    = 'd' // the end of an answer, JSON

	kindList = 'l' // some records of a list
	kindEnd  = 'e' // the list's end: the number of records

	kindBegin = 'B' // content: a file begins: its number, and from which byte on
	kindData  = 'D' // content: some bytes of it
	kindFile  = 'F' // content: it ends: the hash of all of it
	kindPack  = 'P' // content: some small files, whole
	kindNone  = 'N' // content: a file that can't be had after all, and why
	kindLast  = 'L' // content: the end: how many files there were

	kindError = '!' // JSON Error, instead of an answer
	kindAlive = '.' // nothing: the other side lives, though it has nothing to say
)

const (
	maxFrame  = 4 << 20
	dataFrame = 256 << 10 // of content
	listFrame = 96 << 10  // of a list: the other side works on one while the next is made
	flagZstd  = 1
	headerLen = 10
	sumAt     = 6
)

// conn carries frames. send takes the frame's data over. Neither may be called by
// two goroutines at once.
type conn interface {
	send(f frame) error
	flush() error
	recv() (frame, error)
}

// pool has buffers of dataFrame bytes.
var pool = sync.Pool{New: func() any { b := make([]byte, dataFrame); return &b }}

func newBuffer() []byte { return *pool.Get().(*[]byte) }

// release gives a frame's buffer back if it is one of the pool's.
func (f frame) release() {
	if cap(f.data) == dataFrame {
		b := f.data[:dataFrame]
		pool.Put(&b)
	}
}

// stream is a conn over two streams of bytes.
type stream struct {
	r      *bufio.Reader
	w      *bufio.Writer
	zw     *zstd.Encoder
	zr     *zstd.Decoder
	packed []byte
	raw    []byte
	pays   gauge

	sent, received atomic.Int64 // bytes
	waiting        atomic.Int64 // since when recv waits for a frame, in Unix nanoseconds; 0: it does not

	mu sync.Mutex // of sending
}

func newStream(r io.Reader, w io.Writer) (*stream, error) {
	s := &stream{r: bufio.NewReaderSize(r, 64<<10)}
	s.w = bufio.NewWriterSize(timedWriter{s, w}, dataFrame+headerLen)
	var err error
	s.zw, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(dataFrame), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, err
	}
	s.zr, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecodeAllCapLimit(true))
	return s, err
}

// timedWriter counts what is written, and how long that takes.
type timedWriter struct {
	s *stream
	w io.Writer
}

func (t timedWriter) Write(p []byte) (int, error) {
	begin := time.Now()
	n, err := t.w.Write(p)
	t.s.pays.wrote(n, time.Since(begin))
	t.s.sent.Add(int64(n))
	return n, err
}

// A gauge says whether it pays to compress content. The other side must read slowly, and the
// content must be of a kind that becomes smaller.
type gauge struct {
	bytes   int64
	took    time.Duration
	frames  int
	smaller bool // the last that was tried became so
}

const (
	slowLink   = 40 << 20 // bytes a second, below which a compressor is the faster one
	gaugeBytes = 8 << 20  // after which the past counts half
	tryEvery   = 32       // frames
)

func (g *gauge) wrote(n int, took time.Duration) {
	g.bytes += int64(n)
	g.took += took
	if g.bytes > gaugeBytes {
		g.bytes, g.took = g.bytes/2, g.took/2
	}
}

func (g *gauge) try() bool {
	g.frames++
	if g.bytes > 1<<20 && float64(g.bytes)/slowLink < g.took.Seconds() || g.bytes <= 1<<20 {
		return g.smaller || g.frames%tryEvery == 1
	}
	return false
}

// compress returns the smaller form of a frame's data, if it pays.
func (s *stream) compress(f frame) ([]byte, bool) {
	content := f.kind == kindData || f.kind == kindPack
	if len(f.data) < 128 || content && !s.pays.try() {
		return nil, false
	}
	s.packed = s.zw.EncodeAll(f.data, s.packed[:0])
	smaller := len(s.packed) < len(f.data)*9/10
	if content {
		s.pays.smaller = smaller
	}
	return s.packed, smaller
}

func (s *stream) send(f frame) error {
	data, flags := f.data, byte(0)
	if packed, ok := s.compress(f); ok {
		data, flags = packed, flagZstd
	}
	if len(f.data) > maxFrame {
		return fmt.Errorf("a frame of %d bytes", len(f.data))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var head [headerLen]byte
	head[0], head[1] = f.kind, flags
	binary.BigEndian.PutUint32(head[2:], uint32(len(data)))
	binary.BigEndian.PutUint32(head[sumAt:], checksum(head[:sumAt], data))
	_, err := s.w.Write(head[:])
	if err == nil {
		_, err = s.w.Write(data)
	}
	f.release()
	return err
}

func (s *stream) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Flush()
}

// By these times the end in a sprite learns that its caller is gone, although its input is
// still open. A server keeps a session for some time after its client is gone, and the end's
// lock would keep the next sync waiting.
const (
	aliveEvery  = time.Second
	aliveLimit  = 30 * time.Second
	wantedLimit = 3 * time.Second // where another sync waits for the lock
)

// keepAlive tells the other side from time to time that this one lives.
func (s *stream) keepAlive(done <-chan struct{}) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if errors.Join(s.send(frame{kind: kindAlive}), s.flush()) != nil {
			return
		}
	}
}

// watch calls dead if recv has waited for a frame for too long: aliveLimit, or wantedLimit if
// wanted reports true. If ctx has ended, it does so as soon as recv waits. It never disturbs a
// write.
func (s *stream) watch(ctx context.Context, done <-chan struct{}, wanted func() bool, dead func()) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		limit := aliveLimit
		select {
		case <-done:
			return
		case <-ctx.Done():
			limit = 0
			if s.waiting.Load() == 0 {
				<-tick.C
			}
		case <-tick.C:
			if wanted() {
				limit = wantedLimit
			}
		}
		if since := s.waiting.Load(); since != 0 && time.Since(time.Unix(0, since)) >= limit {
			dead()
			return
		}
	}
}

// recv reads a frame. io.EOF is an end between two.
func (s *stream) recv() (frame, error) {
	for {
		s.waiting.Store(time.Now().UnixNano())
		f, err := s.recvAny()
		s.waiting.Store(0)
		if err != nil || f.kind != kindAlive {
			return f, err
		}
		f.release()
	}
}

func (s *stream) recvAny() (frame, error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[2:])
	if n > maxFrame || head[1]&^flagZstd != 0 {
		return frame{}, rejectedf("", "it does not follow the protocol")
	}
	s.received.Add(int64(n) + headerLen)
	f := frame{kind: head[0], data: s.raw}
	if head[1]&flagZstd == 0 {
		f.data = room(int(n))
	} else if cap(s.raw) < int(n) {
		s.raw = make([]byte, n)
		f.data = s.raw
	}
	f.data = f.data[:n]
	if err := cutShort(io.ReadFull(s.r, f.data)); err != nil {
		return frame{}, err
	}
	if checksum(head[:sumAt], f.data) != binary.BigEndian.Uint32(head[sumAt:]) {
		return frame{}, rejectedf("", "it was damaged on the way")
	}
	if head[1]&flagZstd == 0 {
		return f, nil
	}
	return s.expand(head[0], f.data)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(head, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, data)
}

// expand decompresses a frame. The decompressed data has the bound of any frame.
func (s *stream) expand(kind byte, packed []byte) (frame, error) {
	var h zstd.Header
	if err := h.Decode(packed); err != nil || !h.HasFCS || h.FrameContentSize > maxFrame {
		return frame{}, rejectedf("", "it does not follow the protocol")
	}
	f := frame{kind: kind, data: room(int(h.FrameContentSize))}
	data, err := s.zr.DecodeAll(packed, f.data[:0])
	if err != nil || len(data) != len(f.data) {
		return frame{}, rejectedf("", "its compressed data is damaged")
	}
	return f, nil
}

func room(n int) []byte {
	if n <= dataFrame {
		return newBuffer()[:n]
	}
	return make([]byte, n)
}

func cutShort(_ int, err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// pipeEnd is one end of a conn inside this process.
type pipeEnd struct {
	in, out chan frame
	done    chan struct{} // closed when either end is
	once    *sync.Once
}

// newPipe makes two conns that are each other's other end.
func newPipe() (a, b *pipeEnd) {
	x, y, done, once := make(chan frame, 4), make(chan frame, 4), make(chan struct{}), new(sync.Once)
	return &pipeEnd{x, y, done, once}, &pipeEnd{y, x, done, once}
}

func (p *pipeEnd) send(f frame) error {
	select {
	case p.out <- f:
		return nil
	case <-p.done:
		return io.ErrClosedPipe
	}
}

func (p *pipeEnd) flush() error { return nil }

func (p *pipeEnd) recv() (frame, error) {
	select {
	case f := <-p.in:
		return f, nil
	case <-p.done:
		select {
		case f := <-p.in: // what was sent before
			return f, nil
		default:
			return frame{}, io.EOF
		}
	}
}

func (p *pipeEnd) close() { p.once.Do(func() { close(p.done) }) }

// sendJSON sends one frame of JSON.
func sendJSON(c conn, kind byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxFrame {
		return failedf(CodeUsage, "", "the ignore rules have %d bytes, but %d are allowed", len(data), maxFrame)
	}
	return errors.Join(c.send(frame{kind, data}), c.flush())
}

// parseJSON reads a frame of JSON; v may be nil.
func parseJSON(f frame, kind byte, v any) error {
	if f.kind != kind {
		return rejectedf("", "a frame %q where %q belongs", f.kind, kind)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(f.data, v); err != nil {
		return rejectedf("", "it does not follow the protocol: %v", err)
	}
	return nil
}

// A lister sends a list of records in frames.
type lister struct {
	c     conn
	buf   []byte
	rec   enc
	count int64
}

// add sends one record, sooner or later.
func (l *lister) add(encode func(*enc)) error {
	l.rec.b = l.rec.b[:0]
	encode(&l.rec)
	if len(l.rec.b) > maxRecord {
		return fmt.Errorf("a record of %d bytes", len(l.rec.b))
	}
	l.count++
	if len(l.buf)+len(l.rec.b)+binary.MaxVarintLen64 > listFrame {
		if err := l.spill(); err != nil {
			return err
		}
	}
	if l.buf == nil {
		l.buf = newBuffer()[:0]
	}
	l.buf = binary.AppendUvarint(l.buf, uint64(len(l.rec.b)))
	l.buf = append(l.buf, l.rec.b...)
	return nil
}

func (l *lister) spill() error {
	if len(l.buf) == 0 {
		return nil
	}
	f := frame{kindList, l.buf}
	l.buf = nil
	return errors.Join(l.c.send(f), l.c.flush())
}

// end sends the rest, and the end mark.
func (l *lister) end() error {
	if err := l.spill(); err != nil {
		return err
	}
	return errors.Join(l.c.send(frame{kindEnd, binary.AppendUvarint(nil, uint64(l.count))}), l.c.flush())
}

// maxListBytes bounds the records of a list that is kept on this machine's disk. Four
// million entries with names of 200 bytes fit.
const maxListBytes = 1 << 30

// within hands the records of a list to add, up to limit bytes together. On the way they may
// be compressed a thousandfold.
func within(limit int64, add func(*dec) error) func(*dec) error {
	left := limit
	return func(d *dec) error {
		if left -= int64(len(d.b)); left < 0 {
			return rejectedf("", "a list of more than %d MiB", limit>>20)
		}
		return add(d)
	}
}

// recvList hands each record of a list to add. It returns an error if the end mark is missing,
// or has another number of records.
func recvList(c interface{ recv() (frame, error) }, add func(*dec) error) error {
	for count := uint64(0); ; {
		f, err := c.recv()
		if err != nil {
			return err
		}
		d := &dec{b: f.data}
		switch f.kind {
		case kindEnd:
			if n := d.uint(); d.end() != nil || n != count {
				return rejectedf("", "a list of %d records ends with the number %d", count, n)
			}
			return nil
		case kindList:
			for len(d.b) > 0 {
				rec := &dec{b: d.bytes(d.uint())}
				if d.err != nil {
					return rejectedf("", "a list is damaged")
				}
				if count++; count > maxEntries {
					return rejectedf("", "a list of more than %d records", maxEntries)
				}
				if err := add(rec); err != nil {
					return err
				}
				if rec.end() != nil {
					return rejectedf("", "a list is damaged")
				}
			}
			f.release()
		default:
			return rejectedf("", "a frame %q where a list belongs", f.kind)
		}
	}
}
