package supervise_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// cycles is how often an agent is run.
func cycles() int {
	if os.Getenv("COVE_SOAK") == "1" {
		return 1000
	}
	return 20
}

// straggler leaves processes in its group, in a session of their own, and without a parent.
const straggler = `sleep 6000 & setsid sleep 6000 & (setsid sh -c 'sleep 6000 & sleep 6000' &) ; true & exit 3`

func runAgents(dir, n string) error {
	times, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	return supervise.RunAgents(dir, cove.JobSpec{Argv: []string{"/bin/sh", "-c", straggler}, Workdir: dir}, times, 3)
}

// TestNoZombies: A6: all processes of an agent end with it, and none stays a zombie, over many
// agents of one supervisor.
func TestNoZombies(t *testing.T) {
	j := newJob(t, "")
	cmd := j.command("agents", strconv.Itoa(cycles()))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Errorf("exit code %d: %s", code, cmd.Stderr)
	}
	if left := j.processes(); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

// TestAgentDies: A6: an agent's end is an event, with its code and the end of what it said on
// standard error. One that does well says no more than before.
func TestAgentDies(t *testing.T) {
	for _, test := range []struct {
		script string
		code   int
		reason string
		text   string
	}{
		{`seq 1 5000 >&2; echo "no such model" >&2; exit 7`, 7, "", "…"},
		{`echo out; echo "first" >&2; printf last >&2; kill -KILL $$`, 137, "signal:KILL", "first\nlast"},
		{`echo "a warning" >&2`, 0, "", ""},
	} {
		j := newJob(t, test.script)
		j.run()
		for _, ev := range j.events() {
			if ev.Type != "exit" {
				continue
			}
			if *ev.ExitCode != test.code || ev.Reason != test.reason || !strings.HasPrefix(ev.Text, test.text) || (test.text == "") != (ev.Text == "") {
				t.Errorf("%s: got %d, %q, %q", test.script, *ev.ExitCode, ev.Reason, ev.Text)
			}
			if test.code == 7 && (!strings.HasSuffix(ev.Text, "5000\nno such model") || len(ev.Text) > 8000) {
				t.Errorf("the end of standard error is %q", ev.Text)
			}
		}
	}
}

// TestSendOnce: T9: a message that comes again under its key is not handed on again, and is
// not an error. A question is answered once. The log has the keys.
func TestSendOnce(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	j := newJob(t, `echo ready; while read -r line; do echo "got $line"; done; until test -e `+done+`; do sleep 0.05; done`)
	j.spec.Input = &cove.JobInput{}
	cmd := j.start()
	send := func(text, want string) {
		t.Helper()
		err := supervise.Send(j.dir, strings.NewReader(text))
		if got := supervise.ExitCode(err); strconv.Itoa(got) != want {
			t.Errorf("%s: got %v, exit code %d, want %s", text, err, got, want)
		}
	}
	told := strconv.Itoa(supervise.ExitTold)
	send(`{"text":"a","line":"a","key":"k1"}`, "0")
	send(`{"text":"a","line":"a","key":"k1"}`, "0")
	send(`{"text":"a","line":"a","key":"k2"}`, "0") // the same words once more
	used := strconv.Itoa(supervise.ExitUsed)
	send(`{"text":"other","line":"other","key":"k1"}`, used)
	send(`{"text":"a","line":"a","key":"k1","question":"1"}`, used)
	send(`{"close":true,"key":"k1"}`, used)
	send(`{"text":"b","line":"b"}`, "0")
	send(`{"text":"b","line":"b"}`, "0")
	send(`{"text":"yes","line":"yes","key":"k3","question":"1"}`, "0")
	send(`{"text":"no","line":"no","key":"k4","question":"1"}`, told)
	send(`{"text":"no","line":"no","question":"1"}`, told)
	send(`{"text":"yes","line":"yes","key":"k3","question":"1"}`, "0")
	send(`{"text":"no","line":"no","key":"k5","question":"2"}`, "0")
	send(`{"close":true,"key":"k6"}`, "0")
	send(`{"close":true,"key":"k6"}`, "0")
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var got, keys []string
	for _, ev := range j.events() {
		if text, ok := strings.CutPrefix(ev.Text, "got "); ok {
			got = append(got, text)
		}
		if ev.Type == "input" {
			keys = append(keys, ev.Key+"/"+ev.Question)
		}
	}
	if text := strings.Join(got, " "); text != "a a b b yes no" {
		t.Errorf("the agent got %s", text)
	}
	if text := strings.Join(keys, " "); text != "k1/ k2/ / / k3/1 k5/2" {
		t.Errorf("the log has the keys %s", text)
	}
	if _, err := os.Stat(filepath.Join(j.dir, "end.json")); err != nil {
		t.Error(err)
	}
}

// TestSendToDeaf: a message that the agent does not get has a code of its own. The log has the
// message by then, and so says afterwards, with the key, that it was not taken.
func TestSendToDeaf(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	j := newJob(t, `exec <&-; echo ready; until test -e `+done+`; do sleep 0.05; done`)
	j.spec.Input = &cove.JobInput{}
	cmd := j.start()
	err := supervise.Send(j.dir, strings.NewReader(`{"text":"a","line":"a","key":"k1"}`))
	if !errors.Is(err, supervise.ErrNotTaken) || supervise.ExitCode(err) != supervise.ExitMiss {
		t.Errorf("got %v, exit code %d", err, supervise.ExitCode(err))
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var got []string
	for _, ev := range j.events() {
		if ev.Key != "" {
			got = append(got, ev.Type+" "+ev.Key)
		}
	}
	if text := strings.Join(got, ", "); text != "input k1, notice k1" {
		t.Errorf("the log has %s", text)
	}
}
