// Package mask puts asterisks in the place of secrets in what programs say. It finds them as
// they are, line by line, and as JSON has them; not in another spelling.
package mask

import (
	"bytes"
	"cmp"
	"encoding/json"
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
	secrets []string // the longest first
	all     *strings.Replacer
}

// New is a mask for secrets, their lines, and both as JSON has them.
func New(values []string) Mask {
	var m Mask
	for _, value := range values {
		for _, text := range append(strings.Split(value, "\n"), value) {
			text = strings.TrimSpace(text)
			quoted, err := json.Marshal(text)
			if err != nil || len(text) < shortest {
				continue
			}
			m.secrets = append(m.secrets, text, string(quoted[1:len(quoted)-1]))
		}
	}
	slices.SortFunc(m.secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	m.secrets = slices.Compact(m.secrets)
	var pairs []string
	for _, secret := range m.secrets {
		pairs = append(pairs, secret, asterisks)
	}
	m.all = strings.NewReplacer(pairs...)
	return m
}

// Hide is a text without the secrets.
func (m Mask) Hide(text string) string {
	if m.all == nil {
		return text
	}
	return m.all.Replace(text)
}

// Begun is how many bytes at the end of b may be the beginning of a secret.
func (m Mask) Begun(b []byte) int {
	longest := 0
	for _, secret := range m.secrets {
		for n := min(len(secret)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, []byte(secret[:n])) {
				longest = n
			}
		}
	}
	return longest
}

// Writer writes what it is given to W without the secrets, also those that come in parts. It
// keeps back what may be the beginning of one, until Close. It is for one goroutine.
type Writer struct {
	W    io.Writer
	Mask Mask

	held []byte
}

// Write takes all of p, or returns W's error.
func (w *Writer) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	whole := len(w.held) - w.Mask.Begun(w.held)
	if _, err := io.WriteString(w.W, w.Mask.Hide(string(w.held[:whole]))); err != nil {
		return 0, err
	}
	w.held = slices.Clone(w.held[whole:])
	return len(p), nil
}

// Close writes what was kept back. It does not close W.
func (w *Writer) Close() error {
	_, err := io.WriteString(w.W, w.Mask.Hide(string(w.held)))
	w.held = nil
	return err
}
