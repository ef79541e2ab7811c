package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A log's times.
const (
	logPoll  = 250 * time.Millisecond
	logQuiet = 20 * time.Second // then an empty line is a sign of life
)

// tellEvents answers with the events of several logs, in the order of their times. Each log is
// a list of files. The query can limit them to events since a time, and ask to follow new
// ones.
func tellEvents[E any](w http.ResponseWriter, r *http.Request, logs [][]string, at func(E) time.Time) error {
	q := r.URL.Query()
	var since time.Time
	if text := q.Get("since"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fail.New("bad_request", "since must be milliseconds since 1970", "")
		}
		since = time.UnixMilli(ms)
	}
	var tails []*eventTail[E]
	for _, paths := range logs {
		if len(paths) > 0 {
			tails = append(tails, &eventTail[E]{paths: paths})
		}
	}
	defer func() {
		for _, t := range tails {
			t.close()
		}
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush := func() error { return http.NewResponseController(w).Flush() }
	poll := time.NewTicker(logPoll)
	defer poll.Stop()
	out := json.NewEncoder(w)
	for last := time.Now(); ; {
		told := false
		for first := earliest(tails, at); first != nil; first = earliest(tails, at) {
			e := *first.head
			if first.head = nil; at(e).Before(since) {
				continue
			}
			if err := out.Encode(e); err != nil {
				return nil //nolint:nilerr // it has gone
			}
			told = true
		}
		if told || time.Since(last) > logQuiet {
			if !told {
				_, _ = io.WriteString(w, "\n")
			}
			last = time.Now()
			if flush() != nil {
				return nil
			}
		}
		if q.Get("follow") != "true" {
			return nil
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-poll.C:
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// earliest is the log whose next event came first; nil: there are no more events now.
func earliest[E any](tails []*eventTail[E], at func(E) time.Time) (first *eventTail[E]) {
	for _, t := range tails {
		if t.head == nil {
			t.head = t.next()
		}
		if t.head != nil && (first == nil || at(*t.head).Before(at(*first.head))) {
			first = t
		}
	}
	return first
}

// eventTail reads a log of events, from its older files on, and then what is added. It keeps one event.
type eventTail[E any] struct {
	paths []string // the oldest first; those that were read to their ends are gone, except the last one
	head  *E       // the next event; nil: it is not read yet
	file  *os.File // of the first path; nil: not open
	lines *bufio.Reader
	rest  []byte // of a line that is not whole yet
	ends  bool   // the log goes on in another file of the last path, and the old file is read to its end
}

func (t *eventTail[E]) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
	t.file, t.rest, t.ends = nil, nil, false
}

// next returns the next event, or nil if there is none now. Lines that are none, which a full disk makes, are left out.
func (t *eventTail[E]) next() *E {
	for {
		last := len(t.paths) == 1
		if t.file == nil {
			f, err := os.Open(t.paths[0])
			if err != nil && last {
				return nil // there is none yet
			}
			if err != nil {
				t.paths = t.paths[1:]
				continue
			}
			t.file, t.lines = f, bufio.NewReader(f)
		}
		line, err := t.lines.ReadBytes('\n')
		t.rest = append(t.rest, line...)
		switch {
		case err == nil:
			e := new(E)
			bad := json.Unmarshal(bytes.TrimSpace(t.rest), e) != nil
			if t.rest = t.rest[:0]; !bad {
				return e
			}
		case !last:
			t.close()
			t.paths = t.paths[1:]
		case t.ends:
			t.close()
		case t.replaced():
			t.ends = true
		default:
			return nil
		}
	}
}

// replaced reports whether the log goes on in another file.
func (t *eventTail[E]) replaced() bool {
	mine, err := t.file.Stat()
	now, err2 := os.Stat(t.paths[0])
	return err == nil && err2 == nil && !os.SameFile(mine, now)
}
