// Package printable makes untrusted text from a sandbox, a server or a repository fit for a
// terminal. Characters that a terminal would act on, instead of showing them, become visible.
// Invalid bytes and ASCII's controls get \x notation; other characters get their names, such
// as ⟦U+202E⟧. The web page uses Unseen, too, to find characters that are not seen.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name is for text that must be read character by character, such as the name of a file or of
// a branch. It escapes control characters, line ends, white space other than a blank, and
// bytes that are not UTF-8. It also escapes characters that have no width or change the
// direction of text.
func Name(s string) string {
	return escape(s, func(r rune) bool { return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Z, r) && !Unseen(r) })
}

// Text is for texts of several lines: line ends and tabs stay, and \r\n becomes \n.
func Text(s string) string {
	return escape(strings.ReplaceAll(s, "\r\n", "\n"), Safe)
}

// Safe reports whether a terminal only shows r. Line ends, tabs and the selector emoji are
// safe, too.
func Safe(r rune) bool { return r == '\n' || r == '\t' || r == emoji || !Unseen(r) }

// emoji is the selector that shows the symbol before it in colours; many sentences have it.
const emoji = '\ufe0f'

// Blank is the empty pattern of Braille: as wide as a letter, and Unseen.
const Blank = '\u2800'

// Unseen reports whether a character acts on others, or shows nothing. White space with a place of its own (blanks,
// tabs and line feeds) does not count.
func Unseen(r rune) bool {
	if r < utf8.RuneSelf {
		return r < ' ' && r != '\n' && r != '\t' || r == '\x7f'
	}
	// Cf has the controls of direction, joiners and spaces of no width, and tags.
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Bidi_Control, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) || r == Blank
}

// The beginning and the end of a character's name, with its number in hexadecimal digits between them.
const (
	NameBegins = "⟦U+"
	NameEnds   = "⟧"
)

// Line is Text for a text that must stay on one line, in one column.
func Line(s string) string { return oneLine.Replace(Text(s)) }

var oneLine = strings.NewReplacer("\n", "\\n", "\t", " ")

// Lines is Name for each line of a text, as one line.
func Lines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, line := range lines {
		lines[i] = Name(strings.TrimRight(line, "\r"))
	}
	return strings.Join(lines, "; ")
}

// Word is Name as one word of a POSIX shell, in quotes if it needs them: for commands that
// people copy.
func Word(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(Name(s), "'", `'\''`) + "'"
}

// escape writes bytes that are not UTF-8, and characters that shown refuses, in \x notation or
// by name.
func escape(s string, shown func(rune) bool) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !shown(r) }) < 0 {
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
			fmt.Fprintf(&b, "%s%04X%s", NameBegins, r, NameEnds)
		}
		i += n
	}
	return b.String()
}

// Bytes is a number of bytes for people.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit && i < 4; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[i])
}

// Count returns a number with the name of a thing, which gets an s in the plural.
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
