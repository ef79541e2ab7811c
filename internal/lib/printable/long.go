package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a run of white space that Blanks leaves as it is.
const (
	maxBlanks   = 32 // characters
	maxNewlines = 4
)

// Blanks replaces a long run of white space by its length, so that the run does not push away the text after it.
func Blanks(s string) string {
	var b strings.Builder
	for s != "" {
		i := strings.IndexFunc(s, unicode.IsSpace)
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		n := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsSpace(r) })
		if n < 0 {
			n = len(s)
		}
		if count := utf8.RuneCountInString(s[:n]); count > maxBlanks || strings.Count(s[:n], "\n") > maxNewlines {
			fmt.Fprintf(&b, " ⟦%d blanks%s ", count, NameEnds)
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String() + s
}

// Middle shortens a text that is longer than limit bytes to its beginning and its end. A mark between them gives the
// number of bytes left out. That number is 0 if the text is whole.
func Middle(s string, limit int) (short string, left int) {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s, 0
	}
	head, tail := limit/2, len(s)-limit/2
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	left = tail - head
	return fmt.Sprintf("%s ⟦%d bytes are left out%s %s", s[:head], left, NameEnds, s[tail:]), left
}
