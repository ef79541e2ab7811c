package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// gated is an agent whose installation prints something, and goes on once its sprite has
// the file go.
const gated = `name = "slowly"
version = "1"
argv = ["sh", "-c", "cp ~/installed . && git add -A && git commit -q -m 'Show it'", "{prompt_file}"]
install = [["sh", "-ec", "echo fetching the parts; until test -e ~/go; do sleep 0.1; done; head -c 16 /dev/urandom | od -An -tx1 >>~/installed"]]
verify = ["test", "-s", "{home}/installed"]
`

// installer is a host with the agent gated.
type installer struct {
	*e2e.Host

	repo string
}

func newInstaller(t *testing.T) installer {
	h := e2e.NewHost(t)
	in := installer{h, agentHost(h, gated)}
	h.Serve(nil)
	return in
}

// version changes the agent's version, so that the next push installs it anew.
func (in installer) version(v string) {
	in.T.Helper()
	in.Write("home/.config/cove/agents/slowly.toml", strings.Replace(gated, `version = "1"`, `version = "`+v+`"`, 1))
}

// begin begins a push, whose output goes to a file. It returns the job once the
// installation of its agent has printed something.
func (in installer) begin(out string) (job string, pid int, ended func() (string, error)) {
	in.T.Helper()
	before := in.jobs()
	pid, ended = in.Background(in.repo, "sh", "-c", "exec cove push plan.md --agent slowly --dirty ignore >../"+out+" 2>&1")
	return in.next(before), pid, ended
}

// next returns the job that is not among before, once its installation has printed
// something.
func (in installer) next(before []cove.Job) string {
	in.T.Helper()
	var job string
	e2e.Await(in.T, "an installing job", func() bool {
		for _, j := range in.jobs() {
			if len(before) == len(in.jobs())-1 && !hasJob(before, j.ID) {
				job = j.ID
				return j.State == cove.JobInstalling && j.Installing != nil && j.Installing.Said == "fetching the parts"
			}
		}
		return false
	})
	return job
}

func hasJob(jobs []cove.Job, id string) bool {
	for _, j := range jobs {
		if j.ID == id {
			return true
		}
	}
	return false
}

func (in installer) jobs() []cove.Job {
	in.T.Helper()
	var list cove.JobList
	if err := json.Unmarshal([]byte(in.Run("", "cove", "job", "list", "--json")), &list); err != nil {
		in.T.Fatal(err)
	}
	return list.Jobs
}

// hidden returns the names of the running sprites that agents are being installed in.
func (in installer) hidden() []string {
	in.T.Helper()
	var names []string
	files, _ := filepath.Glob(filepath.Join(in.Data, "run", "*", "sandbox.json")) // the pattern is right
	for _, file := range files {
		var state struct{ Hostname string }
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil || json.Unmarshal(data, &state) != nil {
			in.T.Fatalf("%s: %v", file, err)
		}
		if strings.HasPrefix(state.Hostname, store.InstallName) {
			names = append(names, state.Hostname)
		}
	}
	return names
}

// one waits until an agent is being installed in exactly one sprite, and returns its
// name.
func (in installer) one() string {
	in.T.Helper()
	var names []string
	e2e.Await(in.T, "one installation", func() bool { names = in.hidden(); return len(names) == 1 })
	return names[0]
}

// release lets the installation go on.
func (in installer) release() { in.T.Helper(); in.Sh(in.one(), "touch ~/go") }

// restart ends the server, and waits until the next one installs a job's agent.
func (in installer) restart(sig syscall.Signal, job string) {
	in.T.Helper()
	old := in.one()
	in.EndServer(sig)
	in.Run("", "cove", "server", "start")
	e2e.Await(in.T, "another installation", func() bool {
		names, now := in.hidden(), in.Job(job)
		return len(names) == 1 && names[0] != old && now.State == cove.JobInstalling && now.Installing.Said != ""
	})
}

// none waits until nothing is being installed.
func (in installer) none() {
	in.T.Helper()
	e2e.Await(in.T, "the end of the installation", func() bool { return len(in.hidden()) == 0 })
}

// said returns what a push has printed so far.
func (in installer) said(out string) string {
	in.T.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(in.Home), out))
	if err != nil {
		in.T.Fatal(err)
	}
	return string(text)
}

// refused runs a command that must fail and print want.
func (in installer) refused(want string, args ...string) {
	in.T.Helper()
	if out, code := in.Try(in.repo, "cove", args...); code == 0 || !strings.Contains(out, want) {
		in.T.Errorf("cove %v exited with %d: %s", args, code, out)
	}
}

