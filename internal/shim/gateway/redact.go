package gateway

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// redactor overwrites secrets in an upstream's answer, in any of their spellings. The
// text keeps its length. nil redacts nothing.
//
// A sandbox may make an upstream echo a guess. It must not learn from the redaction how
// much of the guess is right. So once three quarters of a secret are there, its whole
// length is redacted, whatever follows them. That is so at the end of an answer, too. And
// once a few signs of a secret are there, the secret's whole length is held back,
// whatever follows those. A sandbox does learn about these few signs.
type redactor struct {
	patterns []*pattern
	first    [256]bool            // how a match may begin
	pairs    [1 << 16 / 64]uint64 // likewise, as a set of two bytes
}

// newRedactor redacts secrets, and texts that stand for them.
func newRedactor(secrets, texts []string, fold func(string) string) *redactor {
	r := &redactor{}
	for _, s := range secrets {
		for _, p := range spellingsOf(s) {
			r.add(p.kind, fold(p.text))
		}
	}
	for _, t := range texts {
		if t = fold(t); r.text(t) != strings.Repeat("*", len(t)) {
			r.add(plainText, t)
		}
	}
	if len(r.patterns) == 0 {
		return nil
	}
	return r
}

func (r *redactor) add(k notation, text string) {
	if text == "" {
		return
	}
	p := newPattern(k, text)
	r.patterns = append(r.patterns, p)
	p.begins(func(a, b byte) {
		r.first[a] = true
		pair := uint(a)<<8 | uint(b)
		r.pairs[pair/64] |= 1 << (pair % 64)
	})
}

// span is a part of a text.
type span struct{ from, to int }

// find returns the spans to redact, in order of their beginning, and how much of the text
// is clear. The rest can be judged only with more text. If nothing follows, all of the
// text is clear.
func (r *redactor) find(spans []span, data []byte, end end) (_ []span, clear int) {
	clear = len(data)
	for i := range data {
		if i+1 < len(data) {
			if pair := uint(data[i])<<8 | uint(data[i+1]); r.pairs[pair/64]&(1<<(pair%64)) == 0 {
				continue
			}
		} else if !r.first[data[i]] {
			continue
		}
		for _, p := range r.patterns {
			n, open := p.match(data[i:], end)
			if n > 0 {
				spans = append(spans, span{i, i + n})
			}
			if open {
				clear = min(clear, i)
			}
		}
	}
	return spans, clear
}

// overwrite redacts the part of a text that begins at from.
func overwrite(part []byte, from int, spans []span) {
	for _, s := range spans {
		for i := max(s.from-from, 0); i < min(s.to-from, len(part)); i++ {
			part[i] = '*'
		}
	}
}

// text redacts a whole text.
func (r *redactor) text(s string) string {
	if r == nil {
		return s
	}
	data := []byte(s)
	spans, _ := r.find(nil, data, finally)
	if len(spans) == 0 {
		return s
	}
	overwrite(data, 0, spans)
	return string(data)
}

// redactors are those of an upstream's answers. A field's name comes in whatever case.
type redactors struct{ body, names *redactor }

func newRedactors(secrets, texts []string) redactors {
	same := func(s string) string { return s }
	return redactors{newRedactor(secrets, texts, same), newRedactor(secrets, texts, strings.ToLower)}
}

// header redacts a header's values, and deletes fields whose name has a secret.
func (r redactors) header(header http.Header) {
	for name, values := range header {
		if lower := strings.ToLower(name); r.names.text(lower) != lower {
			delete(header, name)
			continue
		}
		for i, v := range values {
			values[i] = r.body.text(v)
		}
	}
}

// Redacted returns a writer without the secrets of a gateway's connectors, for logs of
// net/http. That quotes what an upstream sent. A secret must be in one Write.
func Redacted(g *Gateway, w io.Writer) io.Writer { return redactedLog{g, w} }

type redactedLog struct {
	g *Gateway
	w io.Writer
}

func (l redactedLog) Write(p []byte) (int, error) {
	text := string(p)
	l.g.mu.Lock()
	all := slices.Collect(maps.Values(l.g.upstream))
	l.g.mu.Unlock()
	for _, c := range all {
		text = c.hides.body.text(text)
	}
	if _, err := io.WriteString(l.w, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

const (
	redactSize = 32 << 10 // of a read
	// lookBack is how many bytes that were given on are still looked at. The first signs
	// of a secret, after which text is held back, have no more in any spelling.
	lookBack = 256
)

// redacting reads a body without secrets. It holds back only text that may become a
// secret, so that streams flow.
type redacting struct {
	io.ReadCloser
	redactor *redactor
	late     bool   // the first few signs of a secret are not held back: an answer may end with them for long
	ended    func() // called before the end is told; nil: nothing is

	data        []byte // as the upstream sent it
	given, next int    // data[given:next] can be given on
	spans       []span
	err         error
}

func (r *redacting) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.given == r.next {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.data[r.given:r.next])
	overwrite(p[:n], r.given, r.spans)
	r.given += n
	return n, nil
}

func (r *redacting) fill() {
	if drop := r.given - lookBack; drop > 0 {
		r.data = r.data[:copy(r.data, r.data[drop:])]
		r.given -= drop
	}
	if cap(r.data)-len(r.data) < redactSize {
		larger := make([]byte, len(r.data), len(r.data)+redactSize+lookBack)
		copy(larger, r.data)
		r.data = larger
	}
	n, err := r.ReadCloser.Read(r.data[len(r.data) : len(r.data)+redactSize])
	r.data = r.data[:len(r.data)+n]
	if r.err = err; err != nil && r.ended != nil {
		r.ended()
	}
	end := early
	switch {
	case err != nil: // of whatever kind
		end = finally
	case r.late:
		end = late
	}
	var clear int
	r.spans, clear = r.redactor.find(r.spans[:0], r.data, end)
	r.next = max(clear, r.given)
}
