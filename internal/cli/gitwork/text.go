package gitwork

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes s safe to show in a terminal: control characters, escapes,
// characters that change the direction of text or have no width, and what is not
// UTF-8 become \x or \u notation.
func Printable(s string) string { return Escape(s, showable) }

// Escape writes what is not UTF-8, and what shown does not take, in \x or \u notation.
func Escape(s string, shown func(rune) bool) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !shown(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case shown(r):
			b.WriteRune(r)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

func showable(r rune) bool { return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Z, r) }

// printableLines is Printable for each line, for the messages of git itself.
func printableLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, line := range lines {
		lines[i] = Printable(strings.TrimRight(line, "\r"))
	}
	return strings.Join(lines, "; ")
}

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
	return "'" + strings.ReplaceAll(Printable(s), "'", `'\''`) + "'"
}
