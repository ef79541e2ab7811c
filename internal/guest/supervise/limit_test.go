package supervise_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// numbered prints lines, and then goes on for ever.
const numbered = "i=1; while [ $i -le 30 ]; do echo line $i; i=$((i+1)); done; setsid sleep 100000 & sleep 100000"

// TestStepLimits: P5: each step of the preparation has a limit of its own. The error names the
// step, the limit and the last 20 lines, and nothing of it is left.
func TestStepLimits(t *testing.T) {
	for _, test := range []struct {
		key    cove.StepKey
		change func(*cove.JobSpec)
	}{
		{cove.StepInstallDeps, func(s *cove.JobSpec) { s.Program, s.Needs = "an-agent-that-is-not-there", []string{"node"} }},
		{cove.StepSetupScript, func(s *cove.JobSpec) {
			s.SetupScript = &cove.SetupScript{Name: "setup_script", Text: numbered, Repository: "x", TimeoutSec: 100_000}
		}},
		{cove.StepInstallAgent, func(s *cove.JobSpec) { s.Installs, s.Setup = 1, [][]string{{"sh", "-c", numbered}} }},
		{cove.StepConfigureAgent, func(s *cove.JobSpec) { s.Setup = [][]string{{"sh", "-c", numbered}} }},
	} {
		t.Run(string(test.key), func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			longEnough(t, 2, func(limit int64) error {
				j := newJob(t, "true")
				if test.key == cove.StepInstallDeps {
					j.path = t.TempDir()
					j.tools(j.path, "git", "sh", "id", "env", "sleep", "setsid")
					j.program(j.path+"/sudo", "shift; exec \"$@\"")
					j.program(j.path+"/apk", numbered)
				}
				test.change(&j.spec)
				j.spec.StepLimits = map[cove.StepKey]int64{test.key: limit}
				end := j.run()
				_, last := turns(t, j)
				got := last[test.key]
				if end.Phase != "prepare" || got.State != cove.StepFailed || !got.TimedOut {
					t.Fatalf("got %+v; the job ended as %+v", got, end)
				}
				if left := j.processes(); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				if want := fmt.Sprintf("took longer than the %v that it has", time.Duration(limit)*time.Second); !strings.Contains(got.Error, string(test.key)+" "+want) || !strings.Contains(end.Reason, want) {
					t.Errorf("without %q: %q, %q", want, got.Error, end.Reason)
				}
				if strings.Contains(got.Error, "line 10\n") {
					t.Errorf("there is more than the last 20 lines: %q", got.Error)
				}
				if !strings.Contains(got.Error, "line 11\n") || !strings.Contains(got.Error, "line 30") {
					return fmt.Errorf("the last lines are not there: %q", got.Error)
				}
				return nil
			})
		})
	}
}

