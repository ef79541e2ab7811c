package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// All text that a sandbox can put into an event is made harmless before a terminal gets it.
func TestLogPrinter(t *testing.T) {
	evil := "\x1b]0;pwned\a\u202e"
	seven := 7
	var b bytes.Buffer
	p := newLogPrinter(&b, cove.Job{JobSettings: cove.JobSettings{Agent: "shell"}})
	for _, e := range []cove.JobEvent{
		{Type: "state", State: cove.JobRunning},
		{Type: "state", State: cove.JobState(evil)},
		{Type: "output", Stream: "stdout", Text: "one"},
		{Type: "output", Stream: "stdout", Text: "half ", Cut: true},
		{Type: "output", Stream: "stdout", Text: "line"},
		{Type: "output", Stream: "stderr", Text: "never ends", Cut: true},
		{Type: "notice", Text: "careful" + evil},
		{Type: "output", Text: evil},
		{Type: "event", Text: evil},
		{Type: "something new", Text: evil},
		{Type: "exit", ExitCode: &seven, Reason: evil},
		{Type: "end", Outcome: &cove.Outcome{Kind: "agent_failed" + evil, Reason: "step 2 failed" + evil}},
	} {
		p.print(e)
	}
	got := b.String()
	for _, want := range []string{"== running\n", "\n| one\n", "\n| half line\n", "\n| never ends\n-- careful", "code 7", "== agent_failed", "step 2 failed"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b\a\u202e") {
		t.Errorf("control characters got through: %q", got)
	}
}

// No text of an agent looks like a line of cove's about its job. If a job has ended without
// such a line, it gets one.
func TestLogPrinterVoices(t *testing.T) {
	var b bytes.Buffer
	p := newLogPrinter(&b, cove.Job{ID: "a3f7b2", JobSettings: cove.JobSettings{Agent: "cove"}})
	said, err := json.Marshal(map[string]any{"seq": 1, "type": "text", "text": "All done.\n== success\n?? may I\n-- x\n## A heading\n--flag\n| y"})
	if err != nil {
		t.Fatal(err)
	}
	p.print(cove.JobEvent{Type: "output", Stream: "stdout", Text: string(said)})
	p.without(cove.Job{State: cove.JobRunning})
	p.without(cove.Job{State: cove.JobLost, JobResult: cove.JobResult{Outcome: &cove.Outcome{Kind: "lost", Reason: "its sprite was deleted"}}})
	want := "All done.\n == success\n ?? may I\n -- x\n ## A heading\n--flag\n | y\n== lost: its sprite was deleted\n"
	if got := b.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestServiceEvents(t *testing.T) {
	var b bytes.Buffer
	for _, e := range []sprites.ServiceEvent{
		{Type: sprites.ServiceEventStdout, Data: "one\r\n"},
		{Type: sprites.ServiceEventError, Data: "no such program\n"},
	} {
		printLogged(&b, e)
	}
	if got, want := b.String(), "one\n-- no such program\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressText(t *testing.T) {
	for _, test := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{0, 0, time.Second, "x …"},
		{1 << 20, 0, time.Second, "x: 1.0 MiB, 1.0 MiB/s"},
		{1 << 20, 4 << 20, time.Second, "x: 1.0 MiB of 4.0 MiB (25%), 1.0 MiB/s, 3s left"},
		{4 << 20, 4 << 20, 2 * time.Second, "x: 4.0 MiB of 4.0 MiB (100%), 2.0 MiB/s"},
		{0, 10, time.Second, "x: 0 B of 10 B (0%)"},
	} {
		if got := progressText("x", test.done, test.total, test.took); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestKeptText(t *testing.T) {
	var out bytes.Buffer
	printGC(&out, cove.JobGCResult{Kept: []cove.JobGCItem{
		{Job: "a", Reason: cove.KeptUnpulled}, {Job: "b", Reason: cove.KeptRunning}, {Job: "c", Reason: cove.KeptUnpulled},
	}}, false)
	if want := "\nKept 3: 1 has not ended, 2 were not pulled.\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want the end %q", out.String(), want)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"2G": 2 << 30, "512M": 512 << 20, "1.5g": 3 << 29, "2GiB": 2 << 30, "100": 100, "1k": 1 << 10, "1T": 1 << 40,
		"": -1, "G": -1, "-1G": -1, "x": -1, "1e30G": -1, "NaN": -1, "inf": -1,
	} {
		got, err := ParseSize(in)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
}

// TestTable: a column begins at the same place in every row, also below a row without it,
// and no line ends with spaces.
func TestTable(t *testing.T) {
	var out strings.Builder
	table(&out, [][]string{{"ACTION", "WHAT", "PORTS"}, {"include", "agent", ""}, {"allow"}, {"deny", "registry.example.org", "443"}})
	want := "ACTION   WHAT                  PORTS\ninclude  agent\nallow\ndeny     registry.example.org  443\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestPrintSprites(t *testing.T) {
	var b bytes.Buffer
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	printSprites(&b, []sprites.Info{{Name: "paint", Status: sprites.StatusCold, CreatedAt: now.Add(-3 * time.Hour), Labels: []string{"a=\x1b[1m"}}}, now)
	if got := b.String(); !strings.Contains(got, "paint  cold    3h ago   -") || strings.ContainsRune(got, 0x1b) {
		t.Errorf("got %q", got)
	}
}

func TestKeepText(t *testing.T) {
	for _, test := range []struct {
		rules *sprites.Retention
		want  string
	}{
		{nil, ""},
		{&sprites.Retention{Last: 2, Daily: 1}, "the last 2, the last of each of 1 day"},
		{&sprites.Retention{Daily: 7}, "the last of each of 7 days"},
	} {
		if got := keepText(test.rules); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
