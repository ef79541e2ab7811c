package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// blot overwrites what is hidden, wherever it begins before limit. What it writes
// is as long, so that no length that was told is wrong.
func blot(data []byte, hidden [][]byte, limit int) {
	for _, h := range hidden {
		for from := 0; from < limit; {
			i := bytes.Index(data[from:], h)
			if i < 0 || from+i >= limit {
				break
			}
			from += i
			for j := range h {
				data[from+j] = '*'
			}
			from += len(h)
		}
	}
}

// blotHeader blots what is hidden out of a header's values, and takes away fields whose
// name has any of it, in whatever case. A value that has it only when it is unescaped is
// blotted as a whole.
func blotHeader(header http.Header, hidden [][]byte) {
	for name, values := range header {
		if contains(strings.ToLower(name), hidden, bytes.ToLower) {
			delete(header, name)
			continue
		}
		for i, v := range values {
			b := []byte(v)
			blot(b, hidden, len(b))
			if plain, err := url.PathUnescape(string(b)); err == nil && contains(plain, hidden, nil) {
				b = bytes.Repeat([]byte("*"), len(b))
			}
			header[name][i] = string(b)
		}
	}
}

// contains reports whether a text has any of what is hidden, as form, if it is not nil,
// writes that.
func contains(text string, hidden [][]byte, form func([]byte) []byte) bool {
	return slices.ContainsFunc(hidden, func(h []byte) bool {
		if form != nil {
			h = form(h)
		}
		return bytes.Contains([]byte(text), h)
	})
}

// leastPiece is the shortest beginning of something hidden that is blotted at the end of
// a body: a shorter one may well be something else.
const leastPiece = 4

// blotter reads a body without what is hidden. It holds back only what may be the
// beginning of that, until it is known, so that streams flow. If the body ends there,
// what was held back is blotted.
type blotter struct {
	io.ReadCloser
	hidden [][]byte
	least  int    // what is shorter is not held back
	ended  func() // called before the end is told

	buf   []byte
	held  []byte // what data is of
	data  []byte // read: the first ready bytes can be given on
	ready int
	err   error
}

const blotSize = 32 << 10

func (b *blotter) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for b.ready == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.fill()
	}
	n := copy(p, b.data[:b.ready])
	b.data, b.ready = b.data[n:], b.ready-n
	return n, nil
}

func (b *blotter) fill() {
	if b.buf == nil {
		b.buf = make([]byte, blotSize)
	}
	n, err := b.ReadCloser.Read(b.buf)
	b.held = append(append(b.held[:0], b.data...), b.buf[:n]...)
	b.data = b.held
	b.ready = len(b.data)
	tail := unclear(b.data, b.hidden)
	switch b.err = err; {
	case err == nil && tail >= b.least:
		b.ready -= tail
	case err != nil && b.ended != nil:
		b.ended()
	}
	blot(b.data, b.hidden, b.ready)
	if err != nil && tail >= leastPiece { // an error ends it as well
		copy(b.data[len(b.data)-tail:], bytes.Repeat([]byte("*"), tail))
	}
}

// unclear returns how many of the last bytes may be the beginning of something
// hidden.
func unclear(data []byte, hidden [][]byte) int {
	most := 0
	for _, h := range hidden {
		for n := min(len(h)-1, len(data)); n > most; n-- {
			if bytes.HasSuffix(data, h[:n]) {
				most = n
			}
		}
	}
	return most
}
