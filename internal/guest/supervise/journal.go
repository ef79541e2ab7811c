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

	"github.com/cove-dev/cove/sprites"
)

// maxLine is the most of one line of output that one event holds.
const maxLine = 64 << 10

// maxLogged is how much output the log takes; the rest is in output.log only.
const maxLogged = 64 << 20

// journal is the job's log. Its methods may be called from several goroutines. A
// write that fails, on a full disk say, is not retried: err keeps the first.
type journal struct {
	mu     sync.Mutex
	f      *os.File
	seq    int64 // of the last event
	ended  bool  // the last event is the end
	logged int64 // bytes of output
	err    error
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
func (l *journal) add(ev sprites.JobEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
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

func (l *journal) state(s sprites.JobState) { l.add(sprites.JobEvent{Type: "state", State: s}) }
func (l *journal) notice(text string)       { l.add(sprites.JobEvent{Type: "notice", Text: text}) }

func (l *journal) sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.f.Sync())
}

func (l *journal) close() error { return l.f.Close() }

// output logs what r gives, line by line, until it ends.
func (l *journal) output(r io.Reader, stream string) {
	br := bufio.NewReaderSize(r, maxLine)
	full := false
	for {
		line, err := br.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		text := bytes.TrimSuffix(line, []byte("\n"))
		if len(line) > 0 && !full {
			l.mu.Lock()
			l.logged += int64(len(line))
			full = l.logged > maxLogged
			l.mu.Unlock()
			ev := sprites.JobEvent{Type: "output", Stream: stream, Text: string(text), Cut: cut}
			if stream == eventStream {
				ev = sprites.JobEvent{Type: "event", Text: string(text), Cut: cut}
			}
			l.add(ev)
			if full {
				l.notice(fmt.Sprintf("more than %d MiB of output: the rest is in output.log only", maxLogged>>20))
			}
		}
		if err != nil && !cut {
			return
		}
	}
}

// eventStream names the agent's file descriptor 3, whose lines are events.
const eventStream = "events"
