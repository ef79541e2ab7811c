package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// printer writes what a run has to say. Every hint is completed on its way.
type printer struct {
	Streams
	global *globals
	hints  *hinter
}

// printJSON writes the one document of --json.
func (p *printer) printJSON(doc any) {
	enc := p.jsonLines()
	enc.SetIndent("", "  ")
	_ = enc.Encode(doc) // Main tells if output was lost
}

// jsonLines encodes documents to the output, one a line. In their strings, characters that
// a terminal may act on are escaped. That changes no document.
func (p *printer) jsonLines() *json.Encoder {
	enc := json.NewEncoder(harmlessJSON{p.Out})
	enc.SetEscapeHTML(false)
	return enc
}

// harmlessJSON passes JSON on, a document or a part of one a Write.
type harmlessJSON struct{ io.Writer }

func (w harmlessJSON) Write(p []byte) (int, error) {
	var b []byte
	from := 0
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRune(p[i:])
		if (r != utf8.RuneError || n != 1) && !printable.Safe(r) && r != '\r' { // outside of strings there are only \r, \n and \t
			b = append(b, p[from:i]...)
			for _, unit := range utf16.Encode([]rune{r}) {
				b = fmt.Appendf(b, `\u%04x`, unit)
			}
			from = i + n
		}
		i += n
	}
	if from == 0 {
		return w.Writer.Write(p)
	}
	if _, err := w.Writer.Write(append(b, p[from:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// text is the output for people: whatever is written to it comes out harmless.
func (p *printer) text() io.Writer { return harmless{p.Out} }

// harmless makes text safe for a terminal. Each Write must have whole characters.
type harmless struct{ io.Writer }

func (w harmless) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, printable.Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// show prints doc with --json, and otherwise calls people to print.
func (p *printer) show(doc any, people func(w io.Writer)) error {
	if p.global.json {
		p.printJSON(doc)
		return nil
	}
	people(p.text())
	return nil
}

// say writes a remark for people, unless they want none.
func (p *printer) say(format string, args ...any) {
	if !p.global.quiet && !p.global.json {
		fmt.Fprintln(p.Err, printable.Text(p.hints.full(fmt.Sprintf(format, args...))))
	}
}

// warn writes a line that people must see, even with --quiet or --json, to standard error.
func (p *printer) warn(format string, args ...any) {
	fmt.Fprintln(p.Err, printable.Text(p.hints.full(fmt.Sprintf(format, args...))))
}

// detail writes a remark that only -v shows.
func (p *printer) detail(format string, args ...any) {
	if p.global.verbose && !p.global.json {
		fmt.Fprintln(p.Err, printable.Text(p.hints.full(fmt.Sprintf(format, args...))))
	}
}

// table writes rows in columns, the first row being the head. Cells may come from
// a sandbox.
func table(w io.Writer, rows [][]string) {
	columns := 0 // of every row: one with fewer would end the columns below it
	for _, row := range rows {
		columns = max(columns, len(row))
	}
	var out strings.Builder
	tw := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, columns)
		for i, cell := range row {
			cells[i] = printable.Line(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // a builder takes everything
	for line := range strings.Lines(out.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
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

// joinLines makes one line of an error of several.
func joinLines(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, strings.TrimSuffix(line, ";"))
		}
	}
	return strings.Join(lines, "; ")
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := beneath(stream).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
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
