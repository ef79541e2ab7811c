package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/cove-dev/cove/internal/gitwork"
)

// printJSON writes the one document of --json.
func (a *app) printJSON(doc any) {
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		fmt.Fprintf(a.Err, "cove: write the output: %v\n", err)
	}
}

// show prints doc with --json, and otherwise what people does.
func (a *app) show(doc any, people func(w io.Writer)) error {
	if a.global.json {
		a.printJSON(doc)
		return nil
	}
	people(a.Out)
	return nil
}

// say writes a remark for people, unless they want none.
func (a *app) say(format string, args ...any) {
	if !a.global.quiet && !a.global.json {
		fmt.Fprintln(a.Err, sanitize(fmt.Sprintf(format, args...)))
	}
}

// detail writes a remark that only -v shows.
func (a *app) detail(format string, args ...any) {
	if a.global.verbose && !a.global.json {
		fmt.Fprintln(a.Err, sanitize(fmt.Sprintf(format, args...)))
	}
}

// table writes rows in columns, the first row being the head. Cells may come from
// a sandbox.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = sanitizeLine(cell)
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = tw.Flush() // its only error is w's, which the next write meets too
}

// fields writes names and values, leaving out those without a value.
func fields(w io.Writer, pairs ...string) {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i] + ":", pairs[i+1]})
		}
	}
	table(w, rows)
}

// sanitize makes text that may come from a sandbox or a server fit for a
// terminal: control characters but newline and tab, and what changes the
// direction of writing, become visible.
func sanitize(s string) string {
	return gitwork.Escape(strings.ReplaceAll(s, "\r\n", "\n"), func(r rune) bool { return !unsafeRune(r) })
}

// unsafeRune reports whether a terminal may do something else with r than show it.
func unsafeRune(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// sanitizeLine is sanitize for what must stay on one line, in one column.
func sanitizeLine(s string) string { return oneLine.Replace(sanitize(s)) }

var oneLine = strings.NewReplacer("\n", "\\n", "\t", " ")

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// byteSize is n for people.
func byteSize(n int64) string {
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

// ago is a time for people, seen from now.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(now.Sub(t)) + " ago"
}

// span is a duration for people, in its largest unit.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
