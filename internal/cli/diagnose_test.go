package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
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
		{began.Add(-time.Minute), "differs by -1m0s from"},
		{ended.Add(time.Hour), "differs by 1h0m0s from"},
	} {
		d := diagnosis{Sprite: "paint"}
		d.judge(cove.Probe{Time: test.inside, Disk: cove.ProbeDisk{Free: 1 << 40}}, began, ended)
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
		disk  cove.ProbeDisk
		state string
	}{
		{cove.ProbeDisk{Free: 1 << 30, FreeInodes: 1 << 20}, ""},
		{cove.ProbeDisk{Free: 1 << 30}, ""}, // which does not tell of inodes
		{cove.ProbeDisk{Free: 1 << 20}, stateDiskFull},
		{cove.ProbeDisk{Free: 1 << 30, FreeInodes: 10}, stateDiskFull},
		{cove.ProbeDisk{Free: 1 << 30, Error: "no space left"}, stateDiskFull},
		{cove.ProbeDisk{Free: 1 << 30, Error: "read-only file system"}, stateProbeFailed},
	} {
		d := diagnosis{Sprite: "paint"}
		d.judge(cove.Probe{Time: now, Disk: test.disk}, now, now)
		got := ""
		if len(d.Problems) > 0 {
			got = d.Problems[0].State
		}
		if got != test.state {
			t.Errorf("%+v: %q, want %q", test.disk, got, test.state)
		}
	}
}

// A connector that does not answer is named, and the sprite is not called unreachable for it.
func TestDiagnoseConnector(t *testing.T) {
	down, silent, fine := cove.ProbeAnswer{Status: 502, Code: "upstream"}, cove.ProbeAnswer{Error: "timeout"}, cove.ProbeAnswer{Status: 200}
	for _, test := range []struct {
		answers []cove.ProbeAnswer
		other   string // what else is wrong
		want    string
	}{
		{[]cove.ProbeAnswer{fine, fine}, "", "paint: healthy"},
		{[]cove.ProbeAnswer{fine, down}, "", "paint: its connector two is unreachable"},
		{[]cove.ProbeAnswer{silent, fine}, "", "paint: its connector one is unreachable"},
		{[]cove.ProbeAnswer{silent, down}, "", "paint: its connectors one, two are unreachable"},
		{[]cove.ProbeAnswer{fine, down}, stateArch, "paint: arch"},
		{[]cove.ProbeAnswer{{Status: 401}, down}, "", "paint: auth-invalid"},
	} {
		var out said
		inv := newInvocation(Streams{Out: &out, Err: &out})
		x := &examination{inv: inv, diagnosis: diagnosis{Sprite: "paint"}}
		x.judgeConnectors(cove.Probe{HTTP: test.answers}, []string{"one", "two"})
		if test.other != "" {
			x.wrong(test.other, "cove list", "it is")
		}
		_ = x.show()
		if line, _, _ := strings.Cut(out.String(), "\n"); line != test.want {
			t.Errorf("%+v: %q, want %q", test.answers, line, test.want)
		}
	}
}
