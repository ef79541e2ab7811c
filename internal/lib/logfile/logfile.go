// Package logfile bounds logs whose lines a sandbox can cause. It bounds the size of their
// files, and how often the same message is written.
package logfile

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OldSuffix ends the name of a log that a new one has replaced.
const OldSuffix = ".1"

// DefaultMax is the Max of a File that sets none, in bytes.
const DefaultMax = 4 << 20

// A File is a log that begins anew when it has grown to Max bytes. The log before it is kept
// beside it, with OldSuffix. The zero value with Path set is ready. Its methods may be called
// from any goroutine.
type File struct {
	Path string
	Max  int64 // 0: DefaultMax

	// Opened, unless nil, is told of each file that is begun, for instance to have a
	// standard stream go there too.
	Opened func(*os.File)

	mu   sync.Mutex
	file *os.File // nil: not open
	size int64
}

// Write appends p, whole, to one file.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.Max
	if limit == 0 {
		limit = DefaultMax
	}
	if err := l.open(); err != nil {
		return 0, err
	}
	if l.size > 0 && l.size+int64(len(p)) > limit {
		err := errors.Join(l.file.Close(), os.Rename(l.Path, l.Path+OldSuffix))
		l.file = nil
		if err == nil {
			err = l.open()
		}
		if err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// open opens the file, unless it is. The caller holds l.mu.
func (l *File) open() error {
	if l.file != nil {
		return nil
	}
	f, err := os.OpenFile(l.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, st.Size()
	if l.Opened != nil {
		l.Opened(f)
	}
	return nil
}

// Close closes the file; the next Write opens it again.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// Stderr returns where a process writes its log. If its standard error is the file at path,
// that is a File of that path. Standard error, and standard output if it is that file, then
// follow each new file. Otherwise Stderr returns standard error.
func Stderr(path string, limit int64) io.Writer {
	var streams []int
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if sameFile(f, path) {
			streams = append(streams, int(f.Fd()))
		}
	}
	if !sameFile(os.Stderr, path) {
		return os.Stderr
	}
	return &File{Path: path, Max: limit, Opened: func(to *os.File) {
		for _, fd := range streams {
			_ = unix.Dup3(int(to.Fd()), fd, 0) // else it goes on to where it went
		}
	}}
}

func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// Trim empties a log that other programs append to, if it is larger than limit bytes. Its last
// limit bytes go to the file with OldSuffix. Lines that are written meanwhile may be lost.
func Trim(path string, limit int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() <= limit {
		return err
	}
	old, err := os.OpenFile(path+OldSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, io.NewSectionReader(f, st.Size()-limit, limit))
	return errors.Join(err, old.Close(), f.Truncate(0))
}

const (
	// burst is how many records of one message are written in a window.
	burst  = 50
	window = 10 * time.Second
	// messages is how many messages are told apart. Messages are constants of the programs.
	messages = 1000
)

// Limit returns a handler that passes on 50 records (burst) of each message of the level Info
// or above. It drops more of them until ten seconds (window) after the first. The next record
// then says how many were dropped, as "suppressed".
func Limit(next slog.Handler) slog.Handler {
	return &limiter{next, &counts{of: map[string]*count{}}}
}

type limiter struct {
	next   slog.Handler
	counts *counts
}

type counts struct {
	mu sync.Mutex
	of map[string]*count
}

type count struct {
	since   time.Time
	n       int
	dropped int
}

func (h *limiter) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *limiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		dropped, ok := h.counts.take(r.Message, r.Time)
		if !ok {
			return nil
		}
		if dropped > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("suppressed", dropped))
		}
	}
	return h.next.Handle(ctx, r)
}

// take counts a message. ok is false if it is one too many. dropped is how many were dropped
// before this one.
func (c *counts) take(message string, now time.Time) (dropped int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of[message]
	if m == nil {
		if len(c.of) >= messages {
			clear(c.of)
		}
		m = &count{since: now}
		c.of[message] = m
	}
	if now.Sub(m.since) >= window {
		dropped = m.dropped
		*m = count{since: now}
	}
	if m.n >= burst {
		m.dropped++
		return 0, false
	}
	m.n++
	return dropped, true
}

func (h *limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limiter{h.next.WithAttrs(attrs), h.counts}
}

func (h *limiter) WithGroup(name string) slog.Handler {
	return &limiter{h.next.WithGroup(name), h.counts}
}
