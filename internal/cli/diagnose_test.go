package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A sandbox's clock is its machine's, which no test may set: here the word from
// inside is another one.
func TestDiagnoseClock(t *testing.T) {
	began := time.Now()
	ended := began.Add(2 * time.Second)
	for _, test := range []struct {
		inside time.Time
		wrong  string
	}{
		{began.Add(time.Second), ""},
		{began.Add(-4 * time.Second), ""},
		{ended.Add(4 * time.Second), ""},
		{began.Add(-time.Minute), "is -1m0s from"},
		{ended.Add(time.Hour), "is 1h0m0s from"},
	} {
		d := diagnosis{Sprite: "paint"}
		d.judge(sprites.Probe{Time: test.inside, Disk: sprites.ProbeDisk{Free: 1 << 40}}, began, ended)
		switch {
		case test.wrong == "" && len(d.Problems) > 0:
			t.Errorf("%v: %+v", test.inside.Sub(began), d.Problems)
		case test.wrong != "" && (len(d.Problems) != 1 || d.Problems[0].State != stateClock || !strings.Contains(d.Problems[0].Detail, test.wrong) || d.Problems[0].Next == ""):
			t.Errorf("%v: %+v", test.inside.Sub(began), d.Problems)
		}
	}
}

func TestDiagnoseSpace(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		disk  sprites.ProbeDisk
		state string
	}{
		{sprites.ProbeDisk{Free: 1 << 30, FreeInodes: 1 << 20}, ""},
		{sprites.ProbeDisk{Free: 1 << 30}, ""}, // which does not tell of inodes
		{sprites.ProbeDisk{Free: 1 << 20}, stateDiskFull},
		{sprites.ProbeDisk{Free: 1 << 30, FreeInodes: 10}, stateDiskFull},
		{sprites.ProbeDisk{Free: 1 << 30, Error: "no space left"}, stateDiskFull},
		{sprites.ProbeDisk{Free: 1 << 30, Error: "read-only file system"}, stateProbeFailed},
	} {
		d := diagnosis{Sprite: "paint"}
		d.judge(sprites.Probe{Time: now, Disk: test.disk}, now, now)
		got := ""
		if len(d.Problems) > 0 {
			got = d.Problems[0].State
		}
		if got != test.state {
			t.Errorf("%+v: %q, want %q", test.disk, got, test.state)
		}
	}
}
