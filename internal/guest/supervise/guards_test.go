package supervise_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// Each guard ends an agent that goes on, and says which guard it was. The agent's work is
// collected.
func TestGuards(t *testing.T) {
	// Commits while it is heard of, so that it is quiet only afterwards.
	const commit = `(until [ -e "$TMPDIR/committed" ]; do echo busy; sleep 0.1; done) &
echo x >x; git add x; git commit -q -m x; touch "$TMPDIR/committed"; wait
`
	turn := &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant"}, Once: "message.id"}
	for _, test := range []struct {
		name, script, reason, detail string
		change                       func(s *cove.JobSpec, limit int64)
	}{
		{"timeout", "while :; do echo busy; sleep 0.1; done", "timeout", "its time (%s) is up", func(s *cove.JobSpec, limit int64) { s.TimeoutSec = limit }},
		{"idle", "sleep 60000", "idle", "no event for %s", func(s *cove.JobSpec, limit int64) { s.Guards.IdleSec = limit }},
		{"turns", `for i in 1 2 3; do
				for part in a b c; do echo '{"type":"assistant","message":{"id":"'$i'"}}'; echo '{"type":"user"}'; done
				test $i = 3 || echo "$i" >>x
			done; sleep 60000`, "turns", "more than 2 turns", func(s *cove.JobSpec, _ int64) { s.Guards.Turns = 2; s.Turn = turn }},
		{"disk at the end", `head -c 8M /dev/urandom >big`, "disk", "its files have grown by", func(s *cove.JobSpec, _ int64) { s.Guards.DiskBytes = 4 << 20 }},
		{"disk", `head -c 8M /dev/urandom >big; ln big big2; sleep 60000`, "disk", "its files have grown by", func(s *cove.JobSpec, _ int64) { s.Guards.DiskBytes = 4 << 20 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			longEnough(t, 2, func(limit int64) error {
				j := newJob(t, commit+test.script)
				// The agent has a folder of its own: others write to this machine, too.
				j.spec.Env = []string{"TMPDIR=" + j.dir}
				test.change(&j.spec, limit)
				j.give()
				cmd := j.command("run")
				cmd.Env = append(cmd.Env, "HOME="+j.dir, "TMPDIR="+j.dir)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if code := j.exitCode(cmd); code != 0 {
					t.Fatalf("exit code %d", code)
				}
				detail := strings.ReplaceAll(test.detail, "%s", (time.Duration(limit) * time.Second).String())
				end := j.end()
				if left := j.processes(); len(left) > 0 {
					t.Errorf("processes %v are left", left)
				}
				if end.Phase != "done" || end.Reason != test.reason || !strings.HasPrefix(end.Detail, detail) || end.Commits != 1 {
					return fmt.Errorf("got %+v, want %s, %s", end, test.reason, detail)
				}
				return nil
			})
		})
	}
}

// A guard that has no reason to fire doesn't. An agent that writes something now and then is
// not idle, and an agent may use all of its turns.
func TestGuardsHold(t *testing.T) {
	t.Parallel()
	longEnough(t, 6, func(limit int64) error {
		// Together that is longer than it may be quiet.
		j := newJob(t, fmt.Sprintf(`for i in 1 2; do for j in 1 2; do sleep %d; echo '{"type":"assistant","message":{"id":"'$i'"}}'; sleep %[1]d; echo; done; done`, limit/6))
		j.spec.TimeoutSec, j.spec.Guards = 3600, cove.Guards{IdleSec: limit, Turns: 2, DiskBytes: 1 << 40}
		j.spec.Turn = &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant"}, Once: "message.id"}
		if end := j.run(); end.Phase != "done" || end.Reason != "" {
			return fmt.Errorf("got %+v", end)
		}
		return nil
	})
}

// The preparation of a job ends at the timeout, too.
func TestTimeoutDuringSetup(t *testing.T) {
	t.Parallel()
	j := newJob(t, "true")
	j.spec.TimeoutSec = 1
	j.spec.Setup = [][]string{{"/bin/sh", "-c", "sleep 6000; true"}}
	if end := j.run(); end.Phase != "prepare" || end.Reason != "timeout" {
		t.Errorf("got %+v", end)
	}
}

// converser reads messages, and tells of each that it has heard it.
const converser = `
	while read -r line; do
		printf '{"type":"assistant","text":"%s"}\n' "$line"
		echo "$line" >>said; git add said; git commit -q -m "$(printf %.9s "$line")"
		echo '{"type":"result"}'
	done
	echo over`

func newConverser(t *testing.T) *job {
	j := newJob(t, converser)
	j.spec.Turn = &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant"}}
	j.spec.Input = &cove.JobInput{
		First: j.file("first"), Over: cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "result"}},
	}
	j.write(j.file("first"), "ready\n")
	return j
}

// converse starts the job, and waits until its agent waits.
func (j *job) converse() *exec.Cmd {
	j.t.Helper()
	j.give()
	cmd := j.command("run")
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.untilWaiting(1)
	return cmd
}

// untilWaiting waits until the agent has begun to wait for the nth time.
func (j *job) untilWaiting(n int) {
	j.t.Helper()
	j.await(waiting(n))
}

// waiting is for await.
func waiting(n int) func(cove.JobEvent) bool {
	return func(ev cove.JobEvent) bool {
		if ev.State == cove.JobWaiting {
			n--
		}
		return n == 0
	}
}

func (j *job) send(m cove.JobInputLine) error {
	j.t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		j.t.Fatal(err)
	}
	return supervise.Send(j.dir, strings.NewReader(string(text)))
}

func TestSend(t *testing.T) {
	t.Parallel()
	longEnough(t, 1, func(limit int64) error { return testSend(t, limit) })
}

