package main

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/cove-dev/cove/internal/test/leakcheck"
	"github.com/cove-dev/cove/sprites"
)

// soak reports whether the long form of a test is wanted (make soak); make test
// runs a sample.
func soak() bool { return os.Getenv("COVE_SOAK") == "1" }

// waitingPlan commits, waits for the file go-on in the sprite's home, and commits
// again.
const waitingPlan = "## One\n```sh\necho 1 > one.txt\n```\n## Two\n```sh\nwhile ! test -e ~/go-on; do sleep 0.1; done\necho 2 > two.txt\n```\n"

// untilStep waits until the job's second step is at work.
func (h *host) untilStep(job string) {
	h.t.Helper()
	await(h.t, "the second step", func() bool {
		out, code := h.try("", "cove", "job", "logs", job)
		return code == 0 && strings.Contains(out, "## 2. Two")
	})
}

// background starts a program whose output and end can be awaited.
func (h *host) background(dir, name string, args ...string) (pid int, wait func() (string, error)) {
	h.t.Helper()
	cmd := h.command(dir, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return cmd.Process.Pid, func() (string, error) {
		select {
		case err := <-done:
			return out.String(), err
		case <-time.After(lastResort):
			quit := cmd.Process.Signal(syscall.SIGQUIT) // its goroutines say where it stands
			err := errors.Join(quit, <-done)
			return out.String(), fmt.Errorf("%s %v: not ended after %v: %w", name, args, lastResort, err)
		}
	}
}

// TestSoakKill kills each process in the middle of a job, with -9. The job's
// commits arrive all the same; where its sandbox is killed the job is lost, and
// what it had done until then arrives.
func TestSoakKill(t *testing.T) {
	rounds, all := 1, []string{"server and shim", "command line", "server and sandbox"}
	if os.Geteuid() != 0 { // make test is root, and runs this as an ordinary user besides
		all = []string{"server", "shim", "sandbox"}
	}
	if soak() {
		rounds, all = 5, []string{"server", "shim", "server and shim", "command line", "sandbox", "server and sandbox"}
	}
	for _, victims := range all {
		for round := range rounds {
			t.Run(fmt.Sprintf("%s %d", victims, round), func(t *testing.T) { testKill(t, victims) })
		}
	}
}

func testKill(t *testing.T, victims string) {
	h := newHost(t)
	h.serve(nil)
	repo := h.repository("repo", map[string]string{"plan.md": waitingPlan})
	job, sprite := h.push(repo, "plan.md", "--agent", "shell")
	pull, ended := h.background(repo, "cove", "pull", job, "--wait=10m")
	h.untilStep(job)
	await(t, "the pull's connection", func() bool { return connected(pull) })
	for who := range strings.SplitSeq(victims, " and ") {
		switch who {
		case "server":
			pid := h.pid()
			signalAll(t, syscall.SIGKILL, pid)
		case "shim":
			signalAll(t, syscall.SIGKILL, h.shims()...)
		case "sandbox":
			st, err := shim.ReadState(h.run1())
			if err != nil {
				t.Fatal(err)
			}
			signalAll(t, syscall.SIGKILL, st.PID)
		case "command line":
			signalAll(t, syscall.SIGKILL, pull)
		}
	}
	lost := strings.Contains(victims, "sandbox")
	if !lost {
		h.run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	}
	if victims != "command line" {
		h.run("", "cove", "server", "start") // starts a server where there is none
		h.try("", "cove", "job", "wait", job)
	}
	out, code := h.try(repo, "cove", "pull", job, "--wait=10m")
	subjects := h.run(repo, "git", "log", "--format=%s", "refs/cove/"+job+"/head")
	want := "Two\nOne\nfirst\n"
	if lost {
		want = "One\nfirst\n"
		show := h.run("", "cove", "job", "show", job)
		if !strings.Contains(show, "lost") {
			t.Errorf("the job is not lost: %s", show)
		}
	} else if code != 0 {
		t.Errorf("pull exited with %d: %s", code, out)
	}
	if subjects != want {
		t.Errorf("commits: got %q, want %q; pull said %s", subjects, want, out)
	}
	// The pull that was waiting has gone on with the next server.
	if said, err := ended(); err != nil && !lost && victims != "command line" {
		t.Errorf("the waiting pull: %v: %s", err, said)
	}
}

// connected reports whether a process has a socket.
func connected(pid int) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	return slices.ContainsFunc(fds, func(fd string) bool {
		target, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(target, "socket:")
	})
}

