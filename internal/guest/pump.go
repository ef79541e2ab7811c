package guest

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/sprites"
)

// chunk is how much output is read, and sent, at once.
const chunk = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunk + 1]byte) }}

// terminalHolds is more than the unread output that a terminal can hold.
const terminalHolds = 1 << 20

// A pump sends the output of one stream of a session to its clients.
type pump struct {
	s *session
	f *os.File
}

// run sends the output of the stream until its end. If the main process ends first, the
// session sets a read deadline in the past, and run sends only what was written until then. It
// reads and discards what background processes write afterwards, so that they neither block
// nor die.
func (p *pump) run(stream sprites.Stream) {
	defer p.f.Close()
	bufp := chunks.Get().(*[chunk + 1]byte)
	defer chunks.Put(bufp)
	buf := bufp[:]
	buf[0] = byte(stream)
	err := p.until(buf, -1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.rest(buf)
		p.s.drained.Done()
		for err = p.f.SetReadDeadline(time.Time{}); err == nil; {
			_, err = p.f.Read(buf)
		}
		return
	}
	p.s.drained.Done()
	if p.s.cmd.tty {
		<-p.s.ended // closing the master hangs up, and the command may live on without a terminal
	}
}

// until sends output until an error, or until left bytes were sent if left is
// not negative.
func (p *pump) until(buf []byte, left int) error {
	for left != 0 {
		part := buf[1:]
		if left > 0 && left < len(part) {
			part = part[:left]
		}
		n, err := p.f.Read(part)
		if n > 0 {
			p.s.broadcast(buf[:1+n])
			left = max(left-n, min(left, 0))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pump) rest(buf []byte) {
	if !p.s.cmd.tty {
		if n := available(p.f); n > 0 && p.f.SetReadDeadline(time.Time{}) == nil {
			_ = p.until(buf, n) // an end is no error
		}
		return
	}
	raw, err := p.f.SyscallConn()
	if err != nil || p.f.SetReadDeadline(time.Time{}) != nil {
		return
	}
	// A terminal gives no end of output while background processes hold it. A read that does not
	// wait has all that was written before it, however busy the machine is.
	for left := terminalHolds; left > 0; {
		n := 0
		var readErr error
		err := raw.Read(func(fd uintptr) bool {
			n, readErr = unix.Read(int(fd), buf[1:])
			return true
		})
		if errors.Is(readErr, unix.EINTR) {
			continue
		}
		if err != nil || readErr != nil || n == 0 {
			return
		}
		p.s.broadcast(buf[:1+n])
		left -= n
	}
}

// available returns how many bytes a pipe holds.
func available(f *os.File) int {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if raw.Control(func(fd uintptr) {
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	}) != nil || err != nil {
		return 0
	}
	return n
}
