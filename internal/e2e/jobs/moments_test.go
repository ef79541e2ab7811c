package jobs

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// momentPlan makes two commits. The second changes many files, so that the agent, the
// collecting and a pull take some time.
const momentPlan = "## One\n```sh\necho 1 > one.txt\nsleep 0.3\n```\n" +
	"## Two\n```sh\nfor i in $(seq 1 200); do echo changed $i > file$i.txt; done\nrm gone.txt\nsleep 0.3\n```\n"

// TestSoakMoments kills the server, the shims or the command line, with -9, at random
// moments of a push, a running job and a pull. The same commands, run again, bring the
// work home. No commit is lost. The branch is at its old or its new commit, and the tree
// is never half changed. A job that an interrupted push began and did not complete is not
// at work. In make soak there are 40 rounds instead of 3; the moments are the same each
// time.
func TestSoakMoments(t *testing.T) {
	rounds := 3
	if e2e.Soak() {
		rounds = 40
	}
	var h *e2e.Host
	t.Cleanup(func() { // after the host's
		e2e.Await(t, "the end of all that was begun", func() bool { return len(wholeMachine(h)) == 0 })
	})
	h = e2e.NewHost(t)
	h.Serve(nil)
	rng := rand.New(rand.NewPCG(5, 0x0c0e))
	var order []moment
	for len(order) < rounds {
		for _, i := range rng.Perm(9) {
			order = append(order, moment{
				phase: []string{"push", "job", "pull"}[i%3], victim: []string{"server", "shim", "command line"}[i/3], at: rng.Float64(),
			})
		}
	}
	for i, m := range order[:rounds] {
		t.Run(fmt.Sprintf("%d %s in a %s", i, m.victim, m.phase), func(t *testing.T) {
			inner := *h
			inner.T = t
			m.repo = fmt.Sprintf("repo%d", i)
			m.test(&inner)
		})
		if t.Failed() {
			return
		}
	}
}

// moment says what is killed, and when.
type moment struct {
	phase, victim string
	at            float64 // of the phase's time
	repo          string
	first         string // the commit that is pushed
}

// long returns about how long a phase takes.
func (m *moment) long() time.Duration {
	return map[string]time.Duration{"push": 1500 * time.Millisecond, "job": 2 * time.Second, "pull": 400 * time.Millisecond}[m.phase]
}

func (m *moment) test(h *e2e.Host) {
	files := map[string]string{"plan.md": momentPlan, "gone.txt": "x\n"}
	for i := range 200 {
		files[fmt.Sprintf("file%d.txt", i+1)] = "first\n"
	}
	h.Repository(m.repo, files)
	m.first = m.head(h)
	job := m.push(h)
	if m.phase == "job" {
		waiting, waited := h.Background(m.repo, "cove", "pull", job, "--wait=10m")
		m.kill(h, waiting)
		_, _ = waited()
	} else {
		h.Try("", "cove", "job", "wait", job, "--timeout", "10m")
	}
	if m.phase == "pull" {
		pid, ended := h.Background(m.repo, "cove", "pull", job)
		m.kill(h, pid)
		_, _ = ended()
		if head := m.head(h); head != m.first && head != h.Job(job).Head {
			h.T.Errorf("the branch is at %s, neither where it was nor where it should be", head)
		}
	}
	if out, code := h.Try(m.repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		h.T.Fatalf("pull exited with %d: %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	m.whole(h, job)
	h.Run("", "cove", "job", "rm", "--force", job)
}

// push pushes until it is done, and returns the job. An interrupted push leaves the
// repository as it was. At most it leaves a job that waits for its bundle, or one that
// runs as if nothing had happened.
func (m *moment) push(h *e2e.Host) string {
	h.T.Helper()
	args := []string{"push", "--json", "plan.md", "--agent", "shell"}
	if m.phase != "push" {
		return e2e.JSONField(h.T, h.Run(m.repo, "cove", args...), "job")
	}
	pid, ended := h.Background(m.repo, "cove", args...)
	m.kill(h, pid)
	out, err := ended()
	if head, status := m.head(h), h.Run(m.repo, "git", "status", "--porcelain"); head != m.first || status != "" {
		h.T.Errorf("the push left the branch at %s, and the tree as %s", head, status)
	}
	var pushed struct{ Job string }
	if err == nil && json.Unmarshal([]byte(out), &pushed) == nil && pushed.Job != "" {
		return pushed.Job
	}
	job := e2e.JSONField(h.T, h.Run(m.repo, "cove", args...), "job")
	for _, other := range m.others(h, job) {
		// This job was pushed before the kill, and can be pulled like any other.
		if other.State != cove.JobQueued {
			h.Run("", "cove", "job", "wait", other.ID, "--timeout", "10m")
			h.Run(m.repo, "cove", "pull", other.ID, "--into=none")
		}
		h.Run("", "cove", "job", "rm", "--force", other.ID)
	}
	return job
}

// others returns the jobs of the repository, except one.
func (m *moment) others(h *e2e.Host, but string) []cove.Job {
	h.T.Helper()
	jobs, err := h.Client().Jobs(h.T.Context())
	if err != nil {
		h.T.Fatal(err)
	}
	var others []cove.Job
	for _, job := range jobs {
		if job.Repository == m.repo && job.ID != but {
			others = append(others, job)
		}
	}
	return others
}

// kill waits for the moment, and kills the victim. The victim may be gone, or not there
// yet.
func (m *moment) kill(h *e2e.Host, commandLine int) {
	h.T.Helper()
	<-time.After(time.Duration(m.at * float64(m.long())))
	victims := []int{commandLine}
	switch m.victim {
	case "server":
		victims = []int{h.PID()}
	case "shim":
		victims = h.Shims()
	}
	for _, pid := range victims {
		_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
	}
	if m.victim == "server" {
		if err := e2e.AwaitEnd(victims[0]); err != nil {
			h.T.Fatal(err)
		}
		h.Run("", "cove", "server", "start") // starts the next one
	}
}

func (m *moment) head(h *e2e.Host) string {
	h.T.Helper()
	return strings.TrimSpace(h.Run(m.repo, "git", "rev-parse", "refs/heads/main"))
}

// whole checks the repository and the job in the end.
func (m *moment) whole(h *e2e.Host, job string) {
	h.T.Helper()
	if got := h.Run(m.repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		h.T.Errorf("commits: got %q", got)
	}
	if got := h.Run(m.repo, "git", "status", "--porcelain"); got != "" {
		h.T.Errorf("the tree is not what the branch says: %s", got)
	}
	if got := h.Run(m.repo, "cat", "file200.txt"); got != "changed 200\n" {
		h.T.Errorf("file200.txt: got %q", got)
	}
	if out, code := h.Try(m.repo, "git", "fsck", "--strict", "--no-dangling"); code != 0 {
		h.T.Errorf("git fsck: %s", out)
	}
	if got, want := h.Run(m.repo, "git", "rev-parse", "refs/cove/"+job+"/head"), h.Run(m.repo, "git", "rev-parse", "main"); got != want {
		h.T.Errorf("the job's ref is %s, and the branch %s", got, want)
	}
	if got := h.Job(job); got.State != cove.JobSucceeded || got.PulledAt == nil {
		h.T.Errorf("the job is %s, pulled %v: %+v", got.State, got.PulledAt, got.Outcome)
	}
}
