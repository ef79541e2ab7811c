package openfiles

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// helper, in a process's environment, has that process raise its limit and start another.
const helper = "OPENFILES_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helper) != "" {
		raised := Raise()
		out, err := exec.Command("sh", "-c", "ulimit -Sn").Output()
		if err != nil || Of(os.Getpid()) != raised {
			os.Exit(1)
		}
		os.Stdout.WriteString(strconv.FormatUint(raised, 10) + " " + string(out))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A low limit is raised to the hard one, or beyond it by root, for what is started too.
func TestRaise(t *testing.T) {
	for _, test := range []struct {
		limits string
		least  uint64
	}{
		{"ulimit -Sn 256; ulimit -Hn 1000", 1000},
		{"ulimit -n 256", 256},
	} {
		cmd := exec.Command("sh", "-c", test.limits+`; exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), helper+"=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", test.limits, err, out)
		}
		raised, started, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if n, err := strconv.ParseUint(raised, 10, 64); err != nil || n != test.least && n != most || started != raised {
			t.Errorf("%s: raised to %q, what it starts has %q; want %d, or %d of root", test.limits, raised, started, test.least, most)
		}
	}
	if Of(-1) != 0 {
		t.Error("a process that is not there has a limit")
	}
}
