// Package mask replaces secrets in the output of programs by asterisks. It finds them as they
// are, line by line, and as JSON, URLs and base64 write them (forms.go). It does not find them
// in another spelling, or if a line break divides them. A value of more than 4 KiB is found
// only as it is and in JSON. Secrets that overlap leave nothing of either.
package mask

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"slices"
	"strings"
)

// shortest is the length of the shortest text that is masked: a shorter one is in anything.
const shortest = 8

// asterisks stand for a secret.
const asterisks = "***"

// Mask knows secrets. The zero value knows none. A Mask does not change, and may be used from
// any goroutine.
type Mask struct {
	pairs *[1 << 16 / 64]uint64 // a bit for each two bytes with which one of texts begins; nil: there is none
	begun map[uint64][]string   // texts by their first 8 bytes; the longest first
	texts []string              // in order

	longest int // of texts
}

// New is a mask for secrets and their lines, in all their forms.
func New(values []string) Mask {
	var m Mask
	for _, value := range values {
		for _, text := range append(strings.Split(value, "\n"), value) {
			if text = strings.TrimSpace(text); len(text) >= shortest {
				m.texts = append(m.texts, forms(text, len(value) > large)...)
			}
		}
	}
	slices.Sort(m.texts)
	m.texts = slices.Compact(m.texts)
	if len(m.texts) == 0 {
		return m
	}
	for _, text := range m.texts {
		m.longest = max(m.longest, len(text))
	}
	m.pairs, m.begun = new([1 << 16 / 64]uint64), map[uint64][]string{}
	for _, text := range m.texts {
		pair := uint16(text[0])<<8 | uint16(text[1])
		m.pairs[pair/64] |= 1 << (pair % 64)
		m.begun[first(text)] = append(m.begun[first(text)], text)
	}
	for _, same := range m.begun {
		slices.SortFunc(same, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	}
	return m
}

// first is the first 8 bytes of a text that is not shorter.
func first(text string) uint64 { return binary.LittleEndian.Uint64([]byte(text[:shortest])) }

// next returns the first place in b, from i on, where a secret begins, and its length. For several secrets that
// overlap, it is the length of all. Unless b is the whole, more says that a secret, or a longer one, may have begun
// there; then length is 0. Without either, at is the end of b.
func (m Mask) next(b []byte, i int, whole bool) (at, length int, more bool) {
	if m.pairs == nil {
		return len(b), 0, false
	}
	for at = i; at < len(b); at++ {
		if at+shortest <= len(b) {
			if pair := uint16(b[at])<<8 | uint16(b[at+1]); m.pairs[pair/64]&(1<<(pair%64)) == 0 {
				continue
			}
		}
		if length, more = m.begins(b, at, whole); length > 0 || more {
			break
		}
	}
	if length == 0 {
		return at, 0, more
	}
	// It goes back from the end, because the secret that begins last reaches furthest. So in a text that repeats
	// itself it compares few.
	for seen, end := at, at+length; seen+1 < end; seen, end = end-1, at+length {
		for k := end - 1; k > seen && k+m.longest > at+length; k-- {
			n, open := m.begins(b, k, whole)
			if open && length <= maxRun*m.longest { // beyond that nothing is kept back for it
				return at, 0, true
			}
			length = max(length, k+n-at)
		}
	}
	return at, length, false
}

// maxRun bounds secrets that overlap without an end, in multiples of the longest.
const maxRun = 4

// begins is the length of the longest secret that begins at a place of b; 0: there is none. If more may follow b,
// more is set if a secret, or a longer one, may have begun there.
func (m Mask) begins(b []byte, i int, whole bool) (length int, more bool) {
	rest := b[i:]
	if len(rest) < shortest {
		if whole {
			return 0, false
		}
		k, _ := slices.BinarySearchFunc(m.texts, rest, func(text string, rest []byte) int { return cmp.Compare(text, string(rest)) })
		return 0, k < len(m.texts) && strings.HasPrefix(m.texts[k], string(rest))
	}
	for _, text := range m.begun[binary.LittleEndian.Uint64(rest)] {
		switch {
		case len(text) <= len(rest) && same(text, rest[:len(text)]):
			return len(text), false
		case !whole && len(text) > len(rest) && same(text[:len(rest)], rest):
			return 0, true
		}
	}
	return 0, false
}

// same reports whether a text is b; both have 8 bytes or more. It compares the last 8 bytes first, so text that only
// begins like a long secret costs little.
func same(text string, b []byte) bool {
	n := len(text) - shortest
	return text[n:] == string(b[n:]) && text[:n] == string(b[:n])
}

// hide appends b without its secrets to out. If b is not the whole, it stops where a secret may have begun. done is
// how many bytes of b it has handled.
func (m Mask) hide(out, b []byte, whole bool) (hidden []byte, done int) {
	for done < len(b) {
		at, length, more := m.next(b, done, whole)
		out = append(out, b[done:at]...)
		done = at + length
		if length > 0 {
			out = append(out, asterisks...)
		}
		if more {
			break
		}
	}
	return out, done
}

// Hide is a text without the secrets.
func (m Mask) Hide(text string) string {
	if m.pairs == nil {
		return text
	}
	b := []byte(text)
	if at, _, _ := m.next(b, 0, true); at == len(b) {
		return text
	}
	out, _ := m.hide(make([]byte, 0, len(b)), b, true)
	return string(out)
}

// Begun is how many bytes at the end of b may be the beginning of a secret.
func (m Mask) Begun(b []byte) int {
	for i := 0; i < len(b); {
		at, length, more := m.next(b, i, false)
		if more {
			return len(b) - at
		}
		i = at + length
	}
	return 0
}

// Writer writes its input to W without the secrets, also those that come in parts. It keeps
// back what may be the beginning of a secret, until more comes or Close. It is for one
// goroutine.
type Writer struct {
	W    io.Writer
	Mask Mask

	held []byte
}

// Write takes all of p, or returns W's error.
func (w *Writer) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	out, done := w.Mask.hide(make([]byte, 0, len(w.held)), w.held, false)
	w.held = bytes.Clone(w.held[done:])
	if _, err := w.W.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes what was kept back. It does not close W.
func (w *Writer) Close() error {
	out, _ := w.Mask.hide(nil, w.held, true)
	w.held = nil
	_, err := w.W.Write(out)
	return err
}
