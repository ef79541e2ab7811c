package supervise_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
)

// stubborn commits, and then does not end by itself or by a signal to its group.
const stubborn = `
	trap '' TERM
	echo x >x; git add x; git commit -q -m x
	echo y >y
	echo ready
	while :; do sleep 6000; done`

func TestTimeout(t *testing.T) {
	t.Parallel()
	longEnough(t, 2, func(limit int64) error {
		j := newJob(t, stubborn)
		j.spec.TimeoutSec, j.spec.GraceSec = limit, 1
		end := j.run()
		if end.Phase != "done" || end.Reason != "timeout" || end.ExitCode != 137 || end.Commits != 1 || end.Leftover == "" {
			return fmt.Errorf("got %+v", end)
		}
		if got := j.subjects(end); !slices.Equal(got, []string{"x"}) {
			t.Errorf("got commits %q", got)
		}
		if left := j.processes(); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
		return nil
	})
}

// An agent that gets SIGTERM has a moment to end in order.
func TestGrace(t *testing.T) {
	j := newJob(t, `
		trap 'echo x >x; git add x; git commit -q -m "in time"; exit 9' TERM
		echo ready
		sleep 6000 & wait`)
	j.spec.GraceSec = 600
	cmd := j.start()
	if err := supervise.Stop(j.dir); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	end := j.end()
	if end.Phase != "done" || end.Reason != "stopped" || end.ExitCode != 9 || end.Commits != 1 {
		t.Errorf("got %+v", end)
	}
	if err := supervise.Stop(j.dir); !errors.Is(err, supervise.ErrDead) {
		t.Errorf("stop what has ended: got %v, want %v", err, supervise.ErrDead)
	}
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	j := newJob(t, stubborn)
	j.spec.GraceSec = 1
	cmd := j.start()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	end := j.end()
	if end.Phase != "done" || end.Reason != "stopped" || end.Commits != 1 {
		t.Errorf("got %+v", end)
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// If a job is stopped before the agent starts, it ends in prepare, and no process of its setup
// is left.
func TestStopDuringSetup(t *testing.T) {
	j := newJob(t, "true")
	began := j.file("began")
	if err := syscall.Mkfifo(began, 0o600); err != nil {
		t.Fatal(err)
	}
	j.spec.Setup = [][]string{{"/bin/sh", "-c", `echo >"$0"; sleep 6000; true`, began}}
	j.give()
	cmd := j.command("run")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.read(began) // waits for the writer
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if end := j.end(); end.Phase != "prepare" || end.Reason != "stopped" {
		t.Errorf("got %+v", end)
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// TestStopBeforeRun: a job that was told to stop before its supervisor had begun does not start
// its agent.
func TestStopBeforeRun(t *testing.T) {
	j := newJob(t, "true")
	j.give()
	if err := supervise.Stop(j.dir); !errors.Is(err, supervise.ErrDead) {
		t.Errorf("got %v, want %v", err, supervise.ErrDead)
	}
	if end := j.run(); end.Phase != "prepare" || end.Reason != "stopped" {
		t.Errorf("got %+v", end)
	}
}

// Processes that an agent leaves running do not outlive it, whatever session they are in.
func TestDaemon(t *testing.T) {
	j := newJob(t, `
		(setsid sh -c 'echo $$; trap "" TERM HUP; while :; do sleep 6000; done' &) &
		wait
		mkfifo up
		setsid env -i sh -c 'echo $$; echo >up; exec sleep 6000' &
		read line <up`)
	end := j.run()
	if end.Phase != "done" || end.Reason != "" || end.ExitCode != 0 {
		t.Errorf("got %+v", end)
	}
	var pids []int
	for _, ev := range j.events() {
		if ev.Type == "output" {
			pid, err := strconv.Atoi(ev.Text)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	// The first may be killed before it says its number.
	if len(pids) == 0 {
		t.Fatal("no daemon said its number")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: got %v, want %v", pid, err, syscall.ESRCH)
		}
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	j := newJob(t, "echo ready; sleep 6000")
	j.spec.GraceSec = 1
	cmd := j.start()
	if code := j.call("run"); code != supervise.ExitBusy {
		t.Errorf("run: exit code %d, want %d", code, supervise.ExitBusy)
	}
	if code := j.call("finalize", "lost"); code != supervise.ExitBusy {
		t.Errorf("finalize: exit code %d, want %d", code, supervise.ExitBusy)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := j.exitCode(cmd); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if end := j.end(); end.Reason != "stopped" {
		t.Errorf("got %+v", end)
	}
	n := 0
	for _, ev := range j.events() {
		if ev.Type == "state" && ev.State == cove.JobRunning {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the agent was started %d times", n)
	}
}

// TestCollectLimit: a git that the agent holds up is killed, with the agent's filter that
// holds it up. The commits come all the same, and the end says what is missing.
func TestCollectLimit(t *testing.T) {
	longEnough(t, 10, func(limit int64) error { return testCollectLimit(t, limit) })
}

func testCollectLimit(t *testing.T, limit int64) error {
	j := newJob(t, `
		echo x >x; echo '*.slow filter=slow' >.gitattributes; git add .; git commit -q -m x
		git config filter.slow.clean 'sleep 100000'
		git config filter.slow.required true
		echo y >y.slow`)
	j.spec.CollectSec = limit
	end := j.run()
	if end.Phase != "collect" || end.Commits != 1 || end.Bundle.Size == 0 || end.Leftover != "" ||
		!strings.Contains(end.Uncollected, "uncommitted changes can't be read: git add did not end in time, and was killed") {
		return fmt.Errorf("got %+v", end)
	}
	if got := j.subjects(end); !slices.Equal(got, []string{"x"}) {
		t.Errorf("got commits %q", got)
	}
	if left := j.processes(); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	return nil
}

// TestBrokenRepository: the end of a job says that its repository can't be read.
func TestBrokenRepository(t *testing.T) {
	j := newJob(t, `rm -rf .git/objects`)
	end := j.run()
	if end.Phase != "collect" || end.Bundle.Size != 0 || !strings.HasPrefix(end.Uncollected, "the repository "+j.spec.Workdir+" can't be read: ") {
		t.Errorf("got %+v", end)
	}
}
