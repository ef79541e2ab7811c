package web

import (
	"fmt"
	"html/template"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r):
			return -1
		case unicode.Is(unicode.Bidi_Control, r), unicode.Is(unicode.Cf, r), r == '\u2028', r == '\u2029':
			return -1
		}
		return r
	}, s)
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
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

// formatBytes writes a size with a unit.
func formatBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f %cB", f, units[i])
}
