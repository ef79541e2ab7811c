package store

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"unicode/utf8"
)

// A search looks through 100,000 events. To read them all takes some 200 ms, so a part of a log
// is read once, and then known by its trigrams. These are the three bytes at each place of its
// texts, with ASCII letters in lower case. If a part lacks one of a text's trigrams, it can't
// have the text. Logs only grow, and a part that has grown is another part.
const (
	partEvents   = 1000     // of a part at most
	maxTrigrams  = 16 << 10 // bytes of a part's, 1/16 of its texts or less
	minTrigrams  = 64
	maxLogsKnown = 8 << 20 // bytes of all; more, and they are found anew
)

// logPart is a part of a job's log.
type logPart struct {
	job         string
	created     int64 // of the job: an ID may be another's one day
	first, last int64
}

// logParts are the trigrams of parts. The zero value has none.
type logParts struct {
	mu    sync.Mutex
	bytes int
	of    map[logPart]trigrams
}

func (l *logParts) get(part logPart) trigrams {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[part]
}

func (l *logParts) put(part logPart, t trigrams) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil || l.bytes+len(t) > maxLogsKnown {
		l.of, l.bytes = map[logPart]trigrams{}, 0
	}
	l.bytes += len(t) - len(l.of[part])
	l.of[part] = t
}

// mayHave reports whether a part of a log may have a text.
func (j *Jobs) mayHave(ctx context.Context, part logPart, text string) (bool, error) {
	if len(text) < 3 || !utf8.ValidString(text) || strings.ContainsRune(text, 0) { // of other texts, SQLite's LIKE has its own idea
		return true, nil
	}
	t := j.parts.get(part)
	if t == nil {
		var err error
		if t, err = part.read(ctx, j.db); err != nil {
			return false, err
		}
		j.parts.put(part, t)
	}
	return t.have(text), nil
}

// read finds the trigrams of a part, one event after the other.
func (part logPart) read(ctx context.Context, db *database) (trigrams, error) {
	rows, err := db.read.QueryContext(ctx, "SELECT doc->>'$.text' FROM job_events WHERE job = ? AND seq BETWEEN ? AND ?", part.job, part.first, part.last)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	t, size := make(trigrams, maxTrigrams), 0
	var text sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		t.add(text)
		size += len(text)
	}
	for len(t) > minTrigrams && len(t)*16 >= 2*size {
		t = t.half()
	}
	return t, rows.Err()
}

// trigrams is a set of bits, a power of two of them, by the hashes of three bytes.
type trigrams []byte

func (t trigrams) add(text []byte) {
	mask := uint32(len(t)*8 - 1)
	at := uint32(0)
	for i, c := range text {
		if at = at<<8 | uint32(lower(c)); i >= 2 {
			h := hashTrigram(at) & mask
			t[h/8] |= 1 << (h % 8)
		}
	}
}

// have reports whether all trigrams of a text may be in the set.
func (t trigrams) have(text string) bool {
	mask := uint32(len(t)*8 - 1)
	at := uint32(0)
	for i := range len(text) {
		if at = at<<8 | uint32(lower(text[i])); i >= 2 {
			if h := hashTrigram(at) & mask; t[h/8]&(1<<(h%8)) == 0 {
				return false
			}
		}
	}
	return true
}

// half is the same set in half of the bytes.
func (t trigrams) half() trigrams {
	n := len(t) / 2
	out := make(trigrams, n)
	for i := range out {
		out[i] = t[i] | t[i+n]
	}
	return out
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

func hashTrigram(at uint32) uint32 {
	h := (at & 0xffffff) * 0x9e3779b1
	return h ^ h>>15
}
