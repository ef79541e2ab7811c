package supervise_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// orphan starts a job whose agent counts its starts and commits, and kills its
// supervisor while the agent is at work.
func orphan(t *testing.T) (j *job, starts string) {
	t.Helper()
	starts = filepath.Join(t.TempDir(), "starts")
	j = newJob(t, `
		echo started >>"$STARTS"
		echo x >x; git add x; git commit -q -m x
		echo y >y
		echo ready
		setsid sleep 6000 &
		sleep 6000`)
	j.spec.Env = []string{"STARTS=" + starts}
	cmd := j.start()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != -1 {
		t.Fatalf("exit code %d", code)
	}
	if j.exists(j.file("end.json")) {
		t.Fatal("the job has an end")
	}
	return j, starts
}

func (j *job) checkLost(starts string) {
	j.t.Helper()
	end := j.end()
	if end.Phase != "run" || end.Reason != "lost" || end.ExitCode != -1 || end.Commits != 1 || end.Leftover == "" {
		j.t.Fatalf("got %+v", end)
	}
	if got := j.subjects(end); !slices.Equal(got, []string{"x"}) {
		j.t.Errorf("got commits %q", got)
	}
	if got := j.read(starts); got != "started\n" {
		j.t.Errorf("the agent was started more than once: %q", got)
	}
	if left := j.processes(); len(left) > 0 {
		j.t.Errorf("processes %v are left", left)
	}
	events := j.events()
	if last := events[len(events)-1]; last.Result == nil || *last.Result != end {
		j.t.Errorf("the log ends with %+v", last)
	}
}

func TestFinalize(t *testing.T) {
	j, starts := orphan(t)
	before, err := j.follow(1)
	if !errors.Is(err, supervise.ErrDead) {
		t.Fatalf("follow: got %v, want %v", err, supervise.ErrDead)
	}
	if err := supervise.Stop(j.dir); !errors.Is(err, supervise.ErrDead) {
		t.Errorf("stop: got %v, want %v", err, supervise.ErrDead)
	}
	// It may have died anywhere in its collecting.
	refs := filepath.Join(j.spec.Workdir, ".git", "refs", "cove", "abc123")
	if err := os.MkdirAll(refs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		j.file("index"), j.file("index.lock"), j.file("out.bundle.new"), j.file("out.bundle.new.lock"),
		filepath.Join(refs, "head.lock"), filepath.Join(refs, "leftover.lock"),
	} {
		j.write(name, "torn")
	}
	if len(j.processes()) == 0 {
		t.Error("the agent is gone already, so nothing shows that it is ended")
	}
	if code := j.call("finalize", "lost"); code != 0 {
		t.Fatalf("finalize: exit code %d", code)
	}
	j.checkLost(starts)

	// A follower goes on where it was.
	after, err := j.follow(int64(len(before)) + 1)
	if err != nil || len(after) == 0 || after[0].Seq != before[len(before)-1].Seq+1 || after[len(after)-1].Type != "end" {
		t.Errorf("got %v, %v", after, err)
	}

	// The end does not change.
	end, log := j.read(j.file("end.json")), j.read(j.file("events.jsonl"))
	if code := j.call("run"); code != 0 {
		t.Errorf("run: exit code %d", code)
	}
	if code := j.call("finalize", "other"); code != 0 {
		t.Errorf("finalize: exit code %d", code)
	}
	if j.read(j.file("end.json")) != end || j.read(j.file("events.jsonl")) != log {
		t.Error("the end has changed")
	}
	j.checkLost(starts)
}

func TestRunAfterDeath(t *testing.T) {
	j, starts := orphan(t)
	if code := j.call("run"); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	j.checkLost(starts)
}

