package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/leakcheck"
	"github.com/cove-dev/cove/sprites"
)

// TestSoakKill kills processes in the middle of a job, with -9. The job's commits still
// arrive. If its sandbox is killed, the job is lost, and its commits until then arrive.
func TestSoakKill(t *testing.T) {
	rounds, all := 1, []string{"server and shim", "command line", "server and sandbox"}
	if os.Geteuid() != 0 { // make test is root, and runs this as an ordinary user besides
		all = []string{"server", "shim", "sandbox"}
	}
	if e2e.Soak() {
		rounds, all = 5, []string{"server", "shim", "server and shim", "command line", "sandbox", "server and sandbox"}
	}
	for _, victims := range all {
		for round := range rounds {
			t.Run(fmt.Sprintf("%s %d", victims, round), func(t *testing.T) { testKill(t, victims) })
		}
	}
}

func testKill(t *testing.T, victims string) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	pull, ended := h.Background(repo, "cove", "pull", job, "--wait=10m")
	h.UntilStep(job)
	e2e.Await(t, "the pull's connection", func() bool { return e2e.Connected(pull) })
	for who := range strings.SplitSeq(victims, " and ") {
		switch who {
		case "server":
			pid := h.PID()
			e2e.SignalAll(t, syscall.SIGKILL, pid)
		case "shim":
			e2e.SignalAll(t, syscall.SIGKILL, h.Shims()...)
		case "sandbox":
			st, err := shim.ReadState(run1(h))
			if err != nil {
				t.Fatal(err)
			}
			e2e.SignalAll(t, syscall.SIGKILL, st.PID)
		case "command line":
			e2e.SignalAll(t, syscall.SIGKILL, pull)
		}
	}
	lost := strings.Contains(victims, "sandbox")
	if !lost {
		h.Run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	}
	if victims != "command line" {
		h.Run("", "cove", "server", "start") // starts a server where there is none
		h.Try("", "cove", "job", "wait", job)
	}
	out, code := h.Try(repo, "cove", "pull", job, "--wait=10m")
	subjects := h.Run(repo, "git", "log", "--format=%s", "refs/cove/"+job+"/head")
	want := "Two\nOne\nfirst\n"
	if lost {
		want = "One\nfirst\n"
		show := h.Run("", "cove", "job", "show", job)
		if !strings.Contains(show, "lost") {
			t.Errorf("the job is not lost: %s", show)
		}
	} else if code != 0 {
		t.Errorf("pull exited with %d: %s", code, out)
	}
	if subjects != want {
		t.Errorf("commits: got %q, want %q; pull said %s", subjects, want, out)
	}
	// The waiting pull has gone on with the next server.
	if said, err := ended(); err != nil && !lost && victims != "command line" {
		t.Errorf("the waiting pull: %v: %s", err, said)
	}
}

// run1 returns the folder of the only running sandbox.
func run1(h *e2e.Host) string {
	h.T.Helper()
	runs, err := filepath.Glob(filepath.Join(h.Data, "run", "*"))
	if err != nil || len(runs) != 1 {
		h.T.Fatalf("there are %d sandboxes, not one", len(runs))
	}
	return runs[0]
}

// TestSoakSleep acts like a machine that goes to sleep: the sandbox, its shim, the server
// and the command lines are stopped. When they resume, nothing is damaged, and no guard
// has fired: only running time counts.
func TestSoakSleep(t *testing.T) {
	limit := 7 * time.Second
	if e2e.Soak() {
		limit = 30 * time.Second
	}
	h := e2e.NewLoneHost(t)
	h.Serve(nil)
	e2e.LongEnough(t, limit, func(limit time.Duration) bool { return sleeps(h, limit) })
}

// sleeps is TestSoakSleep with a job that sleeps longer than its time limit. It reports
// whether the job was done in time. If not, the machine is too slow for the limit, or
// sleep counts.
func sleeps(h *e2e.Host, limit time.Duration) (inTime bool) {
	t := h.T
	t.Helper()
	repo := h.Repository("repo-"+limit.String(), map[string]string{"plan.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell", "--timeout", limit.String())
	pull, pulled := h.Background(repo, "cove", "pull", job, "--wait=10m")
	exec, executed := h.Background("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "while ! test -e ~/go-on; do sleep 0.1; done; echo awake")
	e2e.Await(t, "the second step", func() bool {
		return h.Job(job).State.Terminal() || strings.Contains(h.Run("", "cove", "job", "logs", job), "## 2. Two")
	})

	client := shim.Client{Dir: run1(h)}
	if err := client.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The job may be beyond its time limit already. Then the pull has ended, or is about to.
	asleep := append(h.Shims(), h.PID(), exec)
	e2e.SignalAll(t, syscall.SIGSTOP, asleep...)
	_ = e2e.Signal(pull, syscall.SIGSTOP)
	<-time.After(limit)
	_ = e2e.Signal(pull, syscall.SIGCONT)
	e2e.SignalAll(t, syscall.SIGCONT, asleep...)
	if err := client.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}

	h.Run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	if out, err := executed(); err != nil || out != "awake\n" {
		t.Errorf("the command: got %q, %v", out, err)
	}
	out, err := pulled()
	if h.Job(job).State == cove.JobTimedOut {
		h.Run("", "cove", "rm", "--force", sprite)
		return false
	}
	if err != nil || !strings.Contains(out, "Fast-forwarded main") {
		t.Errorf("the pull: got %q, %v", out, err)
	}
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	return true
}

// TestSoakCycles makes, uses and deletes sprites, and checks that nothing of them is left
// (mounts, namespaces, interfaces, cgroups, processes, files, and open files of the
// server).
func TestSoakCycles(t *testing.T) {
	cycles := 10
	if e2e.Soak() {
		cycles = 200
	}
	h := e2e.NewLoneHost(t)
	h.Serve(nil)
	client := h.Client()
	cycle := func(i int) {
		ctx := t.Context()
		name := fmt.Sprintf("cycle-%d", i)
		if _, err := client.Create(ctx, sprites.CreateRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		if out, err := client.Sprite(name).Command("echo", name).Output(); err != nil || string(out) != name+"\n" {
			t.Fatalf("%s: got %q, %v", name, out, err)
		}
		if err := client.Delete(ctx, name, sprites.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cycle(0) // makes the parts that are made once
	before, err := leakcheck.Take(filepath.Join(h.Data, "run", "*"), filepath.Join(h.Data, "layers", "*"), filepath.Join(h.Data, "images", "*"))
	if err != nil {
		t.Fatal(err)
	}
	held := holdings(t, h.PID())
	started := time.Now()
	for i := range cycles {
		cycle(i + 1)
	}
	t.Logf("%d cycles, %v each", cycles, time.Since(started)/time.Duration(cycles))
	ctx, cancel := context.WithTimeout(t.Context(), e2e.LastResort)
	defer cancel()
	left, err := leakcheck.Left(ctx, before)
	if err != nil {
		t.Fatal(err)
	}
	// Tests of other packages run beside this one, and have namespaces of their own.
	left = slices.DeleteFunc(left, func(thing leakcheck.Thing) bool {
		return thing.Kind == leakcheck.Namespace && strings.Contains(thing.Detail, " -test.")
	})
	if err := leakcheck.Error(left); err != nil {
		t.Error(err)
	}
	e2e.Await(t, "the server holds no more files than before", func() bool { return holdings(t, h.PID()) <= held+3 })
	runtime.KeepAlive(client)
}

// holdings returns how many files a process has open.
func holdings(t testing.TB, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
