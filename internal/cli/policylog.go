package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// eventLine is an event, and how often it came.
type eventLine struct {
	sprites.NetworkEvent
	count int
	last  time.Time
}

// eventLines are events in the order of their arrival. Equal events are one line, in the place
// of the first.
type eventLines struct {
	lines []*eventLine
	by    map[string]*eventLine
}

func (l *eventLines) add(e sprites.NetworkEvent) {
	key := fmt.Sprintf("%t %q %q %q", e.Allowed, e.Protocol, netrules.Target(e), e.Rule)
	line := l.by[key]
	if line == nil {
		if l.by == nil {
			l.by = map[string]*eventLine{}
		}
		line = &eventLine{NetworkEvent: e, count: 1, last: e.Time}
		l.lines, l.by[key] = append(l.lines, line), line
		return
	}
	line.count, line.last = line.count+1, e.Time
	line.Suppressed += e.Suppressed
	if e.Process != nil { // the sandbox names it for some events only
		line.Process = e.Process
	}
}

func printEvent(w io.Writer, e *eventLine) {
	if e.Suppressed > 0 {
		fmt.Fprintf(w, "… %d more refusals were not recorded\n", e.Suppressed)
	}
	verdict := "refused"
	if e.Allowed {
		verdict = "allowed"
	}
	why := "by " + printable.Line(e.Rule)
	if what, ok := policy.Describe(e.Rule); ok && !e.Allowed { // no rule of a person's, but what the address is
		why = "as " + what
	}
	fmt.Fprintf(w, "%s  %s  %s  %s", e.Time.Local().Format(time.DateTime), verdict, printable.Line(netrules.Target(e.NetworkEvent)), why)
	if p := e.Process; p != nil {
		fmt.Fprintf(w, ", to %s (process %d)", printable.Line(p.Name), p.PID)
	}
	if e.count > 1 {
		fmt.Fprintf(w, ", %d times until %s", e.count, e.last.Local().Format(time.DateTime))
	}
	fmt.Fprintln(w)
	if e.Hint != "" {
		fmt.Fprintf(w, "    %s\n", printable.Line(e.Hint))
	}
}
