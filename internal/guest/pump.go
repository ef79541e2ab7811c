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

// A terminal gives no end of output while background processes hold it, so what
// its main process wrote is read until nothing has come for terminalQuiet.
const (
	terminalQuiet = 10 * time.Millisecond
	terminalDrain = 250 * time.Millisecond
)

// pump sends the output of one stream until its end, or, when the main process
// has ended, which run tells by a deadline in the past, until all that was
// written until then has been sent. What background processes write afterwards
// is read and thrown away: they should neither block nor die of it.
func (s *session) pump(f *os.File, stream sprites.Stream) {
	defer f.Close()
	bufp := chunks.Get().(*[chunk + 1]byte)
	defer chunks.Put(bufp)
	buf := bufp[:]
	buf[0] = byte(stream)
	err := s.pumpUntil(f, buf, -1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.pumpRest(f, buf)
		s.drained.Done()
		for err = f.SetReadDeadline(time.Time{}); err == nil; {
			_, err = f.Read(buf)
		}
		return
	}
	s.drained.Done()
	if s.cmd.tty {
		<-s.ended // closing the master hangs up, and the command may live on without a terminal
	}
}

// pumpUntil sends output until an error, or until left bytes were sent if left is
// not negative.
func (s *session) pumpUntil(f *os.File, buf []byte, left int) error {
	for left != 0 {
		p := buf[1:]
		if left > 0 && left < len(p) {
			p = p[:left]
		}
		n, err := f.Read(p)
		if n > 0 {
			s.broadcast(buf[:1+n])
			left = max(left-n, min(left, 0))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) pumpRest(f *os.File, buf []byte) {
	if !s.cmd.tty {
		if n := available(f); n > 0 && f.SetReadDeadline(time.Time{}) == nil {
			_ = s.pumpUntil(f, buf, n) // an end is no error
		}
		return
	}
	for end := time.Now().Add(terminalDrain); time.Now().Before(end); {
		if f.SetReadDeadline(time.Now().Add(terminalQuiet)) != nil {
			return
		}
		n, err := f.Read(buf[1:])
		if n > 0 {
			s.broadcast(buf[:1+n])
		}
		if err != nil {
			return
		}
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
