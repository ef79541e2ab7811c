package supervise_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// TestForgetsFirst: the values of a job's variables leave its folder before its log has the
// end, which the server reads. If the supervisor dies between, the next one makes up for it.
func TestForgetsFirst(t *testing.T) {
	const value = "value/0123456789"
	j := newJob(t, "echo ready; read -r line")
	j.spec.Env, j.spec.Masked, j.spec.Input = []string{"KEY=" + value}, []string{value}, &cove.JobInput{}
	forgotten := func(when string) {
		t.Helper()
		if text := j.read(j.file("job.json")); strings.Contains(text, value) || !strings.Contains(text, j.spec.ID) {
			t.Errorf("%s, the settings are %s", when, text)
		}
	}
	cmd := j.start()
	if text := j.read(j.file("job.json")); !strings.Contains(text, value) {
		t.Errorf("at work, the settings are %s", text)
	}
	if err := supervise.Send(j.dir, strings.NewReader(`{"text":"a","line":"a"}`)); err != nil {
		t.Error(err)
	}
	j.await(func(ev cove.JobEvent) bool { return ev.Type == "end" })
	forgotten("as the log has its end")
	if code := j.exitCode(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, verb := range [][]string{{"run"}, {"finalize", "lost"}} {
		j.give() // as a supervisor leaves it that dies when the end is on record
		before := j.read(j.file("events.jsonl"))
		if code := j.call(verb[0], verb[1:]...); code != 0 {
			t.Errorf("%v: exit code %d", verb, code)
		}
		forgotten("after " + verb[0])
		if j.read(j.file("events.jsonl")) != before {
			t.Errorf("%v: the log has changed", verb)
		}
	}
}

// TestNoSettings: a supervisor whose job's settings were taken back ends in good order, and so is not
// started again and again as a service.
func TestNoSettings(t *testing.T) {
	j := newJob(t, "true")
	if code := j.call("run"); code != supervise.ExitDone {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"events.jsonl", "end.json"} {
		if _, err := os.Stat(j.file(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if code := j.call("finalize", "lost"); code == supervise.ExitDone {
		t.Error("there was something to collect")
	}
}
