package gateway

import (
	"bytes"
	"io"
	"net/http"
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

// blotHeader blots what is hidden out of a header's values.
func blotHeader(header http.Header, hidden [][]byte) {
	for name, values := range header {
		for i, v := range values {
			b := []byte(v)
			blot(b, hidden, len(b))
			header[name][i] = string(b)
		}
	}
}

// blotter reads a body without what is hidden. It holds back only what may be the
// beginning of that, until it is known, so that streams flow.
type blotter struct {
	io.ReadCloser
	hidden [][]byte
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
	if b.err = err; err == nil {
		b.ready -= unclear(b.data, b.hidden)
	} else if b.ended != nil {
		b.ended()
	}
	blot(b.data, b.hidden, b.ready)
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
