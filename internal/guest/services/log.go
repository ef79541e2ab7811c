package services

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// logFile is a service's log file, NAME.log. Every line begins with a time and its stream.
// When the file is full, it becomes NAME.log.1. Calls must not overlap.
type logFile struct {
	path string
	max  int64 // bytes

	file  *os.File
	size  int64
	begun [2]begunLine // of the streams in loggedStreams
}

// begunLine is output without a line's end. It goes into the file when the end has come, so
// that the other stream's lines don't break it.
type begunLine struct {
	text string
	at   time.Time // when the last of it came
}

var loggedStreams = [2]string{sprites.ServiceEventStdout, sprites.ServiceEventStderr}

const (
	maxLog    = 16 << 20
	maxLogged = 64 << 10 // of a line; a longer one is broken
)

// logTime is how times are written in logs.
const logTime = "2006-01-02T15:04:05.000Z"

// write adds output, or an error's text.
func (l *logFile) write(now time.Time, stream, text string) error {
	if i := slices.Index(loggedStreams[:], stream); i >= 0 {
		text = l.begun[i].text + text
		l.begun[i] = begunLine{}
		if !strings.HasSuffix(text, "\n") && len(text) < maxLogged {
			l.begun[i] = begunLine{text, now}
			return nil
		}
	}
	return l.writeLine(now, stream, text)
}

// finish writes the lines that have no end: none will come.
func (l *logFile) finish() error {
	var errs [len(l.begun)]error
	for i, b := range l.begun {
		if b.text != "" {
			errs[i] = l.writeLine(b.at, loggedStreams[i], b.text)
		}
	}
	l.begun = [2]begunLine{}
	return errors.Join(errs[:]...)
}

func (l *logFile) writeLine(now time.Time, stream, text string) error {
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	line := now.UTC().Format(logTime) + " [" + stream + "] " + strings.TrimSuffix(text, "\n") + "\n"
	if l.size > 0 && l.size+int64(len(line)) > l.max {
		l.close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return err
		}
		if err := l.open(); err != nil {
			return err
		}
	}
	n, err := l.file.WriteString(line)
	l.size += int64(n)
	return err
}

func (l *logFile) open() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	l.file, l.size = f, st.Size()
	return nil
}

func (l *logFile) close() {
	if l.file != nil {
		_ = l.file.Close() // every line was written by itself
		l.file = nil
	}
}

// lastLogged bounds how much of the end of a log is looked at.
const lastLogged = 4 << 20

// logSnapshot is a log as it was at one moment. Read it, once.
type logSnapshot struct {
	files []*os.File
	sizes []int64
	begun [2]begunLine
}

func (l *logFile) snapshot() (*logSnapshot, error) {
	s := &logSnapshot{begun: l.begun}
	for _, name := range []string{l.path + ".1", l.path} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var size int64
		if err == nil {
			s.files = append(s.files, f)
			size, err = f.Seek(0, io.SeekEnd)
		}
		if err != nil {
			s.close()
			return nil, err
		}
		s.sizes = append(s.sizes, size)
	}
	return s, nil
}

func (s *logSnapshot) close() {
	for _, f := range s.files {
		_ = f.Close() // it was only read
	}
}

// last returns the events of the last n lines, as they were. A long line is more
// than one.
func (s *logSnapshot) last(n int) ([]sprites.ServiceEvent, error) {
	defer s.close()
	if n == 0 {
		return nil, nil
	}
	var lines []sprites.ServiceEvent
	for i, f := range s.files {
		var err error
		if lines, err = lastLines(lines, f, s.sizes[i], n); err != nil {
			return nil, err
		}
	}
	for i, b := range s.begun {
		if b.text != "" {
			lines = append(lines, sprites.ServiceEvent{Type: loggedStreams[i], Data: b.text, Timestamp: b.at.UnixMilli()})
		}
	}
	events := []sprites.ServiceEvent{}
	for _, e := range lines[max(0, len(lines)-n):] {
		text := e.Data
		for len(text) > 0 {
			e.Data = text[:min(len(text), maxLine)]
			text = text[len(e.Data):]
			events = append(events, e)
		}
	}
	return events, nil
}

// lastLines adds the lines at a file's end, and keeps the last n of all.
func lastLines(lines []sprites.ServiceEvent, f *os.File, size int64, n int) ([]sprites.ServiceEvent, error) {
	from := max(0, size-lastLogged)
	r := bufio.NewReaderSize(io.NewSectionReader(f, from, size-from), 64<<10)
	if from > 0 {
		if _, err := r.ReadString('\n'); err != nil {
			return lines, nil // it begins within a line that is longer than all we look at
		}
	}
	for {
		line, err := r.ReadString('\n')
		if e, ok := parseLogged(line); ok {
			if len(lines) == n {
				lines = lines[1:]
			}
			lines = append(lines, e)
		}
		if err != nil {
			return lines, nil
		}
	}
}

// parseLogged reads a line of a log.
func parseLogged(line string) (sprites.ServiceEvent, bool) {
	stamp, rest, ok := strings.Cut(line, " [")
	stream, text, ok2 := strings.Cut(rest, "] ")
	at, err := time.Parse(logTime, stamp)
	if !ok || !ok2 || err != nil {
		return sprites.ServiceEvent{}, false
	}
	switch stream {
	case sprites.ServiceEventStdout, sprites.ServiceEventStderr, sprites.ServiceEventError:
	default:
		return sprites.ServiceEvent{}, false
	}
	return sprites.ServiceEvent{Type: stream, Data: text, Timestamp: at.UnixMilli()}, true
}
