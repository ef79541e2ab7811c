package push_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// change is an agent that makes one commit.
func change(clone repo) {
	clone.write("README", "hello\nworld\n")
	clone.commit("the job's work")
}

// plant is an agent that follows instructions planted in a text that it read.
func plant(clone repo) {
	clone.write("Jenkinsfile", "evil\n")
	change(clone)
}

func options(r repo) push.Options {
	return push.Options{Dir: r.dir, Plan: "do it", JobSettings: cove.JobSettings{Agent: "shell"}}
}

// pushed pushes, and fails the test if that fails.
func pushed(t *testing.T, s *server, opts push.Options) push.Result {
	t.Helper()
	result, err := s.courier().Push(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if result.Job == "" || result.ID != result.Job {
		t.Errorf("the job is %q, and %q", result.Job, result.ID)
	}
	return result
}

func TestPushAndPull(t *testing.T) {
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	plan := filepath.Join(t.TempDir(), "plan.md") // outside the repository
	if err := os.WriteFile(plan, []byte("# Plan\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, change)
	c := s.courier()
	var stages []string
	c.Progress = func(p push.Progress) {
		if p.End && p.Done > 0 && (p.Total == 0 || p.Done == p.Total) {
			stages = append(stages, p.Stage)
		}
	}
	got, err := c.Push(t.Context(), push.Options{Dir: r.dir, PlanPath: plan, JobSettings: cove.JobSettings{TimeoutSec: 2, Agent: "shell"}})
	if want := (push.Result{Job: id, ID: id, Sprite: "paint", Branch: "main", Base: base, Sent: got.Sent}); err != nil || !reflect.DeepEqual(got, want) || got.Sent == 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if s.req.Plan != "# Plan\n" || s.req.PlanName != "plan.md" || s.req.Author != (cove.Person{Name: "Ada", Email: "ada@example.com"}) ||
		s.req.Repository != filepath.Base(r.dir) || s.req.TimeoutSec != 2 || s.req.Agent != "shell" {
		t.Errorf("asked for %+v", s.req)
	}
	if r.git("rev-parse", "refs/cove/"+id+"/base") != base {
		t.Error("the base is not kept")
	}
	p, err := c.Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if err != nil {
		t.Fatal(err)
	}
	if p.Result != push.FastForward || p.Commits != 1 || p.Head != r.git("rev-parse", "main") || p.Ref != "refs/cove/"+id+"/head" || p.Branch != "main" ||
		len(p.Files) != 1 || p.Risky == nil || len(p.Risky) != 0 || p.Already {
		t.Errorf("got %+v", p)
	}
	if !slices.Equal(s.pulled, []string{p.Head}) {
		t.Errorf("the server was told %q", s.pulled)
	}
	// How far git had counted may be known only when the bundle has begun to come.
	if stages = slices.DeleteFunc(stages, func(s string) bool { return s == "count" }); !slices.Equal(stages, []string{"bundle", "upload", "download"}) {
		t.Errorf("progress of %q", stages)
	}
	if status := r.git("status", "--porcelain"); status != "" {
		t.Errorf("not clean: %s", status)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"job":"a3f7b2"`, `"result":"fast-forward"`, `"commits":1`, `"risky":[]`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is missing in %s", want, data)
		}
	}
	s.fails["/fs/read"] = 404 // the sprite may be gone by now
	again, err := c.Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if err != nil || !again.Already || again.Result != push.FastForward || again.Commits != 1 {
		t.Errorf("again: %+v, %v", again, err)
	}
	left, err := os.ReadDir(filepath.Join(r.dir, ".git/cove/tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// The rules for the remotes are added if they are asked for. A push tells a server that does
// not know policies from one that does.
func TestPushNetwork(t *testing.T) {
	r := newRepo(t)
	r.git("remote", "add", "origin", "git@git.example.org:a/b.git")
	r.git("remote", "add", "mirror", "https://git.example.org:8443/a/b.git")
	r.git("remote", "add", "near", "https://10.0.0.5/a")
	network := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}}}
	asked := func(change func(*push.Options, *server)) (string, push.Result, error) {
		t.Helper()
		opts, s := options(r), newServer(t, nil)
		change(&opts, s)
		result, err := s.courier().Push(t.Context(), opts)
		r.git("update-ref", "-d", "refs/cove/"+id+"/base")
		if s.deleted != (err != nil) {
			t.Errorf("deleted: %v, %v", s.deleted, err)
		}
		doc, _ := json.Marshal(s.req.NetworkPolicy)
		return string(doc), result, err
	}
	got, result, err := asked(func(*push.Options, *server) {})
	if got != "null" || err != nil {
		t.Errorf("without a policy: %s, %v", got, err)
	}
	got, result, err = asked(func(o *push.Options, s *server) {
		o.NetworkPolicy, o.Remotes, o.Policed, s.policed = network, true, true, true
	})
	want := `{"rules":[{"include":"agent"},{"domain":"git.example.org","action":"allow","ports":["22","80","443","8443"]}]}`
	if got != want || err != nil || result.NetworkPolicy == nil || len(network.Rules) != 1 {
		t.Errorf("with remotes: %s, %+v, %v", got, result, err)
	}
	got, result, err = asked(func(o *push.Options, s *server) { o.NetworkPolicy = network })
	if got != `{"rules":[{"include":"agent"}]}` || err != nil || result.NetworkPolicy != nil {
		t.Errorf("a server without policies: %s, %+v, %v", got, result, err)
	}
	_, _, err = asked(func(o *push.Options, s *server) { o.NetworkPolicy, o.Policed = network, true })
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "no_policy" {
		t.Errorf("a server without policies, where one was asked for: %v", err)
	}
}

func TestPushRefuses(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, change)
	for _, test := range []struct {
		name string
		opts push.Options
		want string
	}{
		{"no plan file", push.Options{Dir: r.dir, PlanPath: "/nonexistent/plan.md"}, "no such plan: /nonexistent/plan.md"},
		{"folder as plan", push.Options{Dir: r.dir, PlanPath: r.dir}, "is a folder"},
		{"empty plan", push.Options{Dir: r.dir, Plan: " \n"}, "is empty"},
		{"binary plan", push.Options{Dir: r.dir, Plan: "a\xff"}, "not UTF-8"},
		{"big plan", push.Options{Dir: r.dir, Plan: strings.Repeat("x", push.MaxPlan+1)}, "larger than"},
		{"no repository", push.Options{Dir: t.TempDir(), Plan: "x"}, "not in a git repository"},
		{"bad policy", push.Options{Dir: r.dir, Plan: "x", Dirty: "maybe"}, "refuse, include or ignore"},
	} {
		if _, err := s.courier().Push(t.Context(), test.opts); err == nil || !strings.Contains(text(err), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	if s.job.ID != "" {
		t.Error("a job was made")
	}
	if got, want := push.PlanHint("my plan.md"), "a plan is a text file that says what the agent should do; write my plan.md, then: cove push 'my plan.md'\nor give the text itself: cove push -p 'TEXT'"; got != want {
		t.Errorf("the hint is %q, want %q", got, want)
	}
}

func TestPushDirty(t *testing.T) {
	r := newRepo(t)
	head := r.git("rev-parse", "HEAD")
	r.write("README", "uncommitted\n")
	s := newServer(t, func(clone repo) { clone.write("new", "x\n"); clone.commit("work") })
	opts := options(r)
	if _, err := s.courier().Push(t.Context(), opts); !errors.Is(err, gitwork.ErrDirty) {
		t.Errorf("refuse: got %v", err)
	}
	opts.Dirty = push.DirtyIgnore
	if got := pushed(t, s, opts); got.Base != head {
		t.Errorf("ignore: base is %s", got.Base)
	}
	r.git("update-ref", "-d", "refs/cove/"+id+"/base")
	opts.Dirty = push.DirtyInclude
	got := pushed(t, s, opts)
	if got.Base == head || r.git("show", got.Base+":README") != "uncommitted" || r.git("rev-parse", "HEAD") != head {
		t.Errorf("include: base is %s", got.Base)
	}
	r.git("gc", "-q", "--prune=now")
	r.git("cat-file", "-e", got.Base)

	// The job's commits go on top of what the person had, unless that has changed.
	r.write("README", "changed since\n")
	p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	e, ok := errors.AsType[*gitwork.RefusedError](err)
	if !ok || e.Code != "overlap" || p.Result != push.Kept || len(p.Next) == 0 || p.Next[0] != "cove job rebase a3f7b2" {
		t.Fatalf("got %+v, %v", p, err)
	}
	r.write("README", "uncommitted\n")
	if p, err = s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id}); err != nil || p.Result != push.FastForward || p.Snapshot != got.Base || p.Commits != 1 {
		t.Errorf("got %+v, %v", p, err)
	}
	if got := r.git("status", "--porcelain") + r.git("show", "HEAD^:README"); got != "uncommitted" {
		t.Errorf("got %q", got)
	}
}

// The plan's own file need not be committed, as long as it is the only one.
func TestPushUncommittedPlan(t *testing.T) {
	r := newRepo(t)
	head := r.git("rev-parse", "HEAD")
	r.write("plan.md", "# Plan\n")
	s := newServer(t, change)
	opts := push.Options{Dir: r.dir, PlanPath: filepath.Join(r.dir, "plan.md"), JobSettings: cove.JobSettings{Agent: "shell"}}
	if got := pushed(t, s, opts); got.Base != head || len(got.Messages) != 1 || !strings.Contains(got.Messages[0], "plan.md is not committed") {
		t.Errorf("got %+v", got)
	}
	if p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id}); err != nil || p.Result != push.FastForward || p.Snapshot != "" || r.git("status", "--porcelain") != "?? plan.md" {
		t.Errorf("got %+v, %v", p, err)
	}
	r.write("other", "x\n")
	if _, err := s.courier().Push(t.Context(), opts); !errors.Is(err, gitwork.ErrDirty) || !strings.Contains(err.Error(), "other, plan.md") {
		t.Errorf("with another one: %v", err)
	}
}

// Whatever fails after the job was made, it is deleted again.
func TestPushUndoes(t *testing.T) {
	for _, suffix := range []string{"/fs/write", "/start"} {
		r := newRepo(t)
		s := newServer(t, change)
		s.fails[suffix] = 507
		if _, err := s.courier().Push(t.Context(), options(r)); err == nil {
			t.Errorf("%s: no error", suffix)
		}
		if !s.deleted || r.git("for-each-ref", "refs/cove") != "" {
			t.Errorf("%s: deleted %v, refs %q", suffix, s.deleted, r.git("for-each-ref", "refs/cove"))
		}
		if left, _ := os.ReadDir(filepath.Join(r.dir, ".git/cove/tmp")); len(left) > 0 {
			t.Errorf("%s: left %v", suffix, left)
		}
	}
}

// A server that dies during a call may have completed it. The push says so, and what it has
// left behind. It does not delete a job that may run.
func TestPushLosesServer(t *testing.T) {
	for suffix, want := range map[string]string{
		"/v1/jobs":  "create job: the server went away in the middle; the job may have been made all the same; see: cove job list; forget one that waits for its repository: cove job rm --force JOB; and push again",
		"/fs/write": "push job a3f7b2: the server went away in the middle, and the job is still there; forget it: cove job rm --force a3f7b2; and push again",
		"/start":    "push job a3f7b2: the server went away in the middle; the job may have begun all the same; see: cove job show a3f7b2",
	} {
		r := newRepo(t)
		s := newServer(t, change)
		s.dies = suffix
		c := s.courier()
		c.Outlast = 0
		if suffix == "/v1/jobs" { // which is sent again for some seconds
			c.Jobs = losing{c.Jobs}
		}
		_, err := c.Push(t.Context(), options(r))
		e, coded := errors.AsType[*fail.Error](err)
		if !coded || text(err) != want || e.ExitCode() != 75 {
			t.Errorf("%s: got %v, want %s", suffix, err, want)
		}
		if kept := r.git("for-each-ref", "refs/cove") != ""; kept != (suffix == "/start") {
			t.Errorf("%s: the base is kept: %v", suffix, kept)
		}
	}
}

// losing is a server that stays away.
type losing struct{ push.Jobs }

func (losing) CreateJob(context.Context, cove.JobRequest) (cove.Job, error) {
	return cove.Job{}, cove.ErrLost
}

// A push survives a server that dies during a call, and comes back. Whether the server
// completed the call or not, the job begins exactly once.
func TestPushOutlivesServer(t *testing.T) {
	for _, suffix := range []string{"/v1/jobs", "/fs/write", "/start"} {
		for _, cut := range []bool{false, true} {
			r := newRepo(t)
			s := newServer(t, change)
			s.dies, s.cut, s.back = suffix, cut, 3
			c := s.courier()
			away := 0
			c.Outlast, c.Away = time.Minute, func(error) { away++ }
			result, err := c.Push(t.Context(), options(r))
			if err != nil || result.Job != id || s.deleted || (away == 1) != (suffix != "/v1/jobs") || s.starts != 1 {
				t.Errorf("%s, cut %v: got %+v, %v, deleted %v; told %d times, begun %d times", suffix, cut, result, err, s.deleted, away, s.starts)
			}
		}
	}
}

// A push is interrupted after the server has made the job, but before it has answered. The
// push waits for the answer, and deletes the job.
func TestPushInterrupted(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, change)
	for lastResort := time.Now().Add(10 * time.Minute); ; {
		ctx, interrupt := context.WithCancel(t.Context())
		began, cut := time.Now(), false
		s.made = func(req *http.Request) {
			began = time.Now()
			interrupt()
			select {
			case <-req.Context().Done():
				cut = true
			case <-time.After(200 * time.Millisecond):
			}
		}
		_, err := s.courier().Push(ctx, options(r))
		refs := r.git("for-each-ref", "refs/cove")
		good := errors.Is(err, context.Canceled) && !cut && s.deleted && refs == ""
		if !good && time.Since(began) > 2*time.Second && began.Before(lastResort) {
			s.deleted = false
			continue // on a slow machine, the answer came later than a push waits for it
		}
		if !good {
			t.Errorf("got %v, the call was cut %v, deleted %v, refs %q", err, cut, s.deleted, refs)
		}
		break
	}

	// A call that takes long is cut, and the server undoes it.
	ctx, interrupt := context.WithCancel(t.Context())
	s.made = func(req *http.Request) {
		interrupt()
		<-req.Context().Done()
	}
	if _, err := s.courier().Push(ctx, options(r)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A push waits for the installation of its agent, shows it, and says how it ended. A job that
// can't begin is deleted. A job that somebody has stopped is left as it is.
func TestPushInstalls(t *testing.T) {
	r := newRepo(t)
	queue := func(job *cove.Job) { job.State, job.Upload, job.Installing = cove.JobQueued, "/in.bundle", nil }
	s := newServer(t, change)
	s.installs = func(looks int, job *cove.Job) {
		if job.Installing.Command = looks; looks == 3 {
			queue(job)
		}
	}
	c := s.courier()
	var told []int
	c.Installing = func(job cove.Job) { told = append(told, job.Installing.Command) }
	if result, err := c.Push(t.Context(), options(r)); err != nil || result.Job != id || !slices.Equal(told, []int{1, 2}) {
		t.Errorf("got %+v, %v, told %v", result, err, told)
	}
	for name, test := range map[string]struct {
		end     func(*cove.Job)
		want    string
		deleted bool
	}{
		"failed": {func(job *cove.Job) {
			job.State, job.Failure = cove.JobFailed, &sprites.ErrorBody{Code: "no_space", Message: "the disk is full", Hint: "free some"}
		}, "push job a3f7b2: the disk is full (free some)", true},
		"stopped": {func(job *cove.Job) { job.State = cove.JobCancelled }, "job a3f7b2 was stopped while its agent was being installed; push again", false},
		"deleted": {func(job *cove.Job) { job.ID = "b81c44" }, "job a3f7b2 was deleted while its agent was being installed; push again", false},
		"lost":    {func(job *cove.Job) { job.State, job.Error = cove.JobLost, "it is gone" }, "push job a3f7b2: it has ended: it is gone; push again", true},
	} {
		s := newServer(t, nil)
		s.installs = func(_ int, job *cove.Job) { test.end(job) }
		_, err := s.courier().Push(t.Context(), options(r))
		if err == nil || text(err) != test.want || s.deleted != test.deleted {
			t.Errorf("%s: got %v, deleted %v", name, err, s.deleted)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	s = newServer(t, nil)
	s.installs = func(int, *cove.Job) { interrupt() }
	if _, err := s.courier().Push(ctx, options(r)); !errors.Is(err, context.Canceled) || !s.deleted {
		t.Errorf("interrupted: %v, deleted %v", err, s.deleted)
	}
}

func TestPullRefuses(t *testing.T) {
	r := newRepo(t)
	running := newServer(t, nil)
	pushed(t, running, options(r))
	other := repo{t, t.TempDir()}
	other.git("init", "-q", "-b", "main")
	other.write("other", "x\n")
	other.commit("another history")
	for _, test := range []struct {
		name string
		opts push.PullOptions
		want string
	}{
		{"path as job", push.PullOptions{Dir: r.dir, Job: "../../x"}, "bad job id"},
		{"capitals", push.PullOptions{Dir: r.dir, Job: "A3F7B2"}, "bad job id"},
		{"line end", push.PullOptions{Dir: r.dir, Job: id + "\n"}, "bad job id"},
		{"unknown", push.PullOptions{Dir: r.dir, Job: "000000"}, "there is no job 000000"},
		{"bad choice", push.PullOptions{Dir: r.dir, Job: id, Into: "x"}, "ff, branch or none"},
		{"not finished", push.PullOptions{Dir: r.dir, Job: id}, "cove pull a3f7b2 --wait 30m"},
		{"waited in vain", push.PullOptions{Dir: r.dir, Job: id, Wait: 50 * time.Millisecond}, "it goes on; wait longer: cove pull a3f7b2 --wait"},
	} {
		_, err := running.courier().Pull(t.Context(), test.opts)
		if err == nil || !strings.Contains(text(err), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	done := newServer(t, change)
	r.git("update-ref", "-d", "refs/cove/"+id+"/base")
	pushed(t, done, options(r))
	_, err := done.courier().Pull(t.Context(), push.PullOptions{Dir: other.dir, Job: id})
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "wrong_repository" {
		t.Errorf("wrong repository: got %v", err)
	}
	if len(running.pulled)+len(done.pulled) > 0 {
		t.Error("something was marked as pulled")
	}
}

func TestPullNoChanges(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, func(repo) {})
	base := pushed(t, s, options(r)).Base
	p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if err != nil || p.Result != push.NoChanges || p.Commits != 0 || p.Files == nil || p.Risky == nil {
		t.Errorf("got %+v, %v", p, err)
	}
	if !slices.Equal(s.pulled, []string{base}) { // which may let go of the sprite
		t.Errorf("the server was told %q", s.pulled)
	}
}

func TestPullKeeps(t *testing.T) {
	for _, test := range []struct {
		name   string
		into   push.Into
		state  cove.JobState
		code   string // of the refusal
		branch string
	}{
		{"none", push.IntoNone, cove.JobSucceeded, "", "main"},
		{"branch", push.IntoBranch, cove.JobSucceeded, "", "cove-" + id},
		{"failed job", push.IntoFF, cove.JobFailed, "job_failed", "main"},
		{"failed job into a branch", push.IntoBranch, cove.JobTimedOut, "", "cove-" + id},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRepo(t)
			s := newServer(t, change)
			base := pushed(t, s, options(r)).Base
			s.job.State = test.state
			for range 2 {
				p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id, Into: test.into})
				refused, _ := errors.AsType[*gitwork.RefusedError](err)
				if test.code == "" && err != nil || test.code != "" && (refused == nil || refused.Code != test.code) {
					t.Fatalf("got %v", err)
				}
				if p.Result != push.Kept || p.Branch != test.branch || r.git("rev-parse", p.Ref) != p.Head || r.git("rev-parse", "main") != base {
					t.Errorf("got %+v", p)
				}
			}
			if test.into == push.IntoBranch && r.git("rev-parse", "cove-"+id) != s.job.Head {
				t.Error("the branch is not there")
			}
			if len(s.pulled) != 2 { // also of a job that failed: no pull does more with it
				t.Errorf("the server was told %q", s.pulled)
			}
		})
	}
}

func TestPullRejects(t *testing.T) {
	for _, test := range []struct {
		name string
		hurt func(s *server, out string, data []byte) []byte
	}{
		{"edited on the server's disk", func(_ *server, _ string, data []byte) []byte { data[len(data)-30] ^= 1; return data }},
		{"truncated", func(_ *server, _ string, data []byte) []byte { return data[:len(data)/2] }},
		{"longer", func(_ *server, _ string, data []byte) []byte { return append(data, data...) }},
		{"no bundle for the commits", func(s *server, _ string, data []byte) []byte { s.job.Bundle = cove.Artifact{}; return data }},
		{"another head in the record", func(s *server, _ string, data []byte) []byte { s.job.Head = strings.Repeat("1", 40); return data }},
		{"an option as head", func(s *server, _ string, data []byte) []byte { s.job.Head = "--all"; return data }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRepo(t)
			s := newServer(t, change)
			pushed(t, s, options(r))
			out := filepath.Join(s.files, "out.bundle")
			data, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(out, test.hurt(s, out, data), 0o644); err != nil {
				t.Fatal(err)
			}
			before := r.git("for-each-ref") + r.git("status", "--porcelain")
			p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
			e, ok := errors.AsType[*gitwork.RejectedError](err)
			if !ok || e.ExitCode() != 5 || p.Result != push.Rejected {
				t.Errorf("got %+v, %v", p, err)
			}
			if len(p.Messages) == 0 || !strings.Contains(p.Messages[len(p.Messages)-1], "cove console -s ") {
				t.Errorf("where the commits are is not said: %q", p.Messages)
			}
			if after := r.git("for-each-ref") + r.git("status", "--porcelain"); after != before || len(s.pulled) > 0 {
				t.Errorf("changed: %s, told: %q", after, s.pulled)
			}
		})
	}
}

// Two jobs of one base: the first is fast-forwarded, the second kept, and the
// printed command merges it.
func TestSecondJobIsKept(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, change)
	pushed(t, s, options(r))
	r.write("mine", "x\n")
	r.commit("meanwhile")
	p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	e, ok := errors.AsType[*gitwork.RefusedError](err)
	if !ok || e.Code != "branch_moved" || !e.Merges || p.Result != push.Kept || len(p.Next) < 3 || len(s.pulled) != 0 {
		t.Fatalf("got %+v, %v, told %q", p, err, s.pulled)
	}
	if p, err = s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id, AcceptRisky: true}); err == nil || len(p.Next) < 3 || p.Next[0] != "cove job merge "+id+" --accept-risky" {
		t.Errorf("what was looked at: %q, %v", p.Next, err)
	}
	r.git("merge", "-q", "--no-edit", p.Ref)
	if p, err = s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id}); err != nil || p.Result != push.FastForward || !p.Already || len(s.pulled) != 1 {
		t.Errorf("after the merge: %+v, %v, told %q", p, err, s.pulled)
	}
}

// The changes that the agent left uncommitted come on a ref of their own.
func TestPullLeftover(t *testing.T) {
	r := newRepo(t)
	var clone repo
	s := newServer(t, func(c repo) { clone = c; change(c) })
	pushed(t, s, options(r))
	clone.write("left", "x\n")
	left := clone.commit("left uncommitted")
	clone.git("update-ref", "refs/cove/"+id+"/leftover", left)
	out := filepath.Join(s.files, "out.bundle")
	clone.git("bundle", "create", "-q", out, s.job.Ref, "refs/cove/"+id+"/leftover", "^"+s.job.Base)
	s.job.Leftover = left
	s.record(out)
	p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if err != nil || p.Result != push.FastForward || p.Leftover == nil || p.Leftover.SHA != left || len(p.Leftover.Files) != 1 ||
		r.git("rev-parse", p.Leftover.Ref) != left || r.git("rev-parse", "main") != p.Head || len(p.Messages) != 1 {
		t.Errorf("got %+v, %v", p, err)
	}
}

// A change that could make something run here is held, on each way into a branch, until the
// person accepts it. Until then, the job does not count as pulled, though its commits are here.
func TestPullHolds(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, plant)
	base := pushed(t, s, options(r)).Base
	held := func(p push.Pulled, err error) {
		t.Helper()
		e, ok := errors.AsType[*gitwork.RefusedError](err)
		if !ok || e.Code != "risky" || e.ExitCode() != 4 || !slices.Equal(e.Paths, []string{"Jenkinsfile"}) {
			t.Fatalf("got %v", err)
		}
		if p.Result != push.Kept || p.Reason != "risky" || len(p.Risky) != 1 || p.Risky[0].Path != "Jenkinsfile" || p.Commits != 1 ||
			!slices.Equal(p.Next, []string{"cove job diff a3f7b2 -- Jenkinsfile", "cove pull a3f7b2 --accept-risky"}) {
			t.Errorf("got %+v", p)
		}
		if r.git("rev-parse", "main") != base || r.git("rev-parse", "refs/cove/"+id+"/head") != p.Head || r.git("status", "--porcelain") != "" {
			t.Error("the branch or the tree is not as it was, or the commits are not here")
		}
	}
	for range 2 {
		p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
		held(p, err)
		if doc, err := json.Marshal(p); err != nil || !strings.Contains(string(doc), `"result":"kept","reason":"risky"`) || !strings.Contains(string(doc), `"risky":[{"path":"Jenkinsfile","why":`) {
			t.Errorf("got %s, %v", doc, err)
		}
	}
	if _, err := s.courier().Fetch(t.Context(), r.dir, id); err != nil || len(s.pulled) != 0 {
		t.Errorf("held and looked at: the server was told %q, %v", s.pulled, err)
	}
	r.write("mine", "x\n")
	mine, told := r.commit("meanwhile"), 0
	for _, o := range []push.IntegrateOptions{{How: gitwork.Merge}, {How: gitwork.Rebase, Branch: "main"}, {How: gitwork.CherryPick, Commits: []string{s.job.Head[:9]}}} {
		o.Dir, o.Job = r.dir, id
		in, err := s.courier().Integrate(t.Context(), o)
		e, ok := errors.AsType[*gitwork.RefusedError](err)
		again := strings.TrimSpace("cove job " + string(o.How) + " a3f7b2 " + strings.Join(o.Commits, ""))
		if o.Branch != "" {
			again += " --branch main"
		}
		if !ok || !slices.Equal(e.Next, []string{"cove job diff a3f7b2 -- Jenkinsfile", again + " --accept-risky"}) || in.Reason != "risky" || len(in.Risky) != 1 || in.Head != mine {
			t.Errorf("%s: %+v, %v", o.How, in, err)
		}
		if r.git("rev-parse", "main") != mine || r.git("status", "--porcelain") != "" {
			t.Fatalf("%s: something moved", o.How)
		}
		o.AcceptRisky = true
		if in, err = s.courier().Integrate(t.Context(), o); err != nil || in.Reason != "" || len(in.Risky) != 1 || r.git("show", "main:Jenkinsfile") != "evil" {
			t.Errorf("%s, accepted: %+v, %v", o.How, in, err)
		}
		told += map[bool]int{true: 1}[o.How != gitwork.CherryPick]
		if len(s.pulled) != told {
			t.Errorf("%s, accepted: the server was told %q", o.How, s.pulled)
		}
		r.git("reset", "-q", "--hard", mine)
	}
	r.git("reset", "-q", "--hard", base)
	accept := push.PullOptions{Dir: r.dir, Job: id, AcceptRisky: true}
	if p, err := s.courier().Pull(t.Context(), accept); err != nil || p.Result != push.FastForward || len(p.Risky) != 1 || r.git("rev-parse", "main") != s.job.Head {
		t.Errorf("accepted: %+v, %v", p, err)
	}
	accept.AcceptRisky = false
	if p, err := s.courier().Pull(t.Context(), accept); err != nil || !p.Already || p.Result != push.FastForward {
		t.Errorf("what was taken before: %+v, %v", p, err)
	}
}

// A pull that moves no branch holds nothing. Nor are uncommitted changes held.
func TestPullHoldsNot(t *testing.T) {
	for _, into := range []push.Into{push.IntoBranch, push.IntoNone} {
		r := newRepo(t)
		s := newServer(t, plant)
		pushed(t, s, options(r))
		if p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id, Into: into}); err != nil || p.Result != push.Kept || p.Reason != "" || len(p.Risky) != 1 {
			t.Errorf("%s: %+v, %v", into, p, err)
		}
	}
	r := newRepo(t)
	var clone repo
	s := newServer(t, func(c repo) { clone = c; change(c) })
	pushed(t, s, options(r))
	clone.write(".envrc", "x\n")
	left := clone.commit("left uncommitted")
	clone.git("update-ref", "refs/cove/"+id+"/leftover", left)
	out := filepath.Join(s.files, "out.bundle")
	clone.git("bundle", "create", "-q", out, s.job.Ref, "refs/cove/"+id+"/leftover", "^"+s.job.Base)
	s.record(out)
	s.job.Leftover = left
	p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if err != nil || p.Result != push.FastForward || len(p.Risky) != 1 || !strings.Contains(p.Risky[0].Why, "uncommitted") {
		t.Errorf("left: %+v, %v", p, err)
	}
}

// If the server has forgotten a job, the error says where its commits are.
func TestPullForgotten(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, plant)
	pushed(t, s, options(r))
	_, held := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	s.fails["/jobs/"+id] = 404
	_, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "bad_job" || !strings.HasSuffix(e.Hint, "git merge refs/cove/a3f7b2/head") || held == nil {
		t.Errorf("got %v", err)
	}
}

// away is a server that can't be reached at the first call.
type away struct {
	push.Jobs
	calls int
}

func (a *away) Job(ctx context.Context, id string) (cove.Job, error) {
	if a.calls++; a.calls == 1 {
		return cove.Job{}, syscall.ECONNREFUSED
	}
	return a.Jobs.Job(ctx, id)
}

// A pull that waits outlives a server that is away when it begins.
func TestPullBeginsWithoutServer(t *testing.T) {
	r := newRepo(t)
	done := newServer(t, change)
	pushed(t, done, options(r))
	for wait, ok := range map[time.Duration]bool{0: false, time.Minute: true} {
		c := done.courier()
		c.Jobs = &away{Jobs: c.Jobs}
		_, err := c.Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id, Wait: wait})
		if ok != (err == nil) || !ok && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("waiting for %v: %v", wait, err)
		}
	}
}

// text is what an error says, and what it says to type next.
func text(err error) string {
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

// TestPullUncollected: a pull does not say that all is well if some of a job's work is only in
// its sprite.
func TestPullUncollected(t *testing.T) {
	for name, agent := range map[string]func(repo){"nothing": func(repo) {}, "partly": change} {
		r := newRepo(t)
		s := newServer(t, agent)
		pushed(t, s, options(r))
		s.job.Uncollected, s.job.Workdir = "the repository can't be read", "/home/sprite/work/a3f7b2/my repo"
		p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
		e, ok := errors.AsType[*fail.Error](err)
		if !ok || e.Code != "uncollected" || e.ExitCode() != 75 || !p.Uncollected || !strings.Contains(e.Message, "(the repository can't be read); the sprite paint alone has it") ||
			e.Hint != "copy its files out: cove sync pull -s paint '/home/sprite/work/a3f7b2/my repo' ./job-a3f7b2" {
			t.Errorf("%s: got %+v, %+v", name, p, err)
		}
		if told, came := len(s.pulled) > 0, p.Result == push.FastForward; told != (name == "partly") || came != told {
			t.Errorf("%s: result %s, the server was told %q", name, p.Result, s.pulled)
		}
	}
}

// TestPullMoved: a pull that moves the branch says so, even if an earlier pull has brought
// the commits.
func TestPullMoved(t *testing.T) {
	r := newRepo(t)
	s := newServer(t, plant)
	base := pushed(t, s, options(r)).Base
	for i, test := range []struct {
		undo, accept, moved bool
	}{{}, {accept: true, moved: true}, {accept: true}, {undo: true, accept: true, moved: true}, {}} {
		if test.undo {
			r.git("reset", "-q", "--hard", base)
		}
		before := r.git("rev-parse", "main")
		p, _ := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id, AcceptRisky: test.accept})
		if p.Moved != test.moved || p.Moved != (r.git("rev-parse", "main") != before) {
			t.Errorf("pull %d: got %+v", i, p)
		}
	}
}

// TestTakeLeftover runs the command that a pull names for uncommitted changes, with and without
// changes of the person's in the same file.
func TestTakeLeftover(t *testing.T) {
	lines := func(first, last string) string { return first + strings.Repeat("\nx", 20) + "\n" + last + "\n" }
	for name, test := range map[string]struct {
		mine map[string]string // what the person has changed
		want string            // of the file afterwards
	}{
		"clean":         {nil, lines("a", "theirs")},
		"another file":  {map[string]string{"other": "x\n"}, lines("a", "theirs")},
		"the same file": {map[string]string{"sub/a b": lines("mine", "z")}, lines("mine", "theirs")},
	} {
		r := newRepo(t)
		if err := os.Mkdir(filepath.Join(r.dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		r.write("sub/a b", lines("a", "z"))
		r.commit("long")
		var clone repo
		s := newServer(t, func(c repo) { clone = c })
		pushed(t, s, options(r))
		clone.write("sub/a b", lines("a", "theirs"))
		s.job.Leftover = clone.commit("left uncommitted")
		clone.git("update-ref", "refs/cove/"+id+"/leftover", s.job.Leftover)
		out := filepath.Join(s.files, "out.bundle")
		clone.git("bundle", "create", "-q", out, "refs/cove/"+id+"/leftover", "^"+s.job.Base)
		s.record(out)
		for file, text := range test.mine {
			r.write(file, text)
		}
		p, err := s.courier().Pull(t.Context(), push.PullOptions{Dir: r.dir, Job: id})
		if err != nil || len(p.Next) != 1 || len(p.Messages) == 0 || !strings.HasSuffix(p.Messages[0], "; take them: "+p.Next[0]) {
			t.Fatalf("%s: got %+v, %v", name, p, err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", p.Next[0])
		cmd.Dir = filepath.Join(r.dir, "sub")
		said, err := cmd.CombinedOutput()
		got, readErr := os.ReadFile(filepath.Join(r.dir, "sub/a b"))
		if err != nil || readErr != nil || string(got) != test.want {
			t.Errorf("%s: %s: %v: %s: got %q, %v", name, p.Next[0], err, said, got, readErr)
		}
	}
}