// TestJobInstalling: jobs whose agent is being installed have an id, and are shown,
// waited for, stopped and removed like others.
func TestJobInstalling(t *testing.T) {
	in := newInstaller(t)
	first, _, firstEnded := in.begin("first")
	if out := in.Run("", "cove", "job", "show", first); !strings.Contains(out, "installing slowly 1, command 1 of 2: fetching the parts") || !strings.Contains(out, "cove job stop "+first) {
		t.Errorf("show: %s", out)
	}
	if out := in.Run("", "cove", "job", "list", "--state", "installing"); !strings.Contains(out, first) {
		t.Errorf("list: %s", out)
	}
	if out, code := in.Try("", "cove", "job", "logs", first); code != 0 || !strings.Contains(out, "has no log yet: installing slowly 1") {
		t.Errorf("logs exited with %d: %s", code, out)
	}
	in.refused("is being installed", "job", "rm", first)
	in.refused("is still being installed", "job", "retry", first)
	in.refused("(installing)", "pull", first)
	in.refused("wait_timeout", "job", "wait", first, "--timeout", "1s", "--json")
	if _, err := in.Client().StartJob(t.Context(), first, cove.JobStart{BundleSHA256: strings.Repeat("0", 64), BundleSize: 1}); err == nil || !strings.Contains(err.Error(), "is still being installed") {
		t.Errorf("start: %v", err)
	}
	if _, err := in.Client().Get(t.Context(), "job-"+first); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("its sprite: %v", err)
	}
	e2e.Await(t, "what the push says", func() bool {
		return strings.Contains(in.said("first"), "Job "+first+" waits until its agent is installed, slowly 1.") && strings.Contains(in.said("first"), "installing slowly 1, command 1 of 2: fetching the parts, ")
	})

	// Another job waits for the same installation, and goes on when the first is stopped.
	second, _, secondEnded := in.begin("second")
	_, logged := in.Background("", "cove", "job", "logs", "-f", second)
	in.one()
	if out := in.Run("", "cove", "job", "stop", first); !strings.Contains(out, "cancelled") {
		t.Errorf("stop: %s", out)
	}
	if _, err := firstEnded(); err == nil || !strings.Contains(in.said("first"), "job "+first+" was stopped while its agent was being installed") {
		t.Errorf("the push of a stopped job: %v: %s", err, in.said("first"))
	}
	if job := in.Job(first); job.State != cove.JobCancelled || job.Installing != nil {
		t.Errorf("stopped: %+v", job)
	}
	in.release()
	if _, err := secondEnded(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("second"))
	}
	if got := shown(in.Host, in.repo, second); strings.Count(got, "\n") != 1 {
		t.Errorf("it has %q", got)
	}
	if out, err := logged(); err != nil || !strings.Contains(out, "-- slowly 1 is from the shared installation") {
		t.Errorf("logs -f: %v: %s", err, out)
	}
	if len(installs(in.Host)) != 1 {
		t.Errorf("installed: %+v", installs(in.Host))
	}

	// Once no job waits for it, the installation ends.
	in.version("2")
	job, _, ended := in.begin("removed")
	in.Run("", "cove", "job", "rm", "--force", job)
	if _, err := ended(); err == nil || !strings.Contains(in.said("removed"), "was deleted") {
		t.Errorf("the push of a removed job: %v: %s", err, in.said("removed"))
	}
	in.none()
	job, pid, ended := in.begin("interrupted")
	e2e.Await(t, "its number", func() bool { return strings.Contains(in.said("interrupted"), job) })
	e2e.SignalAll(t, syscall.SIGINT, pid)
	if _, err := ended(); err == nil || hasJob(in.jobs(), job) || !strings.Contains(in.said("interrupted"), "Job "+job+" was deleted") {
		t.Errorf("interrupted: %v: %s", err, in.said("interrupted"))
	}
	in.none()
	job, _, ended = in.begin("stopped")
	in.Run("", "cove", "job", "stop", job)
	_, _ = ended()
	in.none()

	// A job whose push was killed is queued once it is ready, and can be removed.
	job, pid, ended = in.begin("killed")
	e2e.SignalAll(t, syscall.SIGKILL, pid)
	_, _ = ended()
	in.release()
	e2e.Await(t, "the job's sprite", func() bool { return in.Job(job).State == cove.JobQueued })
	if out := in.Run("", "cove", "job", "show", job); !strings.Contains(out, "cove job rm --force "+job) || in.Job(job).ReadyAt == nil {
		t.Errorf("show: %s", out)
	}
	in.Run("", "cove", "job", "rm", "--force", job)
}

