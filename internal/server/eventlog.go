package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A log's times.
const (
	logPoll  = 250 * time.Millisecond
	logQuiet = 20 * time.Second // then an empty line is a sign of life
)

// tellEvents tells what is in logs of events, each of which is some files, by the
// events' times; if asked from one time on, and what is added.
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
	for last := time.Now(); ; {
		var events []E
		for _, t := range tails {
			events = append(events, t.next()...)
		}
		slices.SortStableFunc(events, func(a, b E) int { return at(a).Compare(at(b)) })
		events = slices.DeleteFunc(events, func(e E) bool { return at(e).Before(since) })
		for _, e := range events {
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return nil //nolint:nilerr // it has gone
			}
		}
		if len(events) > 0 || time.Since(last) > logQuiet {
			if len(events) == 0 {
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

// eventTail reads a log of events, from its older files on, and then what is added.
type eventTail[E any] struct {
	paths []string // the oldest first
	file  *os.File // of the last path; nil: not open
	lines *bufio.Reader
	rest  []byte // of a line that is not whole yet
	begun bool
}

func (t *eventTail[E]) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// next returns what has come since the last call. Lines that are none, which a full
// disk makes, are left out.
func (t *eventTail[E]) next() (events []E) {
	if !t.begun {
		t.begun = true
		for _, path := range t.paths[:len(t.paths)-1] {
			if f, err := os.Open(path); err == nil {
				t.lines = bufio.NewReader(f)
				events = append(events, t.read()...)
				_ = f.Close()
				t.rest = nil
			}
		}
	}
	for {
		if t.file == nil {
			f, err := os.Open(t.paths[len(t.paths)-1])
			if err != nil {
				return events // there is none yet
			}
			t.file, t.lines = f, bufio.NewReader(f)
		}
		events = append(events, t.read()...)
		if !t.replaced() {
			return events
		}
		events = append(events, t.read()...) // what came before it was
		_ = t.file.Close()
		t.file, t.rest = nil, nil
	}
}

// replaced reports whether the log goes on in another file.
func (t *eventTail[E]) replaced() bool {
	mine, err := t.file.Stat()
	now, err2 := os.Stat(t.paths[len(t.paths)-1])
	return err == nil && err2 == nil && !os.SameFile(mine, now)
}

func (t *eventTail[E]) read() (events []E) {
	for {
		line, err := t.lines.ReadBytes('\n')
		t.rest = append(t.rest, line...)
		if err != nil {
			return events
		}
		var e E
		if json.Unmarshal(bytes.TrimSpace(t.rest), &e) == nil {
			events = append(events, e)
		}
		t.rest = t.rest[:0]
	}
}
