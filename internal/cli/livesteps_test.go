package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// TestStepView: each step that has ended is a line. A step that failed also has its last lines of
// output, and what to do. No text of a sandbox controls the terminal, or looks like a line of cove's.
func TestStepView(t *testing.T) {
	var out bytes.Buffer
	inv := newInvocation(Streams{Err: &out, Out: &bytes.Buffer{}})
	v := &stepView{bar: inv.newProgress("preparing", 0), w: &out, width: 40}
	defer v.bar.Close()
	at := time.Now()
	step := func(key cove.StepKey, state cove.StepState) cove.Step {
		s := cove.Step{Key: key, State: state, Attempt: 1, StartedAt: &at}
		if state.Ended() {
			end := at.Add(1500 * time.Millisecond)
			s.EndedAt = &end
		}
		return s
	}
	news := func(n cove.StepNews) {
		t.Helper()
		if err := v.news(n); err != nil {
			t.Fatal(err)
		}
	}
	clone, script := step(cove.StepClone, cove.StepCompleted), step(cove.StepSetupScript, cove.StepRunning)
	clone.Detail = "/work\x1b]0;title\a"
	script.Output.Append(strings.Repeat("more\n", 30) + "\x1b[2Jone")
	news(cove.StepNews{Snapshot: &cove.JobSteps{Steps: []cove.Step{clone, step(cove.StepInstallDeps, cove.StepSkipped), script}}})
	if got := v.line(v.steps[cove.StepSetupScript]); got != `setup_script: \x1b[2Jone` {
		t.Errorf("it draws %q", got)
	}
	script.Output = cove.StepOutput{}
	news(cove.StepNews{Step: &script, Text: "\nfetching\rhint: type this " + strings.Repeat("日", 40)})
	if got := v.line(v.steps[cove.StepSetupScript]); got != "setup_script: hint: type this 日日日日日…" {
		t.Errorf("it draws %q", got)
	}
	failed := step(cove.StepSetupScript, cove.StepFailed)
	failed.Error, failed.Hint = "exited with 3:\nno such package", "do this"
	for range 2 { // it may come again
		news(cove.StepNews{Step: &failed, Text: "\nno such package\x1b[1A\n"})
	}
	text := out.String()
	for _, want := range []string{
		"clone              completed      1.5s  /work\\x1b]0;title\\x07\n", "setup_script       failed         1.5s  exited with 3:\n",
		"| more\n", "| \\x1b[2Jone\n", "| no such package\\x1b[1A\n", "  hint: do this\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if strings.ContainsAny(text, "\x1b\a\r") || strings.Contains(text, "install_deps") || strings.Count(text, "setup_script ") != 1 || strings.Count(text, "| more") > failedLines {
		t.Errorf("it shows %q", text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "hint") {
			t.Errorf("a line of the sandbox's looks like cove's: %q", line)
		}
	}
}

// TestStepLimits reads the flag.
func TestStepLimits(t *testing.T) {
	cmd := newPushCommand(newInvocation(Streams{}))
	got, err := stepLimits(cmd, []string{"clone=1h", "setup_script=1500ms"})
	if err != nil || got[cove.StepClone] != 3600 || got[cove.StepSetupScript] != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"clone", "clone=5", "clone=0s", "nothing=5s", "clone=-1s", "clone=100h", "health_check=5s"} {
		if got, err := stepLimits(cmd, []string{bad}); err == nil {
			t.Errorf("%s is %v", bad, got)
		}
	}
}
