package tools

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxOutput = 30_000    // bytes of one stream that are returned: half from its beginning, half from its end
	maxLog    = 256 << 20 // bytes of one stream that are kept in a file
	keepLogs  = 7 * 24 * time.Hour
)

// A capture takes a stream of a command's output. If the stream is too long for an answer, all
// of it goes to a file.
type capture struct {
	name string // of the stream
	dir  string // of files

	reading sync.Mutex // held from a read of the pipe until it is stored

	mu    sync.Mutex
	head  []byte // the first bytes since the last look
	tail  []byte // the last ones behind them
	size  int64  // of all since the last look
	total int64  // of all
	line  []byte // the last one that is not empty, as far as it came
	log   *os.File
	kept  int64 // bytes in it
	err   error // why there is none

	stored sync.Cond // of mu: total has grown, or over is true
	over   bool      // copyFrom has ended
}

// newCapture makes a capture of a stream. Its files go to dir.
func newCapture(name, dir string) *capture {
	c := &capture{name: name, dir: dir}
	c.stored.L = &c.mu
	return c
}

// openLog begins the file. It first writes head, which has the output up to here.
func (c *capture) openLog() {
	if c.log != nil || c.err != nil {
		return
	}
	if c.err = os.MkdirAll(c.dir, 0o700); c.err != nil {
		return
	}
	if c.log, c.err = os.CreateTemp(c.dir, "*-"+c.name+".log"); c.err == nil {
		c.keep(c.head)
	}
}

func (c *capture) keep(p []byte) {
	if c.log == nil || c.kept >= maxLog {
		return
	}
	n, err := c.log.Write(p[:min(int64(len(p)), maxLog-c.kept)])
	c.kept += int64(n)
	if err != nil { // the disk is full: the command goes on
		c.err = err
		_ = c.log.Close()
		c.log = nil
	}
}

// Write never fails: a command must not stop for want of its log.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size+int64(len(p)) > maxOutput {
		c.openLog()
	}
	c.keep(p)
	c.note(p)
	c.size += int64(len(p))
	c.total += int64(len(p))
	c.stored.Broadcast()
	n := min(len(p), maxOutput-len(c.head))
	c.head = append(c.head, p[:n]...)
	if rest := p[n:]; len(rest) > 0 {
		c.tail = append(c.tail, rest[max(0, len(rest)-maxOutput):]...)
		if len(c.tail) > 4*maxOutput {
			c.tail = append(c.tail[:0], c.tail[len(c.tail)-maxOutput:]...)
		}
	}
	return len(p), nil
}

// note keeps the last line for progress.
func (c *capture) note(p []byte) {
	p = p[max(0, len(p)-4096):]
	if i := bytes.LastIndexByte(bytes.TrimRight(p, "\r\n"), '\n'); i >= 0 {
		c.line, p = c.line[:0], p[i+1:]
	} else if bytes.HasSuffix(c.line, []byte("\n")) {
		c.line = c.line[:0]
	}
	if len(c.line) < 4096 {
		c.line = append(c.line, p...)
	}
}

func (c *capture) progress() (total int64, line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total, valid(cut(bytes.TrimSpace(c.line), 200))
}

// Output is one stream of a command's output.
type Output struct {
	Text    string `json:"text"`              // of more than 30000 bytes, the beginning and the end; what is no UTF-8 is U+FFFD
	Bytes   int64  `json:"bytes"`             // how many there are
	Omitted int64  `json:"omitted,omitempty"` // how many of them are missing in the middle
	Log     string `json:"log,omitempty"`     // a file in the sprite that has all of it, or its first 256 MiB
}

// look returns what came since the last look.
func (c *capture) look() Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := Output{Bytes: c.size}
	if c.log != nil {
		o.Log = c.log.Name()
	}
	if c.size <= maxOutput {
		o.Text = valid(c.head)
	} else {
		all := slices.Concat(c.head, c.tail)
		head, tail := cut(c.head, maxOutput/2), cutFront(all, maxOutput/2)
		o.Omitted = c.size - int64(len(head)+len(tail))
		where := ""
		if o.Log != "" {
			where = "; all of it is in " + o.Log
		}
		o.Text = valid(head) + fmt.Sprintf("\n[… %d bytes omitted%s …]\n", o.Omitted, where) + valid(tail)
	}
	c.head, c.tail, c.size = nil, nil, 0
	return o
}

// logged makes all of the stream go to the file from now on.
func (c *capture) logged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.openLog()
}

// discard removes the file of a command whose caller is gone.
func (c *capture) discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil {
		_ = os.Remove(c.log.Name())
	}
}

// close ends the file.
func (c *capture) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil {
		_ = c.log.Close()
	}
}

// copyFrom reads a pipe to its end, or until it is closed.
func (c *capture) copyFrom(pipe *os.File) {
	defer c.finish()
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n := 0
		var readErr error
		err := raw.Read(func(fd uintptr) bool {
			c.reading.Lock()
			defer c.reading.Unlock()
			if n, readErr = unix.Read(int(fd), buf); n > 0 {
				_, _ = c.Write(buf[:n]) // never fails
			}
			return !errors.Is(readErr, unix.EAGAIN)
		})
		if err != nil || n <= 0 && !errors.Is(readErr, unix.EINTR) {
			return
		}
	}
}

// catchUp returns when copyFrom has stored all that is in the pipe now.
func (c *capture) catchUp(pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	waiting := 0
	c.reading.Lock()
	_ = raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // closed: nothing comes any more
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading.Unlock()
	for want := c.total + int64(waiting); c.total < want && !c.over; {
		c.stored.Wait()
	}
}

// finish notes that copyFrom has ended.
func (c *capture) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.stored.Broadcast()
}

// logDir is the folder where logs are kept for a while.
func logDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "cove", "tools")
}

// sweepLogs removes logs that are too old to be asked for.
func sweepLogs(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && now.Sub(info.ModTime()) > keepLogs {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
