package supervise

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// logged returns the journal's events for streams that come one after the other.
func logged(t *testing.T, streams ...func(*journal)) []cove.JobEvent {
	t.Helper()
	name := filepath.Join(t.TempDir(), "events.jsonl")
	l, err := openJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range streams {
		f(l)
	}
	if err := l.sync(); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []cove.JobEvent
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var ev cove.JobEvent
		if err := dec.Decode(&ev); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, ev)
	}
}

// The log's share of the output can be used up. The agent's result, in its last line or its
// events, is logged all the same.
func TestJournalFull(t *testing.T) {
	line := strings.Repeat("x", 50<<10)
	result := strings.Repeat("y", 100<<10)
	events := logged(t,
		func(l *journal) {
			l.output(strings.NewReader(strings.Repeat(line+"\n", maxLogged/len(line)+100)+"before\n"+result+"\n"), "stdout")
		},
		func(l *journal) { l.output(strings.NewReader("one\ntwo\nthree\n"), eventStream) },
	)
	var size int
	var notices int
	var last strings.Builder
	var own []string
	for _, ev := range events {
		switch {
		case ev.Type == "notice":
			notices++
		case ev.Type == "event":
			own = append(own, ev.Text)
		case notices > 0:
			last.WriteString(ev.Text)
			if end := last.Len() == len(result); ev.Cut == end {
				t.Errorf("cut is %v after %d bytes of %d", ev.Cut, last.Len(), len(result))
			}
		default:
			size += len(ev.Text)
		}
	}
	if size < maxLogged-len(line) || size > maxLogged+len(line) {
		t.Errorf("logged %d bytes", size)
	}
	if notices != 1 {
		t.Errorf("got %d notices, want 1", notices)
	}
	if last.String() != result {
		t.Errorf("the last line has %d bytes, want %d", last.Len(), len(result))
	}
	if got := strings.Join(own, " "); got != "one two three" {
		t.Errorf("got events %q", got)
	}
}

// A line that fills the log, and the last one if it is too long, are not continued by parts of
// other lines.
func TestJournalFullInLine(t *testing.T) {
	for _, test := range []struct{ name, after, want string }{
		{"nothing more", "", ""},
		{"the line's end", "tail\n", ""},
		{"another line", "tail\nlast\n", "last"},
		{"a last line that is too long", "\nx\n" + strings.Repeat("z", maxLast+1), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := logged(t, func(l *journal) {
				l.logged = maxLogged - maxLine
				l.output(strings.NewReader(strings.Repeat("x", 3*maxLine)+test.after), "stdout")
			})
			var rest strings.Builder
			seen := false
			for i, ev := range events {
				switch {
				case seen:
					rest.WriteString(ev.Text)
				case ev.Type == "notice":
					seen = true
					if events[i-1].Cut {
						t.Error("the last event before the notice is to be continued")
					}
				}
			}
			if !seen || rest.String() != test.want {
				t.Errorf("got %.40q after the notice, want %q", rest.String(), test.want)
			}
		})
	}
}

// Only the length decides where a line is divided into parts.
func TestJournalCut(t *testing.T) {
	for _, unit := range []string{"x", "é", "€", "😀", "\x80", "a\xf0\x9f"} {
		for extra := -5; extra <= 5; extra++ {
			for _, end := range []string{"\n", ""} {
				line := strings.Repeat(unit, maxLine/len(unit)+extra)
				events := logged(t, func(l *journal) { l.output(strings.NewReader(line+end), "stdout") })
				var text strings.Builder
				for i, ev := range events {
					if ev.Cut != (i < len(events)-1) {
						t.Errorf("%q × %d: event %d of %d has cut %v", unit, len(line)/len(unit), i+1, len(events), ev.Cut)
					}
					text.WriteString(ev.Text)
				}
				if want := strings.ToValidUTF8(line, "\uFFFD"); strings.ToValidUTF8(unit, "") == unit && text.String() != want {
					t.Errorf("%q × %d: the text is another", unit, len(line)/len(unit))
				}
			}
		}
	}
}

// The time that a sprite sleeps does not count as an agent's time.
func TestRunningClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := runningClock{last: start}
	at := start
	var got time.Duration
	for _, step := range []time.Duration{time.Second, time.Second, 3 * time.Hour, time.Second} {
		at = at.Add(step)
		got += c.tick(at)
	}
	if want := 5 * time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