// TestInstallingSprite does things to the sprite of an installation, and takes the name
// that a job's sprite would get.
func TestInstallingSprite(t *testing.T) {
	in := newInstaller(t)
	job, _, ended := in.begin("taken")
	in.Run("", "cove", "create", "job-"+job)
	in.release()
	if _, err := ended(); err == nil || !strings.Contains(in.said("taken"), "push again") || hasJob(in.jobs(), job) {
		t.Errorf("its sprite's name is taken: %v: %s", err, in.said("taken"))
	}
	in.Sh("job-"+job, "true")

	in.version("2")
	job, _, ended = in.begin("moved")
	name := in.one()
	in.Run("", "cove", "checkpoint", "create", "-s", name)
	in.Run("", "cove", "fork", name, "copy")
	if out, code := in.Try("", "cove", "suspend", name); code != 0 && !strings.Contains(out, name) {
		t.Errorf("suspend exited with %d: %s", code, out)
	}
	in.Sh(name, "touch ~/go")
	if _, err := ended(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("moved"))
	}
	if got := shown(in.Host, in.repo, job); strings.Count(got, "\n") != 1 {
		t.Errorf("it has %q", got)
	}
	if len(installs(in.Host)) != 2 {
		t.Errorf("installed: %+v", installs(in.Host))
	}
	in.Run("", "cove", "rm", "--force", "copy")

	// A job whose installation was removed gets one of its own.
	in.version("3")
	job, _, ended = in.begin("alone")
	in.Run("", "cove", "rm", "--force", in.one())
	if _, err := ended(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("alone"))
	}
	in.Sh("job-"+job, "touch ~/go")
	shown(in.Host, in.repo, job)
	if logs := in.Run("", "cove", "job", "logs", job); !strings.Contains(logs, "-- slowly 3 is installed for this job alone: ") {
		t.Errorf("its log: %s", logs)
	}
	if len(installs(in.Host)) != 2 {
		t.Errorf("installed: %+v", installs(in.Host))
	}
}

// TestInstallingServer ends the server while an agent is being installed. The next server
// takes the job up, unless its caller waited for the answer.
func TestInstallingServer(t *testing.T) {
	in := newInstaller(t)
	job, _, ended := in.begin("killed")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		in.restart(sig, job)
	}
	in.release()
	if _, err := ended(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("killed"))
	}
	shown(in.Host, in.repo, job)

	// A client of an earlier version gets its answer only when the job is queued.
	create := func(ctx context.Context, version string) (id string, answer chan cove.Job) {
		req := cove.JobRequest{
			Plan:        "Show it.",
			Author:      cove.Person{Name: "Ada", Email: "ada@example.org"},
			JobSettings: cove.JobSettings{Agent: "slowly", Definition: &cove.AgentDefinition{File: "slowly.toml", Text: strings.Replace(gated, `version = "1"`, `version = "`+version+`"`, 1)}},
			JobSource:   cove.JobSource{PlanName: "plan.md", Repository: "repo", Branch: "main", Base: strings.Repeat("a", 40)},
		}
		before, answer := in.jobs(), make(chan cove.Job, 1)
		client := in.Client()
		go func() {
			job, _ := client.CreateJob(ctx, req) // an error is the zero job
			answer <- job
		}()
		return in.next(before), answer
	}
	id, answer := create(t.Context(), "2")
	in.release()
	if job := <-answer; job.ID != id || job.State != cove.JobQueued || job.Upload == "" {
		t.Errorf("answered: %+v", job)
	}
	in.Run("", "cove", "job", "rm", "--force", id)
	cut, cancel := context.WithCancel(t.Context())
	id, answer = create(cut, "3")
	cancel()
	<-answer
	e2e.Await(t, "the end of a job whose call was cut", func() bool { return !hasJob(in.jobs(), id) })
	in.none()
	id, answer = create(t.Context(), "4")
	in.EndServer(syscall.SIGKILL)
	<-answer
	in.Run("", "cove", "server", "start")
	e2e.Await(t, "the end of a job whose caller is gone", func() bool { return in.Job(id).State == cove.JobFailed })
	if out := in.Run("", "cove", "job", "show", id); !strings.Contains(out, "the server ended while the agent was being installed") || !strings.Contains(out, "push again") {
		t.Errorf("show: %s", out)
	}
	in.none()

	// Only the server starts a retry.
	job, _ = in.Push(in.repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
	in.Run("", "cove", "job", "wait", job)
	in.Run("", "cove", "job", "gc", "--older-than", "0")
	if all := installs(in.Host); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	before := in.jobs()
	pid, retried := in.Background(in.repo, "cove", "job", "retry", job)
	again := in.next(before)
	e2e.SignalAll(t, syscall.SIGKILL, pid)
	_, _ = retried()
	in.restart(syscall.SIGKILL, again)
	in.release()
	if got := shown(in.Host, in.repo, again); strings.Count(got, "\n") != 1 || in.Job(again).RetryOf != job {
		t.Errorf("it has %q", got)
	}
}
