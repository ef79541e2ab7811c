package jobs

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// waiter is a command that waits for something.
type waiter struct {
	*exec.Cmd
	said  e2e.Acks
	ended chan error
}

func newWaiter(h *e2e.Host, dir string, env []string, args ...string) *waiter {
	h.T.Helper()
	w := &waiter{Cmd: h.Command(dir, "cove", args...), ended: make(chan error, 1)}
	w.Env = append(w.Env, env...)
	w.Stdout, w.Stderr = &w.said, &w.said
	if err := w.Start(); err != nil {
		h.T.Fatal(err)
	}
	go func() { w.ended <- w.Wait() }()
	e2e.Await(h.T, strings.Join(args, " ")+": its connection", func() bool { return e2e.Connected(w.Process.Pid) || len(w.ended) > 0 })
	return w
}

// TestWaitStartsKilledServer kills the server under commands that wait. Commands that may
// start a server do so, and go on with it. The others say how to start one, and go on once one
// runs.
func TestWaitStartsKilledServer(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.UntilStep(job)
	var none *waiter
	for tries, gone := 1, false; !gone; tries++ {
		none = newWaiter(h, repo, []string{"COVE_AUTOSTART=0"}, "job", "wait", job)
		e2e.SignalAll(t, syscall.SIGKILL, h.PID())
		e2e.Await(t, "the word that the server is gone", func() bool {
			said := none.said.String()
			gone = strings.Contains(said, "the server does not answer") && strings.Contains(said, "cove server start")
			return gone || len(none.ended) > 0 // it was connected, and did not wait yet
		})
		if !gone && tries == 10 {
			t.Fatalf("it ends: %s", none.said.String())
		}
		h.Run("", "cove", "server", "start")
	}
	e2e.Await(t, "the word that it is back", func() bool { return strings.Contains(none.said.String(), "the server is back") })

	wait := newWaiter(h, repo, nil, "job", "wait", job)
	pull := newWaiter(h, repo, nil, "pull", job, "--wait")
	for tries, back := 1, false; !back; tries++ { // one that is asking for the first time just starts a server
		last := h.PID()
		e2e.SignalAll(t, syscall.SIGKILL, last)
		e2e.Await(t, "a server that no command of the test has started", func() bool {
			server, err := datafolder.Read(h.Data)
			return err == nil && server.PID != last && datafolder.Serves(h.Data, server)
		})
		said := wait.said.String() + pull.said.String()
		if back = strings.Contains(said, "was killed; starting it again"); !back && tries == 10 {
			t.Fatalf("none says that it starts a server: %s", said)
		}
	}
	h.Run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	for _, w := range []*waiter{none, wait, pull} {
		if err := <-w.ended; err != nil {
			t.Errorf("%v: %v: %s", w.Args[1:], err, w.said.String())
		}
	}
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
}
