package gitwork

import (
	"strings"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/printable"
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

// Quote makes s one word of a POSIX shell, for commands that people copy.
func Quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+-", r)
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(printable.Name(s), "'", `'\''`) + "'"
}