// A copy of a sprite has its service, and is another boot. If it was made after a supervisor
// got the job, but before it has begun the job, the copy neither begins nor ends the job. Once
// the log has begun, a copy ends what there is of the job, and never begins it.
func TestRunInCopy(t *testing.T) {
	j := newJob(t, "echo x >x")
	j.give()
	other := j.command("run")
	other.Env = append(other.Env, cove.JobBootVar+"=00000000-0000-4000-8000-000000000000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(other); code != 0 || j.exists(j.file("end.json")) || j.exists(j.spec.Workdir) || j.read(j.file("events.jsonl")) != "" {
		t.Errorf("in another boot it exited with %d, and has begun", code)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	own := j.command("run")
	own.Env = append(own.Env, cove.JobBootVar+"="+strings.TrimSpace(string(boot)))
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(own); code != 0 || j.end().Phase != "done" {
		t.Errorf("in its boot it exited with %d: %+v", code, j.end())
	}

	begun, starts := orphan(t)
	other = begun.command("run")
	other.Env = append(other.Env, cove.JobBootVar+"=00000000-0000-4000-8000-000000000000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if code := begun.exitCode(other); code != 0 {
		t.Errorf("in another boot, of a job that had begun, it exited with %d", code)
	}
	begun.checkLost(starts)
}

// A supervisor may die between recording the end and logging it, or in the middle
// of a line.
func TestRepair(t *testing.T) {
	for _, test := range []struct{ name, torn string }{
		{"no end", ""},
		{"torn line", `{"seq":7,"text":"` + strings.Repeat("x", 10_000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJob(t, "echo x >x")
			end := j.run()
			log := j.read(j.file("events.jsonl"))
			whole := log[:strings.LastIndex(strings.TrimSuffix(log, "\n"), "\n")+1]
			j.write(j.file("events.jsonl"), whole+test.torn)
			if got, err := j.follow(1); !errors.Is(err, supervise.ErrDead) || len(got) != strings.Count(whole, "\n") {
				t.Errorf("follow: got %d events, %v, want %d, %v", len(got), err, strings.Count(whole, "\n"), supervise.ErrDead)
			}
			if code := j.call("run"); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			events := j.events()
			if last := events[len(events)-1]; len(events) != strings.Count(log, "\n") || last.Result == nil || *last.Result != end || j.end() != end {
				t.Errorf("the log ends with %+v, want %+v", last, end)
			}
		})
	}
}

func TestFollow(t *testing.T) {
	j := newJob(t, `
		echo ready
		cat go
		echo bye`)
	fifo := filepath.Join(j.spec.Workdir, "go")
	j.spec.Setup = [][]string{{"mkfifo", "go"}}

	// A follower may be there before the supervisor is.
	var whole bytes.Buffer
	followed := make(chan error, 1)
	j.give()
	go func() { followed <- supervise.Follow(j.ctx, &whole, j.dir, 0) }()
	cmd := j.start()

	ctx, cancel := context.WithCancel(j.ctx)
	cancel()
	if err := supervise.Follow(ctx, &bytes.Buffer{}, j.dir, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	j.write(fifo, "go on\n")
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	log := j.read(j.file("events.jsonl"))
	if whole.String() != log {
		t.Errorf("followed %q, and the log is %q", whole.String(), log)
	}
	all := j.events()
	from := slices.IndexFunc(all, func(ev cove.JobEvent) bool { return ev.Text == "go on" })
	if from < 0 {
		t.Fatalf("got %+v", all)
	}
	got, err := j.follow(int64(from + 1))
	if err != nil || len(got) != len(all)-from || got[0].Text != "go on" {
		t.Errorf("from %d: got %+v, %v", from+1, got, err)
	}
	if got, err := j.follow(int64(len(all) + 1)); err != nil || len(got) != 0 {
		t.Errorf("from beyond the end: got %+v, %v", got, err)
	}
}

// A supervisor makes its lock before it takes it. A follower that comes in between waits for
// the supervisor.
func TestFollowEarly(t *testing.T) {
	j := newJob(t, "echo ready")
	j.give()
	j.write(j.file("lock"), "")
	followed := make(chan error, 1)
	var whole bytes.Buffer
	go func() { followed <- supervise.Follow(j.ctx, &whole, j.dir, 1) }()
	select {
	case err := <-followed:
		t.Fatalf("got %v of a job that is about to begin", err)
	case <-time.After(300 * time.Millisecond):
	}
	if code := j.call("run"); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	if events := j.parse(whole.String()); len(events) == 0 || events[len(events)-1].Type != "end" {
		t.Errorf("got %v", events)
	}
}
