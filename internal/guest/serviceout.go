package guest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// maxLine bounds a line of a service's output. As JSON it stays below the 64 KiB
// that some clients read at most, whatever is in it.
const maxLine = 8 << 10

// lineDelay is how long output without a line's end waits for one.
const lineDelay = 200 * time.Millisecond

// serviceOutput is the client of a service's session: it makes lines of what the
// program writes.
type serviceOutput struct {
	service *service
	code    int           // set before ended is closed
	ended   chan struct{} // closed when all output is out

	mu    sync.Mutex
	parts [3][]byte // unfinished lines, by stream
	timer *time.Timer
	once  sync.Once
}

func (o *serviceOutput) output(frame []byte, _ bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	stream := sprites.Stream(frame[0])
	part := slices.Concat(o.parts[stream], frame[1:])
	for len(part) > 0 {
		n := bytes.IndexByte(part, '\n') + 1
		if n == 0 && len(part) < maxLine {
			break
		}
		if n == 0 || n > maxLine {
			n = maxLine
		}
		o.service.wrote(stream, part[:n])
		part = part[n:]
	}
	o.parts[stream] = bytes.Clone(part)
	if o.timer == nil && len(part) > 0 {
		o.timer = time.AfterFunc(lineDelay, o.flush)
	}
	return nil
}

// flush hands out lines that have no end yet, such as prompts.
func (o *serviceOutput) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = nil
	for stream, part := range o.parts {
		if len(part) > 0 {
			o.service.wrote(sprites.Stream(stream), part)
			o.parts[stream] = nil
		}
	}
}

func (o *serviceOutput) exit(code int, _ string, _ bool) {
	o.flush()
	o.once.Do(func() {
		o.code = code
		close(o.ended)
	})
}

func (o *serviceOutput) crowded(bool) {}

func (o *serviceOutput) followPorts(*session) {}

func (o *serviceOutput) drop() { o.exit(125, "", false) } // without an exit: the guest is closing

// wrote notes a line of output.
func (v *service) wrote(stream sprites.Stream, line []byte) {
	typ := sprites.ServiceEventStdout
	if stream == sprites.StreamStderr {
		typ = sprites.ServiceEventStderr
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.publish(sprites.ServiceEvent{Type: typ, Data: string(line)})
}

// publish writes an event to the log, if it is output or an error, and hands it
// to who listens. v.mu is held.
func (v *service) publish(e sprites.ServiceEvent) {
	now := time.Now()
	e.Timestamp = now.UnixMilli()
	if e.Data != "" {
		if err := v.log.write(now, e.Type, e.Data); err != nil {
			v.set.srv.Logger.Warn("log of a service", "service", v.def.Name, "err", err)
		}
	}
	for sub := range v.events {
		sub.add(e)
	}
}

// subscription is someone's view of a service's events. One that is not read
// loses the oldest; the service never waits.
type subscription struct {
	wake chan struct{}

	mu     sync.Mutex
	events []sprites.ServiceEvent
	lost   int
}

// keptEvents bounds a subscription.
const keptEvents = 1024

func (s *subscription) add(e sprites.ServiceEvent) {
	s.mu.Lock()
	if len(s.events) == keptEvents {
		s.events = s.events[1:]
		s.lost++
	}
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) take() []sprites.ServiceEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	if s.lost > 0 {
		gap := sprites.ServiceEvent{
			Type: sprites.ServiceEventError, Timestamp: events[0].Timestamp,
			Data: fmt.Sprintf("%d events came faster than they were read, and are in the log file only", s.lost),
		}
		events = append([]sprites.ServiceEvent{gap}, events...)
	}
	s.events, s.lost = nil, 0
	return events
}

func (v *service) subscribe() *subscription {
	sub := &subscription{wake: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events[sub] = true
	return sub
}

func (v *service) unsubscribe(sub *subscription) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.events, sub)
}

// serviceLog is a service's log file, NAME.log, in which every line begins with
// a time and its stream. When it is full it becomes NAME.log.1. Calls must not
// overlap.
type serviceLog struct {
	path string
	max  int64 // bytes

	file *os.File
	size int64
}

const maxServiceLog = 16 << 20

// logTime is how times are written in logs.
const logTime = "2006-01-02T15:04:05.000Z"

func (l *serviceLog) write(now time.Time, stream, text string) error {
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

func (l *serviceLog) open() error {
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

func (l *serviceLog) close() {
	if l.file != nil {
		_ = l.file.Close() // every line was written by itself
		l.file = nil
	}
}

// lastLogged bounds how much of the end of a log is looked at.
const lastLogged = 4 << 20

// tail returns the last n events in the log, as they were.
func (l *serviceLog) tail(n int) ([]sprites.ServiceEvent, error) {
	if n <= 0 {
		return nil, nil
	}
	var events []sprites.ServiceEvent
	for _, name := range []string{l.path + ".1", l.path} {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		events, err = lastEvents(events, f, n)
		_ = f.Close() // it was read only
		if err != nil {
			return nil, err
		}
	}
	return events, nil
}

// lastEvents adds the events at a file's end, and keeps the last n of all.
func lastEvents(events []sprites.ServiceEvent, f *os.File, n int) ([]sprites.ServiceEvent, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, size-lastLogged)
	r := bufio.NewReaderSize(io.NewSectionReader(f, from, size-from), 64<<10)
	if from > 0 {
		if _, err := r.ReadString('\n'); err != nil {
			return events, nil // it begins within a line that is longer than all we look at
		}
	}
	for {
		line, err := r.ReadString('\n')
		if e, ok := parseLogged(line); ok {
			if len(events) == n {
				events = events[1:]
			}
			events = append(events, e)
		}
		if err != nil {
			return events, nil
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
	for len(text) > maxLine { // nobody but us should write there, but anybody in the sandbox may
		text = text[:maxLine]
	}
	return sprites.ServiceEvent{Type: stream, Data: text, Timestamp: at.UnixMilli()}, true
}
