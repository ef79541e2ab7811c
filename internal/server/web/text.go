package web

import (
	"fmt"
	"html/template"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// Texts of sprites and agents are hostile. html/template takes their markup away. These
// functions take away the rest: characters that act on what stands beside them, and length. In
// prose such characters vanish without a mark: many sentences have an emoji's selector or a
// soft hyphen, and nothing is built from a sentence. In what is reviewed, and comes with a
// pull, they have names.
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

// wholeText is a text of a file, or of a command. Nothing in it is removed, and characters
// that can't be seen have names.
func wholeText(s string) string {
	return withMarks(cut(strings.ReplaceAll(s, "\r\n", "\n"), maxText), unseen)
}

// wholeRow is wholeText for one line of a file, without its line feed: a carriage return at
// its end is named, too.
func wholeRow(s string) string { return withMarks(cut(s, maxText), unseen) }

// wholeLine is the name of a file, or a path, in one line. It marks every character that could
// make it look like another name.
func wholeLine(s string) string {
	return cut(withMarks(s, func(r rune) bool {
		return unseen(r) || r == '\n' || r == '\t' || r != ' ' && unicode.Is(unicode.Z, r)
	}), maxLine)
}

// screenText is a text on a terminal's screen. Controls have had their effect there, and
// characters that compose emoji are removed. Other characters that can't be seen have names,
// since a screen shows files, too.
func screenText(s string) string {
	const joiner, selector = '\u200d', '\ufe0f'
	return plain(withMarks(s, func(r rune) bool {
		return unseen(r) && !unicode.IsControl(r) && r != joiner && r != selector && r != printable.Blank
	}))
}

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

// plain removes characters that are not text: control characters except newlines and tabs, and
// those that turn the direction of others or can't be seen. Terminals' escape sequences lose
// their first character, and become plain letters.
func plain(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.Map(func(r rune) rune {
		switch {
		case r == printable.Blank: // it is as wide as a letter, and parts those of a picture
			return ' '
		case unseen(r):
			return -1
		}
		return r
	}, s)
}

// unseen reports whether plain takes a character away.
func unseen(r rune) bool { return printable.Unseen(r) }

// A text that is edited or reviewed loses no character: those that plain removes have names.
const (
	nameBegins = printable.NameBegins
	nameEnds   = printable.NameEnds
)

// withNames replaces characters that can't be seen by their names. If the text has something
// that looks like such a name, ok is false, and named is s.
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

// withMarks replaces hidden characters by their names, to be read. If many of one kind follow
// each other, it writes their number, so that they don't push away the text after them.
func withMarks(s string, hidden func(rune) bool) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		char := s[:size]
		s = s[size:]
		if !hidden(r) {
			b.WriteString(char)
			continue
		}
		n := 1
		for ; strings.HasPrefix(s, char); n++ {
			s = s[size:]
		}
		fmt.Fprintf(&b, "%s%04X", nameBegins, r)
		if n > 1 {
			fmt.Fprintf(&b, " × %d", n)
		}
		b.WriteString(nameEnds)
	}
	return b.String()
}

// withoutNames undoes withNames: it replaces the names by their characters.
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

// word is a state as people read it: the API's own word. Longer texts come from
// cove.Job.StateText and sprites.Info.StateText, as in the CLI.
func word(state any) string { return line(strings.ReplaceAll(fmt.Sprint(state), "_", " ")) }

// ago says how long ago something was.
func ago(d time.Duration) string {
	if d < 0 {
		if d < -48*time.Hour {
			d = d.Round(time.Hour) // a second after it was chosen, it is as long still
		}
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

// count is so many of a thing, for a template: its numbers are of several types.
func count(n any, thing string) (string, error) {
	v := reflect.ValueOf(n)
	if !v.CanInt() {
		return "", fmt.Errorf("count: %v is not a number", n)
	}
	return printable.Count(v.Int(), thing), nil
}

// formatBytes writes a size with a unit, as the CLI does.
func formatBytes(n int64) string { return printable.Bytes(n) }

// command is one of cove's, in a hint.
var command = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("(^|[:;,(] ?|`)cove [a-z]") })

// inSecrets reports whether a hint is to store a secret, which the settings can do, too.
func inSecrets(hint string) bool {
	return strings.HasPrefix(hint, "cove secret set ") && !strings.ContainsAny(hint, ";-,")
}

// inTerminal reports whether a hint has a command, which a page can't run, and does not say where to type it.
func inTerminal(hint string) bool {
	return command().MatchString(hint) && !strings.Contains(hint, "terminal")
}