// testSend returns an error if the limit was reached, which must not happen.
func testSend(t *testing.T, limit int64) error {
	j := newConverser(t)
	j.spec.Guards.IdleSec = limit // who waits for a person is not idle
	j.spec.TimeoutSec = 4 * limit
	if err := j.send(cove.JobInputLine{Line: "too early"}); !errors.Is(err, supervise.ErrDead) {
		t.Errorf("before there is a supervisor: %v", err)
	}
	j.give()
	cmd := j.command("run")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := cove.JobInputLine{JobMessage: cove.JobMessage{Text: "c", Close: true}, Line: "c"}
	err := j.awaited(waiting(1))
	if err == nil {
		err = exec.CommandContext(j.ctx, "sleep", fmt.Sprint(4*limit+1)).Run()
	}
	if err == nil {
		err = j.send(cove.JobInputLine{JobMessage: cove.JobMessage{Text: "a b"}, Line: "a b"})
	}
	if err == nil {
		err = j.awaited(waiting(2))
	}
	if err == nil {
		err = j.send(last)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	end := j.end()
	if err != nil || end.Phase != "done" || end.Reason != "" || end.Commits != 3 {
		return fmt.Errorf("got %+v, %w", end, err)
	}
	if got, want := j.subjects(end), []string{"ready", "a b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var story []string
	for _, ev := range j.events() {
		if ev.Type == "input" || ev.Type == "state" && ev.State != cove.JobPreparing {
			story = append(story, string(ev.State)+ev.Text)
		}
	}
	if want := []string{"running", "waiting", "a b", "running", "waiting", "c", "running", "waiting"}; !slices.Equal(story, want) && !slices.Equal(story, want[:7]) {
		t.Errorf("got %q, want %q", story, want)
	}
	if err := j.send(last); !errors.Is(err, supervise.ErrDead) {
		t.Errorf("after the end: %v", err)
	}
	return nil
}

// Messages that come at once all arrive whole. Messages that an agent does not read do not
// delay its end. None is taken once the input is closed.
func TestSendMany(t *testing.T) {
	t.Parallel()
	j := newConverser(t)
	cmd := j.converse()
	long := strings.Repeat("x", 200_000)
	errs := make(chan error)
	for range 5 {
		go func() { errs <- j.send(cove.JobInputLine{JobMessage: cove.JobMessage{Text: "x"}, Line: long}) }()
	}
	for range 5 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	j.untilWaiting(2)
	if err := j.send(cove.JobInputLine{JobMessage: cove.JobMessage{Close: true}}); err != nil {
		t.Error(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	said, err := os.ReadFile(filepath.Join(j.spec.Workdir, "said"))
	if err != nil || string(said) != "ready\n"+strings.Repeat(long+"\n", 5) {
		t.Errorf("the agent has read %d bytes, %v", len(said), err)
	}

	deaf := newJob(t, "echo ready; sleep 6000")
	deaf.spec.Input, deaf.spec.GraceSec = &cove.JobInput{First: deaf.file("first")}, 1
	deaf.write(deaf.file("first"), strings.Repeat("x", 1<<20))
	cmd = deaf.start()
	go func() { errs <- deaf.send(cove.JobInputLine{Line: "never read"}) }()
	if err := supervise.Stop(deaf.dir); err != nil {
		t.Error(err)
	}
	if code := deaf.exitCode(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := <-errs; err == nil {
		t.Error("a message that nobody read was taken")
	}

	silent := newJob(t, "echo ready; sleep 6000")
	silent.spec.GraceSec = 1
	cmd = silent.start()
	if err := silent.send(cove.JobInputLine{Line: "x"}); !errors.Is(err, supervise.ErrNoInput) {
		t.Errorf("an agent without an input: %v", err)
	}
	if err := supervise.Stop(silent.dir); err != nil {
		t.Error(err)
	}
	silent.exitCode(cmd)
}

// TestWaitsNoMore: if an agent takes its question back, it no longer counts as waiting. It
// need not be given anything to read first.
func TestWaitsNoMore(t *testing.T) {
	t.Parallel()
	longEnough(t, 2, func(limit int64) error { return testWaitsNoMore(t, limit) })
}

func testWaitsNoMore(t *testing.T, limit int64) error {
	j := newJob(t, `echo '{"type":"question"}'; sleep 1; echo '{"type":"decided"}'; exec sleep 60000`)
	j.spec.Guards.IdleSec = limit
	rule := func(kind string) cove.LineRule {
		return cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": kind}}
	}
	again := rule("decided")
	j.spec.Input = &cove.JobInput{Over: rule("question"), Again: &again}
	if end := j.run(); end.Reason != "idle" {
		t.Errorf("got %+v", end)
	}
	var story []string
	for _, ev := range j.events() {
		if ev.Type == "state" && ev.State != cove.JobPreparing {
			story = append(story, string(ev.State))
		}
	}
	if want := []string{"running", "waiting", "running"}; !slices.Equal(story, want) {
		return fmt.Errorf("got %q, want %q", story, want)
	}
	return nil
}

// TestGuestProgram: by the name cove-guest the supervisor's own program is started,
// whatever else is called so.
func TestGuestProgram(t *testing.T) {
	t.Parallel()
	j := newJob(t, "true")
	bin := t.TempDir()
	j.program(bin+"/cove-guest", "exit 42")
	j.spec.Argv = []string{cove.Guest, "/no/such/job"} // which is this test as a supervisor, that finds none
	j.spec.Env = append(j.spec.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	if end := j.run(); end.Reason != "" || end.ExitCode != supervise.ExitErr {
		t.Errorf("got %+v", end)
	}
}
