package gitwork

import (
	"unicode/utf8"
)

// shorten cuts s to n bytes at most, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
