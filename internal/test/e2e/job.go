package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
)

// WaitingPlan commits, waits for the file go-on in the sprite's home, and commits
// again.
const WaitingPlan = "## One\n```sh\necho 1 > one.txt\n```\n## Two\n```sh\nwhile ! test -e ~/go-on; do sleep 0.1; done\necho 2 > two.txt\n```\n"

// UntilStep waits until the job's second step is at work.
func (h *Host) UntilStep(job string) {
	h.T.Helper()
	Await(h.T, "the second step", func() bool {
		out, code := h.Try("", "cove", "job", "logs", job)
		return code == 0 && strings.Contains(out, "## 2. Two")
	})
}

// Background starts a program. wait waits for its end, and returns its output.
func (h *Host) Background(dir, name string, args ...string) (pid int, wait func() (string, error)) {
	h.T.Helper()
	cmd := h.Command(dir, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return cmd.Process.Pid, func() (string, error) {
		select {
		case err := <-done:
			return out.String(), err
		case <-time.After(LastResort):
			quit := cmd.Process.Signal(syscall.SIGQUIT) // its goroutines say where it stands
			err := errors.Join(quit, <-done)
			return out.String(), fmt.Errorf("%s %v: not ended after %v: %w", name, args, LastResort, err)
		}
	}
}

// Job describes a job.
func (h *Host) Job(id string) cove.Job {
	h.T.Helper()
	var job cove.Job
	if err := json.Unmarshal([]byte(h.Run("", "cove", "job", "show", id, "--json")), &job); err != nil {
		h.T.Fatal(err)
	}
	return job
}

// Events returns a job's events, which must be numbered without a gap.
func (h *Host) Events(id string) []cove.JobEvent {
	h.T.Helper()
	return Numbered(h, h.Run("", "cove", "job", "events", id), 1)
}

// Numbered reads events, which must be numbered from from on without a gap.
func Numbered(h *Host, text string, from int64) []cove.JobEvent {
	h.T.Helper()
	var all []cove.JobEvent
	for line := range strings.Lines(text) {
		var ev cove.JobEvent
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			h.T.Fatalf("%v in %q", err, line)
		}
		if ev.Seq != from+int64(len(all)) {
			h.T.Fatalf("event %d where %d should be", ev.Seq, from+int64(len(all)))
		}
		all = append(all, ev)
	}
	return all
}

// EndServer ends the server, and waits for its end.
func (h *Host) EndServer(sig syscall.Signal) {
	h.T.Helper()
	pid := h.PID()
	SignalAll(h.T, sig, pid)
	if err := AwaitEnd(pid); err != nil {
		h.T.Fatal(err)
	}
}

// Repository makes a git repository with one commit, and returns its folder.
func (h *Host) Repository(name string, files map[string]string) string {
	h.T.Helper()
	for file, text := range files {
		h.Write(name+"/"+file, text)
	}
	h.Run(name, "git", "init", "-q")
	h.Run(name, "git", "add", "-A")
	h.Run(name, "git", "commit", "-q", "-m", "first")
	return name
}

// Push pushes a plan, and returns the job and its sprite.
func (h *Host) Push(repo string, args ...string) (job, sprite string) {
	h.T.Helper()
	out := h.Run(repo, "cove", append([]string{"push", "--json"}, args...)...)
	return JSONField(h.T, out, "job"), JSONField(h.T, out, "sprite")
}
