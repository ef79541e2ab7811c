package supervise_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// withScript is a job with a setup script, in a sprite whose home is home.
func withScript(t *testing.T, home, agent, script string) *job {
	t.Helper()
	t.Setenv("HOME", home)
	j := newJob(t, agent)
	j.spec.SetupScript = &cove.SetupScript{Name: ".cove/setup.sh", Text: script, Repository: "roots"}
	j.spec.Env = []string{"GREETING=hi"}
	return j
}

// setUp makes a supervisor set up the sprite, and returns its output and exit code.
func (j *job) setUp() (string, int) {
	j.t.Helper()
	cmd := j.command("set-up")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	code := j.exitCode(cmd)
	return out.String(), code
}

// outputOf is what the log has of a stream.
func outputOf(j *job, stream string) string {
	var lines []string
	for _, ev := range j.events() {
		if ev.Type == "output" && ev.Stream == stream {
			lines = append(lines, ev.Text)
		}
	}
	return strings.Join(lines, "\n")
}

// A setup script runs before the agent, in the same folder and as the same user. A second job
// runs its script only if it is another one.
func TestSetupScript(t *testing.T) {
	home := t.TempDir()
	script := "echo $GREETING; cat README; pwd >where; echo oops >&2; echo x >>~/ran\n"
	j := withScript(t, home, "test -e where && test $(pwd) = $(cat where)", script)
	if end := j.run(); end.Phase != "done" || end.ExitCode != 0 {
		t.Fatalf("got %+v", end)
	}
	if got := outputOf(j, "setup"); got != "hi\nhello\noops" {
		t.Errorf("the log has %q", got)
	}
	again := withScript(t, home, "! test -e where", script)
	if end := again.run(); end.ExitCode != 0 || outputOf(again, "setup") != "" {
		t.Errorf("the same again: %+v, %q", end, outputOf(again, "setup"))
	}
	for name, change := range map[string]func(*cove.SetupScript){
		"another text":       func(s *cove.SetupScript) { s.Text += "# changed\n" },
		"another repository": func(s *cove.SetupScript) { s.Repository = "others" },
	} {
		j := withScript(t, home, "test -e where", script)
		change(j.spec.SetupScript)
		if end := j.run(); end.ExitCode != 0 {
			t.Errorf("%s: %+v", name, end)
		}
	}
	if got := j.read(filepath.Join(home, "ran")); got != "x\nx\nx\n" {
		t.Errorf("it has been run: %q", got)
	}
	j = withScript(t, t.TempDir(), "test -e where", script)
	if end := j.run(); end.ExitCode != 0 {
		t.Errorf("in another sprite: %+v", end)
	}
}

// If a script fails, or takes too long, the job ends with a reason. No process of the script
// is left, and the next job tries again.
func TestSetupScriptFails(t *testing.T) {
	for _, test := range []struct {
		name, script string
		seconds      int64
		want         []string
	}{
		{"exit", "echo one\necho no such package >&2\nexit 3\n", 0, []string{".cove/setup.sh exited with 3:\none\nno such package"}},
		{"time", "echo begins\nsetsid sleep 100000 &\nsleep 100000\n", 5, []string{"took longer than the %s that it has", "begins"}},
		{"signal", "kill -9 $$\n", 0, []string{"was ended by signal:KILL"}},
		{"interpreter", "#!/nonexistent/shell\n", 0, []string{".cove/setup.sh does not start"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			home := t.TempDir()
			longEnough(t, max(test.seconds, 1), func(limit int64) error {
				j := withScript(t, home, "true", test.script)
				if test.seconds > 0 {
					j.spec.SetupScript.TimeoutSec = limit
				}
				end := j.run()
				if end.Phase != "prepare" || end.ExitCode == 0 {
					t.Errorf("got %+v", end)
				}
				if left := j.processes(); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				for _, want := range test.want {
					if want = strings.ReplaceAll(want, "%s", (time.Duration(limit) * time.Second).String()); !strings.Contains(end.Reason, want) {
						return fmt.Errorf("the reason is %q, without %q", end.Reason, want)
					}
				}
				return nil
			})
			next := withScript(t, home, "true", "echo fine\n")
			if end := next.run(); end.Phase != "done" || outputOf(next, "setup") != "fine" {
				t.Errorf("the next: %+v", end)
			}
		})
	}
}

// A script's background processes do not outlive it, and a script that names its own
// interpreter gets that one.
func TestSetupScriptLeavesNothing(t *testing.T) {
	j := withScript(t, t.TempDir(), "true", "#!/bin/bash\n(setsid sleep 300 &)\nx=(a b); echo ${x[1]}\n")
	if end := j.run(); end.Phase != "done" || outputOf(j, "setup") != "b" {
		t.Errorf("got %+v, %q", end, outputOf(j, "setup"))
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A sprite can be set up before its first job, which then need not run the script.
func TestSetUp(t *testing.T) {
	home := t.TempDir()
	j := withScript(t, home, "true", "cat README; echo $GREETING >~/greeting\n")
	j.give()
	if err := supervise.IsSetUp(j.dir); !errors.Is(err, supervise.ErrNotSetUp) || supervise.ExitCode(err) != supervise.ExitOpen {
		t.Errorf("before: %v", err)
	}
	if out, code := j.setUp(); code != 0 || !strings.Contains(out, "hello") {
		t.Errorf("exit %d: %s", code, out)
	}
	if got := j.read(filepath.Join(home, "greeting")); got != "hi\n" {
		t.Errorf("the environment gave %q", got)
	}
	if _, err := os.Stat(j.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
	next := withScript(t, home, "true", j.spec.SetupScript.Text)
	next.give()
	if err := supervise.IsSetUp(next.dir); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	var out bytes.Buffer
	if err := supervise.SetUp(t.Context(), next.dir, &out); err != nil || out.Len() > 0 {
		t.Errorf("again: %v, %q", err, out.String())
	}
	wrong := withScript(t, home, "true", "echo broken; exit 4\n")
	wrong.give()
	if out, code := wrong.setUp(); code != 1 || !strings.Contains(out, "exited with 4") {
		t.Errorf("one that fails: %d, %s", code, out)
	}
}
