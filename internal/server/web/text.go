package web

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Texts of sprites and agents are hostile. html/template takes their markup away; these functions
// take away the rest: characters that act on what stands beside them, and length.
const (
	maxLine = 500       // bytes of a text that stands in one line
	maxText = 256 << 10 // of one that is shown whole
)

// line makes a text one line, short enough to stand beside others.
func line(s string) string {
	s = strings.Join(strings.Fields(plain(s)), " ")
	return cut(s, maxLine)
}

// text makes a text harmless, and leaves its lines.
func text(s string) string { return cut(plain(s), maxText) }

// cut shortens a text at a rune's boundary, and says so by an ellipsis.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// plain takes away what is no text: control characters but newlines and tabs, and those that
// turn the direction of others or can't be seen. Escape sequences of terminals lose their first
// character by it, and are plain letters.
func plain(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if unseen(r) {
			return -1
		}
		return r
	}, s)
}

// unseen reports whether plain takes a character away.
func unseen(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Of a text that is edited, no character is lost: those that plain takes away have names.
const (
	nameBegins = "⟦U+"
	nameEnds   = "⟧"
)

// withNames writes the names of characters that can't be seen in their places. ok is false if the text has
// something that looks like such a name.
func withNames(s string) (named string, ok bool) {
	if strings.Contains(s, nameBegins) {
		return s, false
	}
	var b strings.Builder
	for _, r := range s {
		if unseen(r) {
			fmt.Fprintf(&b, "%s%04X%s", nameBegins, r, nameEnds)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String(), true
}

// withoutNames puts the characters back whose names withNames has written.
func withoutNames(s string) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, nameBegins)
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		hex, rest, ends := strings.Cut(after, nameEnds)
		if n, err := strconv.ParseUint(hex, 16, 32); ends && err == nil && len(hex) <= 6 && n <= unicode.MaxRune && unseen(rune(n)) {
			b.WriteRune(rune(n))
			s = rest
			continue
		}
		b.WriteString(nameBegins)
		s = after
	}
}

// timeTag is a time as pages show it: how long ago, with the time itself as the title. The
// browser keeps it true.
func timeTag(t time.Time) template.HTML {
	if t.IsZero() {
		return ""
	}
	t = t.UTC()
	stamp := t.Format(time.RFC3339)
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, stamp, t.Format("2006-01-02 15:04:05 UTC"), ago(time.Since(t)))) //nolint:gosec // digits
}

// spanTag is how long something has run that still does. The browser lets it go on, as long as it is
// connected; the end comes as a span that stands still.
func spanTag(d time.Duration) template.HTML {
	return template.HTML(fmt.Sprintf(`<span data-ran="%d">%s</span>`, d.Milliseconds(), formatDuration(d))) //nolint:gosec // digits
}

// word is a state as people read it: the API's own word. Its texts with more than the word are those
// of cove.Job.StateText and sprites.Info.StateText, which the CLI has, too.
func word(state any) string { return line(strings.ReplaceAll(fmt.Sprint(state), "_", " ")) }

// ago says how long ago something was.
func ago(d time.Duration) string {
	if d < 0 {
		return "in " + formatDuration(-d)
	}
	if d < time.Second {
		return "now"
	}
	return formatDuration(d) + " ago"
}

// formatDuration writes a duration in its largest unit.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// formatBytes writes a size with a unit, as the CLI does.
func formatBytes(n int64) string { return printable.Bytes(n) }
