package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Equal events are one line, with their number; another port, rule, protocol or verdict is
// another line. No refusal that was not kept is lost.
func TestEventLines(t *testing.T) {
	addr := netip.MustParseAddr("10.1.2.3")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	event := func(port int, edit func(*sprites.NetworkEvent)) sprites.NetworkEvent {
		e := sprites.NetworkEvent{Time: at, Protocol: "tcp", Address: &addr, Port: port, Rule: "private", Hint: "allow it"}
		at = at.Add(time.Minute)
		if edit != nil {
			edit(&e)
		}
		return e
	}
	var l eventLines
	for _, e := range []sprites.NetworkEvent{
		event(80, nil),
		event(443, nil),
		event(80, func(e *sprites.NetworkEvent) { e.Process = &sprites.Process{Name: "curl", PID: 7} }),
		event(80, func(e *sprites.NetworkEvent) { e.Suppressed = 4 }),
		event(80, func(e *sprites.NetworkEvent) { e.Allowed, e.Hint = true, "" }),
		event(80, func(e *sprites.NetworkEvent) { e.Protocol = "udp" }),
		event(80, func(e *sprites.NetworkEvent) { e.Rule = "deny 10.0.0.0/8" }),
	} {
		l.add(e)
	}
	var got strings.Builder
	for _, line := range l.lines {
		printEvent(&got, line)
	}
	want := `… 4 more refusals were not recorded
2026-01-02 03:04:05  refused  10.1.2.3:80  as a private address, to curl (process 7), 3 times until 2026-01-02 03:07:05
    allow it
2026-01-02 03:05:05  refused  10.1.2.3:443  as a private address
    allow it
2026-01-02 03:08:05  allowed  10.1.2.3:80  by private
2026-01-02 03:09:05  refused  10.1.2.3:80/udp  as a private address
    allow it
2026-01-02 03:10:05  refused  10.1.2.3:80  by deny 10.0.0.0/8
    allow it
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}
