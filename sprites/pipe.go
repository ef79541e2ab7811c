package sprites

import (
	"io"
	"os"
	"sync"
	"time"
)

// pipeSize is how much a pipe holds, as the kernel's does: a reader of one of two
// pipes may leave that much in the other.
const pipeSize = 64 << 10

// pipe is an in-memory pipe that holds up to pipeSize bytes. As in an operating
// system's pipe, written bytes can be read after the writer's end.
type pipe struct {
	mu       sync.Mutex
	change   sync.Cond // of any of the following
	ring     []byte    // pipeSize long, made by the first Write
	start    int       // of what is in the ring
	size     int       // how much is in it
	err      error     // the writer's end: what Read returns after the rest of buf
	closed   bool      // by the reader
	deadline time.Time
	timer    *time.Timer
}

func newPipe() *pipe {
	p := new(pipe)
	p.change.L = &p.mu
	return p
}

// Read waits for bytes, the writer's end, Close, or the deadline.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, os.ErrClosed
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case p.size > 0:
			n := copy(b, p.ring[p.start:min(p.start+p.size, pipeSize)])
			p.start = (p.start + n) % pipeSize
			p.size -= n
			p.change.Broadcast()
			return n, nil
		case p.err != nil:
			return 0, p.err
		}
		p.change.Wait()
	}
}

// Write waits until all of b is in the pipe. After Close it fails.
func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ring == nil && !p.closed {
		p.ring = make([]byte, pipeSize)
	}
	for n := 0; ; {
		if p.closed || p.err != nil {
			return n, io.ErrClosedPipe
		}
		if n == len(b) {
			return n, nil
		}
		if p.size == pipeSize {
			p.change.Wait()
			continue
		}
		end := (p.start + p.size) % pipeSize
		room := min(pipeSize-p.size, pipeSize-end)
		put := copy(p.ring[end:end+room], b[n:])
		p.size += put
		n += put
		p.change.Broadcast()
	}
}

// end is the writer's end: reads return err once the pipe is empty, nil means
// io.EOF.
func (p *pipe) end(err error) {
	if err == nil {
		err = io.EOF
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.change.Broadcast()
}

// Close is the reader's end: what is in the pipe is dropped.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.ring, p.size = nil, 0
	p.stopTimer()
	p.change.Broadcast()
	return nil
}

// SetReadDeadline makes Read fail from t on; the zero time takes that back.
func (p *pipe) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	p.deadline = t
	p.stopTimer()
	if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.change.Broadcast()
		})
	}
	p.change.Broadcast()
	return nil
}

func (p *pipe) stopTimer() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