// run1 is the folder of the one sandbox that runs.
func (h *host) run1() string {
	h.t.Helper()
	runs, err := filepath.Glob(filepath.Join(h.data, "run", "*"))
	if err != nil || len(runs) != 1 {
		h.t.Fatalf("there are %d sandboxes, not one", len(runs))
	}
	return runs[0]
}

// TestSoakSleep is a machine that goes to sleep: the sandbox stands still, and so
// do its shim, the server and the command lines. When it wakes, nothing has been
// hurt, and no guard has fired: what counts is running time.
func TestSoakSleep(t *testing.T) {
	limit := 7 * time.Second
	if soak() {
		limit = 30 * time.Second
	}
	h := newLoneHost(t)
	h.serve(nil)
	longEnough(t, limit, h.sleeps)
}

// sleeps is TestSoakSleep with a job that has a time limit, which it outsleeps. It reports
// whether the job was done in time: else the machine is too slow for the limit, or sleep
// counts.
func (h *host) sleeps(limit time.Duration) (inTime bool) {
	t := h.t
	t.Helper()
	repo := h.repository("repo-"+limit.String(), map[string]string{"plan.md": waitingPlan})
	job, sprite := h.push(repo, "plan.md", "--agent", "shell", "--timeout", limit.String())
	pull, pulled := h.background(repo, "cove", "pull", job, "--wait=10m")
	exec, executed := h.background("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "while ! test -e ~/go-on; do sleep 0.1; done; echo awake")
	await(t, "the second step", func() bool {
		return h.job(job).State.Terminal() || strings.Contains(h.run("", "cove", "job", "logs", job), "## 2. Two")
	})

	client := shim.Client{Dir: h.run1()}
	if err := client.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	asleep := append(h.shims(), h.pid(), pull, exec)
	signalAll(t, syscall.SIGSTOP, asleep...)
	<-time.After(limit)
	signalAll(t, syscall.SIGCONT, asleep...)
	if err := client.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}

	h.run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	if out, err := executed(); err != nil || out != "awake\n" {
		t.Errorf("the command: got %q, %v", out, err)
	}
	out, err := pulled()
	if h.job(job).State == cove.JobTimedOut {
		h.run("", "cove", "rm", "--force", sprite)
		return false
	}
	if err != nil || !strings.Contains(out, "Fast-forwarded main") {
		t.Errorf("the pull: got %q, %v", out, err)
	}
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	return true
}

// TestSoakCycles makes, uses and deletes sprites, and looks what of them is left:
// mounts, namespaces, interfaces, cgroups, processes, files, and what the server
// holds.
func TestSoakCycles(t *testing.T) {
	cycles := 10
	if soak() {
		cycles = 200
	}
	h := newLoneHost(t)
	h.serve(nil)
	client := h.client()
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
	cycle(0) // what is made once
	before, err := leakcheck.Take(filepath.Join(h.data, "run", "*"), filepath.Join(h.data, "layers", "*"), filepath.Join(h.data, "images", "*"))
	if err != nil {
		t.Fatal(err)
	}
	held := holdings(t, h.pid())
	started := time.Now()
	for i := range cycles {
		cycle(i + 1)
	}
	t.Logf("%d cycles, %v each", cycles, time.Since(started)/time.Duration(cycles))
	ctx, cancel := context.WithTimeout(t.Context(), lastResort)
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
	if now := holdings(t, h.pid()); now > held+3 {
		t.Errorf("the server held %d files before, and %d after", held, now)
	}
	runtime.KeepAlive(client)
}

// holdings is how many files a process has open.
func holdings(t testing.TB, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
