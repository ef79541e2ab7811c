package main

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/datafolder"
)

// waiter is a command that waits for something.
type waiter struct {
	*exec.Cmd
	said  acks
	ended chan error
}

func (h *host) waiter(dir string, env []string, args ...string) *waiter {
	h.t.Helper()
	w := &waiter{Cmd: h.command(dir, "cove", args...), ended: make(chan error, 1)}
	w.Env = append(w.Env, env...)
	w.Stdout, w.Stderr = &w.said, &w.said
	if err := w.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() { w.ended <- w.Wait() }()
	await(h.t, strings.Join(args, " ")+": its connection", func() bool { return connected(w.Process.Pid) })
	return w
}

// TestWaitStartsKilledServer kills the server under commands that wait. Those that may start a
// server do, and go on with it; the others say how to start one, and go on once somebody has.
func TestWaitStartsKilledServer(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	repo := h.repository("repo", map[string]string{"plan.md": waitingPlan})
	job, sprite := h.push(repo, "plan.md", "--agent", "shell")
	h.untilStep(job)
	var none *waiter
	for tries, gone := 1, false; !gone; tries++ {
		none = h.waiter(repo, []string{"COVE_AUTOSTART=0"}, "job", "wait", job)
		signalAll(t, syscall.SIGKILL, h.pid())
		await(t, "the word that the server is gone", func() bool {
			said := none.said.String()
			gone = strings.Contains(said, "the server does not answer") && strings.Contains(said, "cove server start")
			return gone || len(none.ended) > 0 // it was connected, and did not wait yet
		})
		if !gone && tries == 10 {
			t.Fatalf("it ends: %s", none.said.String())
		}
		h.run("", "cove", "server", "start")
	}
	await(t, "the word that it is back", func() bool { return strings.Contains(none.said.String(), "the server is back") })

	wait := h.waiter(repo, nil, "job", "wait", job)
	pull := h.waiter(repo, nil, "pull", job, "--wait")
	last := h.pid()
	signalAll(t, syscall.SIGKILL, last)
	await(t, "a server that no command of the test has started", func() bool {
		server, err := datafolder.Read(h.data)
		return err == nil && server.PID != last && datafolder.Serves(h.data, server)
	})
	h.run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	for _, w := range []*waiter{none, wait, pull} {
		if err := <-w.ended; err != nil {
			t.Errorf("%v: %v: %s", w.Args[1:], err, w.said.String())
		}
	}
	if said := wait.said.String() + pull.said.String(); !strings.Contains(said, "was killed; starting it again") {
		t.Errorf("none says that it starts a server: %s", said)
	}
	if got := h.run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
}