// TestCloneLimit: a git that hangs ends with its step.
func TestCloneLimit(t *testing.T) {
	j := newJob(t, "true")
	j.path = t.TempDir()
	j.tools(j.path, "sleep")
	j.program(j.path+"/git", "echo begins >&2; sleep 100000")
	j.spec.StepLimits = map[cove.StepKey]int64{cove.StepClone: 2}
	end := j.run()
	_, last := turns(t, j)
	if got := last[cove.StepClone]; !got.TimedOut || !strings.Contains(got.Error, "clone took longer than the 2s that it has:\ngit init: ") || end.Phase != "prepare" {
		t.Errorf("got %+v; the job ended as %+v", got, end)
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestStopInStep: P4: if a job is stopped during its preparation, the step gets SIGTERM, and
// is killed later. All that the step has started is gone before the job's end is recorded.
func TestStopInStep(t *testing.T) {
	polite := "trap 'echo asked to end; exit 0' TERM; (setsid sleep 100000 &); echo ready; while :; do sleep 0.1; done"
	deaf := "trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 100000\" &); echo ready; while :; do sleep 0.1; done"
	for _, test := range []struct {
		name, script string
		key          cove.StepKey
		change       func(*cove.JobSpec, string)
	}{
		{"a script", polite, cove.StepSetupScript, func(s *cove.JobSpec, text string) {
			s.SetupScript = &cove.SetupScript{Name: "setup", Text: text, Repository: "x"}
		}},
		{"a deaf script", deaf, cove.StepSetupScript, func(s *cove.JobSpec, text string) {
			s.SetupScript = &cove.SetupScript{Name: "setup", Text: text, Repository: "x"}
		}},
		{"a command", polite, cove.StepConfigureAgent, func(s *cove.JobSpec, text string) { s.Setup = [][]string{{"sh", "-c", text}} }},
		{"a deaf command", deaf, cove.StepConfigureAgent, func(s *cove.JobSpec, text string) { s.Setup = [][]string{{"sh", "-c", text}} }},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			j := newJob(t, "echo the agent began")
			test.change(&j.spec, test.script)
			cmd := j.start()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			j.exitCode(cmd)
			if left := j.processes(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			end := j.end()
			order, last := turns(t, j)
			if end.Phase != "prepare" || end.Reason != "stopped" || last[test.key].State != cove.StepFailed || last[test.key].TimedOut || slices.Contains(order, cove.StepVerifyCommit) {
				t.Errorf("got %+v, %+v", end, last)
			}
			if asked := strings.Contains(outputOf(j, "setup"), "asked to end"); asked != (test.script == polite) {
				t.Errorf("the log has %q", outputOf(j, "setup"))
			}
			if outputOf(j, "stdout") != "" {
				t.Error("the agent began all the same")
			}
		})
	}
}

// TestMasked: P2, S5: secrets among the variables, however they are cut and coded, are in no
// line of the log. Nor are they in an error, or in the job's settings after its end.
func TestMasked(t *testing.T) {
	secret, lines := "canary-\"secret\"-value", "first-line-of-it\nsecond-line-of-it"
	j := newJob(t, `echo "$S"; echo "$L" >&2; echo "$J" >&3; head -c 65520 /dev/zero | tr '\0' x; echo "$S"`)
	j.spec.Env, j.spec.Masked = []string{"S=" + secret, "L=" + lines, `J={"text":"canary-\"secret\"-value"}`}, []string{secret, lines}
	j.spec.Setup = [][]string{{"sh", "-c", `printf 'a\377b %s\n' "$S"`}}
	j.run()
	failing := newJob(t, "true")
	failing.spec.Env, failing.spec.Masked = j.spec.Env, j.spec.Masked
	failing.spec.SetupScript = &cove.SetupScript{Name: "setup", Text: "# " + secret + "\necho $L; exit 3", Repository: t.Name()}
	t.Setenv("HOME", t.TempDir())
	if end := failing.run(); !strings.Contains(end.Reason, "exited with 3") {
		t.Errorf("got %+v", end)
	}
	for _, job := range []*job{j, failing} {
		if events := job.events(); job == j && !slices.ContainsFunc(events, func(ev cove.JobEvent) bool { return ev.Type == "event" && ev.Text == `{"text":"***"}` }) {
			t.Errorf("the log has %+v", events)
		}
		for _, name := range []string{"events.jsonl", "end.json", "job.json"} {
			text := job.read(job.file(name))
			for _, s := range []string{"canary-", "first-line", "second-line"} {
				if strings.Contains(text, s) {
					t.Errorf("%s has %q", name, s)
				}
			}
		}
	}
	if got := outputOf(j, "stdout"); !strings.HasPrefix(got, "***\nxxx") || !strings.HasSuffix(got, "xxx***") && !strings.HasSuffix(got, "xxx\n***") {
		t.Errorf("the log has %.20q…%q", got, got[max(0, len(got)-20):])
	}
	if got := outputOf(j, "setup"); got != "a\uFFFDb ***" {
		t.Errorf("the log has %q", got)
	}
}

// TestWhateverTheScriptDoes: P10: the supervisor's own steps come after the setup script,
// however the script ends. P6: the script, of any size, is in a file that is deleted after it.
func TestWhateverTheScriptDoes(t *testing.T) {
	for _, test := range []struct{ name, script string }{
		{"exit", "exit 0\nfalse"},
		{"errexit", "set -eu; true"},
		{"another folder", "cd /"},
		{"exec", "exec true"},
		{"background jobs", "(sleep 100000 &) ; setsid sleep 100000 & nohup sleep 100000 &"},
		{"closed streams", "exec >&- 2>&-"},
		{"closed streams in the background", "setsid sh -c 'exec >&- 2>&- <&-; sleep 100000' &"},
		{"2 MiB", "# " + strings.Repeat("x", 2<<20) + "\ntrue"},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			j := newJob(t, "test $(git symbolic-ref --short HEAD) = topic && test -e README")
			j.spec.SetupScript = &cove.SetupScript{Name: "setup", Text: test.script + "\n", Repository: "x"}
			end := j.run()
			order, last := turns(t, j)
			if end.Phase != "done" || end.ExitCode != 0 || !slices.Equal(order, supervisors) || last[cove.StepVerifyCommit].State != cove.StepCompleted {
				t.Errorf("got %+v, %+v", end, last)
			}
			if left := j.processes(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if j.exists(j.file("setup.sh")) {
				t.Error("the script's file is left")
			}
		})
	}
}

// TestForgets: once a job has ended, its folder has no secret any more: neither its variables nor
// those of its MCP servers.
func TestForgets(t *testing.T) {
	const secret = "canary-secret-value"
	j := newJob(t, `grep -c canary "$MCP"`)
	if err := os.MkdirAll(j.file("mcp"), 0o755); err != nil {
		t.Fatal(err)
	}
	server := j.file("mcp/tracker")
	if err := os.WriteFile(server, []byte("#!/bin/sh\nexport TOKEN='"+secret+"'\n# "+secret+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	j.spec.Env, j.spec.Masked = append(j.spec.Env, "S="+secret, "MCP="+server), []string{secret}
	j.run()
	if outputOf(j, "stdout") != "2" {
		t.Error("the agent did not have its server")
	}
	err := filepath.WalkDir(j.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(name)
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s has the secret", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
