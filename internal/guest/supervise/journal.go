package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/mask"
)

// maxLine is how much of one line of output one event holds.
const maxLine = 64 << 10

// maxLogged is how much output the log takes, and also how much of the agent's events.
const maxLogged = 64 << 20

// journal is the job's log. Its methods may be called from several goroutines. A
// write that fails, on a full disk say, is not retried: err keeps the first.
type journal struct {
	mu    sync.Mutex
	f     *os.File
	seq   int64 // of the last event
	ended bool  // the last event is the end
	err   error
	mask  mask.Mask // set before anything is added

	heard func(stream, line string) // nil: nobody listens; set before the output comes

	logged, loggedEvents int64 // bytes of output, and of the agent's own events

	last tail // of standard error; guarded by mu
}

// openJournal opens a log and finds its last event. A torn last line, of a
// supervisor that died while it wrote, is cut off.
func openJournal(name string) (*journal, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	l := &journal{f: f}
	var whole int64
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		var ev struct {
			Seq  int64
			Type string
		}
		if json.Unmarshal(line, &ev) != nil || ev.Seq != l.seq+1 {
			break
		}
		whole += int64(len(line))
		l.seq, l.ended = ev.Seq, ev.Type == "end"
	}
	if err := f.Truncate(whole); err != nil {
		return nil, errors.Join(fmt.Errorf("repair %s: %w", name, err), f.Close())
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// add numbers an event and writes it, in one write.
func (l *journal) add(ev cove.JobEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	ev = masked(l.mask, ev)
	ev.Seq, ev.Time = l.seq+1, now()
	line, err := json.Marshal(ev)
	if err == nil {
		_, err = l.f.Write(append(line, '\n'))
	}
	if err != nil {
		l.err = fmt.Errorf("write the log: %w", err)
		return
	}
	l.seq, l.ended = ev.Seq, ev.Type == "end"
}

func (l *journal) state(s cove.JobState) { l.add(cove.JobEvent{Type: "state", State: s}) }
func (l *journal) step(t cove.StepTurn)  { l.add(cove.JobEvent{Type: "step", Step: &t}) }
func (l *journal) notice(text string)    { l.add(cove.JobEvent{Type: "notice", Text: text}) }

func (l *journal) sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.f.Sync())
}

func (l *journal) close() error { return l.f.Close() }

// output logs what r gives, line by line, until it ends.
func (l *journal) output(r io.Reader, stream string) {
	br := bufio.NewReaderSize(r, maxLine-utf8.UTFMax)
	t := tap{log: l, stream: stream}
	buf := make([]byte, 0, maxLine)
	open := false // the line began in an earlier event
	for {
		part, err := br.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		buf = append(buf, part...)
		n := len(buf)
		if cut {
			n = wholeRunes(buf)
			if whole := n - l.mask.Begun(buf[:n]); whole > 0 {
				n = whole
			}
		}
		if n > 0 || open {
			t.line(string(bytes.TrimSuffix(buf[:n], []byte("\n"))), cut)
		}
		open, buf = cut, append(buf[:0], buf[n:]...)
		if err != nil && !cut {
			t.end()
			return
		}
	}
}

// wholeRunes is the length of b without the beginning of a character at its end.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// maxLast bounds the last line of a stream that is too long for the log.
const maxLast = 1 << 20

// A tap logs one stream. When the log has taken its share, it still takes the stream's last
// line at the stream's end, because agents report their result there.
type tap struct {
	log    *journal
	stream string
	full   bool
	mid    bool            // the line that is coming in is not the first part
	skip   bool            // of this line, some is missing already
	last   []cove.JobEvent // once full: the last line
	size   int             // of last
}

func (t *tap) line(text string, cut bool) {
	first := !t.mid
	t.mid = cut
	if first && t.log.heard != nil {
		t.log.heard(t.stream, text)
	}
	if t.stream == "stderr" {
		t.log.keepLast(text, cut)
	}
	ev := cove.JobEvent{Type: "output", Stream: t.stream, Text: text, Cut: cut}
	if t.stream == eventStream {
		ev = cove.JobEvent{Type: "event", Text: text, Cut: cut}
	}
	if !t.full {
		if t.full = t.log.exceeds(t.stream, len(text)+1); t.full {
			ev.Cut, t.skip = false, cut // what follows is another line
		}
		t.log.add(ev)
		if t.full {
			t.log.notice(fmt.Sprintf("more than %d MiB of output: the rest, except for the last line, is in output.log only", maxLogged>>20))
		}
		return
	}
	if first {
		t.last, t.size, t.skip = t.last[:0], 0, false
	}
	if t.size += len(text); t.size > maxLast {
		t.last, t.skip = t.last[:0], true
	}
	if !t.skip {
		t.last = append(t.last, ev)
	}
}

// keepLast keeps the end of standard error, even if the log has no room for it.
func (l *journal) keepLast(text string, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !cut {
		text += "\n"
	}
	_, _ = l.last.Write([]byte(text)) // never fails
}

// lastError is the end of standard error.
func (l *journal) lastError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.String()
}

func (t *tap) end() {
	for _, ev := range t.last {
		t.log.add(ev)
	}
}

// exceeds counts n more bytes of a stream, and reports whether the log has had
// its share. Output does not count against the share of the agent's own events.
func (l *journal) exceeds(stream string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	logged := &l.logged
	if stream == eventStream {
		logged = &l.loggedEvents
	}
	*logged += int64(n)
	return *logged > maxLogged
}

// eventStream names the agent's file descriptor 3, whose lines are events.
const eventStream = "events"
