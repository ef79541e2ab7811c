package main

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
	"github.com/cove-dev/cove/sprites"
)

// gated is an agent whose installation says something, and goes on when its sprite has
// the file go.
const gated = `name = "slowly"
version = "1"
argv = ["sh", "-c", "cp ~/installed . && git add -A && git commit -q -m 'Show it'", "{prompt_file}"]
install = [["sh", "-ec", "echo fetching the parts; until test -e ~/go; do sleep 0.1; done; head -c 16 /dev/urandom | od -An -tx1 >>~/installed"]]
verify = ["test", "-s", "{home}/installed"]
`

// installer is a host with the agent gated.
type installer struct {
	*host

	repo string
}

func newInstaller(t *testing.T) installer {
	h := newHost(t)
	in := installer{h, agentHost(h, gated)}
	h.serve(nil)
	return in
}

// version has the next push install the agent anew.
func (in installer) version(v string) {
	in.t.Helper()
	in.write("home/.config/cove/agents/slowly.toml", strings.Replace(gated, `version = "1"`, `version = "`+v+`"`, 1))
}

// begin begins a push, whose output goes to a file, and returns the job once its agent
// is being installed and has said something.
func (in installer) begin(out string) (job string, pid int, ended func() (string, error)) {
	in.t.Helper()
	before := in.jobs()
	pid, ended = in.background(in.repo, "sh", "-c", "exec cove push plan.md --agent slowly --dirty ignore >../"+out+" 2>&1")
	return in.next(before), pid, ended
}

// next is the job that was not there before, once its installation has said something.
func (in installer) next(before []cove.Job) string {
	in.t.Helper()
	var job string
	await(in.t, "an installing job", func() bool {
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
	in.t.Helper()
	var list cove.JobList
	if err := json.Unmarshal([]byte(in.run("", "cove", "job", "list", "--json")), &list); err != nil {
		in.t.Fatal(err)
	}
	return list.Jobs
}

// hidden are the sprites in which agents are being installed.
func (in installer) hidden() []string {
	in.t.Helper()
	var names []string
	files, _ := filepath.Glob(filepath.Join(in.data, "run", "*", "sandbox.json")) // the pattern is right
	for _, file := range files {
		var state struct{ Hostname string }
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil || json.Unmarshal(data, &state) != nil {
			in.t.Fatalf("%s: %v", file, err)
		}
		if strings.HasPrefix(state.Hostname, store.InstallName) {
			names = append(names, state.Hostname)
		}
	}
	return names
}

// one is the one sprite in which an agent is being installed.
func (in installer) one() string {
	in.t.Helper()
	var names []string
	await(in.t, "one installation", func() bool { names = in.hidden(); return len(names) == 1 })
	return names[0]
}

// release lets the installation go on.
func (in installer) release() { in.t.Helper(); in.sh(in.one(), "touch ~/go") }

// restart ends the server, and waits until the next one installs a job's agent.
func (in installer) restart(sig syscall.Signal, job string) {
	in.t.Helper()
	old := in.one()
	in.endServer(sig)
	in.run("", "cove", "server", "start")
	await(in.t, "another installation", func() bool {
		names, now := in.hidden(), in.job(job)
		return len(names) == 1 && names[0] != old && now.State == cove.JobInstalling && now.Installing.Said != ""
	})
}

// none waits until nothing is being installed.
func (in installer) none() {
	in.t.Helper()
	await(in.t, "the end of the installation", func() bool { return len(in.hidden()) == 0 })
}

// said is what a push has said so far.
func (in installer) said(out string) string {
	in.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(in.home), out))
	if err != nil {
		in.t.Fatal(err)
	}
	return string(text)
}

// refused runs a command that must fail and say something.
func (in installer) refused(want string, args ...string) {
	in.t.Helper()
	if out, code := in.try(in.repo, "cove", args...); code == 0 || !strings.Contains(out, want) {
		in.t.Errorf("cove %v exited with %d: %s", args, code, out)
	}
}

// TestJobInstalling looks at jobs whose agent is being installed: they have a number, and
// are seen, waited for, stopped and removed as others are.
func TestJobInstalling(t *testing.T) {
	in := newInstaller(t)
	first, _, firstEnded := in.begin("first")
	if out := in.run("", "cove", "job", "show", first); !strings.Contains(out, "installing slowly 1, command 1 of 2: fetching the parts") || !strings.Contains(out, "cove job stop "+first) {
		t.Errorf("show: %s", out)
	}
	if out := in.run("", "cove", "job", "list", "--state", "installing"); !strings.Contains(out, first) {
		t.Errorf("list: %s", out)
	}
	if out, code := in.try("", "cove", "job", "logs", first); code != 0 || !strings.Contains(out, "has no log yet: installing slowly 1") {
		t.Errorf("logs exited with %d: %s", code, out)
	}
	in.refused("is being installed", "job", "rm", first)
	in.refused("is still being installed", "job", "retry", first)
	in.refused("(installing)", "pull", first)
	in.refused("wait_timeout", "job", "wait", first, "--timeout", "1s", "--json")
	if _, err := in.client().StartJob(t.Context(), first, cove.JobStart{BundleSHA256: strings.Repeat("0", 64), BundleSize: 1}); err == nil || !strings.Contains(err.Error(), "is still being installed") {
		t.Errorf("start: %v", err)
	}
	if _, err := in.client().Get(t.Context(), "job-"+first); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("its sprite: %v", err)
	}
	await(t, "what the push says", func() bool {
		return strings.Contains(in.said("first"), "Job "+first+" waits until its agent is installed, slowly 1.") && strings.Contains(in.said("first"), "installing slowly 1, command 1 of 2: fetching the parts, ")
	})

	// Another one waits for the same, and goes on when the first is stopped.
	second, _, secondEnded := in.begin("second")
	_, logged := in.background("", "cove", "job", "logs", "-f", second)
	in.one()
	if out := in.run("", "cove", "job", "stop", first); !strings.Contains(out, "cancelled") {
		t.Errorf("stop: %s", out)
	}
	if _, err := firstEnded(); err == nil || !strings.Contains(in.said("first"), "job "+first+" was stopped while its agent was being installed") {
		t.Errorf("the push of a stopped job: %v: %s", err, in.said("first"))
	}
	if job := in.job(first); job.State != cove.JobCancelled || job.Installing != nil {
		t.Errorf("stopped: %+v", job)
	}
	in.release()
	if _, err := secondEnded(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("second"))
	}
	if got := in.shown(in.repo, second); strings.Count(got, "\n") != 1 {
		t.Errorf("it has %q", got)
	}
	if out, err := logged(); err != nil || !strings.Contains(out, "-- slowly 1 is from the installation that jobs share") {
		t.Errorf("logs -f: %v: %s", err, out)
	}
	if len(in.installs()) != 1 {
		t.Errorf("installed: %+v", in.installs())
	}

	// When nobody waits for it any more, the installation ends.
	in.version("2")
	job, _, ended := in.begin("removed")
	in.run("", "cove", "job", "rm", "--force", job)
	if _, err := ended(); err == nil || !strings.Contains(in.said("removed"), "was deleted") {
		t.Errorf("the push of a removed job: %v: %s", err, in.said("removed"))
	}
	in.none()
	job, pid, ended := in.begin("interrupted")
	await(t, "its number", func() bool { return strings.Contains(in.said("interrupted"), job) })
	signalAll(t, syscall.SIGINT, pid)
	if _, err := ended(); err == nil || hasJob(in.jobs(), job) || !strings.Contains(in.said("interrupted"), "Job "+job+" was deleted") {
		t.Errorf("interrupted: %v: %s", err, in.said("interrupted"))
	}
	in.none()
	job, _, ended = in.begin("stopped")
	in.run("", "cove", "job", "stop", job)
	_, _ = ended()
	in.none()

	// One whose push was killed is queued when it is ready, and can be forgotten.
	job, pid, ended = in.begin("killed")
	signalAll(t, syscall.SIGKILL, pid)
	_, _ = ended()
	in.release()
	await(t, "the job's sprite", func() bool { return in.job(job).State == cove.JobQueued })
	if out := in.run("", "cove", "job", "show", job); !strings.Contains(out, "cove job rm --force "+job) || in.job(job).ReadyAt == nil {
		t.Errorf("show: %s", out)
	}
	in.run("", "cove", "job", "rm", "--force", job)
}

// TestInstallingSprite does things to the sprite of an installation, and takes the name
// that a job's sprite is to have.
func TestInstallingSprite(t *testing.T) {
	in := newInstaller(t)
	job, _, ended := in.begin("taken")
	in.run("", "cove", "create", "job-"+job)
	in.release()
	if _, err := ended(); err == nil || !strings.Contains(in.said("taken"), "push again") || hasJob(in.jobs(), job) {
		t.Errorf("its sprite's name is taken: %v: %s", err, in.said("taken"))
	}
	in.sh("job-"+job, "true")

	in.version("2")
	job, _, ended = in.begin("moved")
	name := in.one()
	in.run("", "cove", "checkpoint", "create", "-s", name)
	in.run("", "cove", "fork", name, "copy")
	if out, code := in.try("", "cove", "suspend", name); code != 0 && !strings.Contains(out, name) {
		t.Errorf("suspend exited with %d: %s", code, out)
	}
	in.sh(name, "touch ~/go")
	if _, err := ended(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("moved"))
	}
	if got := in.shown(in.repo, job); strings.Count(got, "\n") != 1 {
		t.Errorf("it has %q", got)
	}
	if len(in.installs()) != 2 {
		t.Errorf("installed: %+v", in.installs())
	}
	in.run("", "cove", "rm", "--force", "copy")

	// A job whose installation was removed has one of its own.
	in.version("3")
	job, _, ended = in.begin("alone")
	in.run("", "cove", "rm", "--force", in.one())
	if _, err := ended(); err != nil {
		t.Errorf("push: %v: %s", err, in.said("alone"))
	}
	in.sh("job-"+job, "touch ~/go")
	in.shown(in.repo, job)
	if logs := in.run("", "cove", "job", "logs", job); !strings.Contains(logs, "-- slowly 3 is installed for this job alone: ") {
		t.Errorf("its log: %s", logs)
	}
	if len(in.installs()) != 2 {
		t.Errorf("installed: %+v", in.installs())
	}
}

// TestInstallingServer ends the server while an agent is being installed. The next one
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
	in.shown(in.repo, job)

	// A client of an earlier cove has its answer when the job is queued.
	create := func(ctx context.Context, version string) (id string, answer chan cove.Job) {
		req := cove.JobRequest{
			Plan:        "Show it.",
			Author:      cove.Person{Name: "Ada", Email: "ada@example.org"},
			JobSettings: cove.JobSettings{Agent: "slowly", Definition: &cove.AgentDefinition{File: "slowly.toml", Text: strings.Replace(gated, `version = "1"`, `version = "`+version+`"`, 1)}},
			JobSource:   cove.JobSource{PlanName: "plan.md", Repository: "repo", Branch: "main", Base: strings.Repeat("a", 40)},
		}
		before, answer := in.jobs(), make(chan cove.Job, 1)
		client := in.client()
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
	in.run("", "cove", "job", "rm", "--force", id)
	cut, cancel := context.WithCancel(t.Context())
	id, answer = create(cut, "3")
	cancel()
	<-answer
	await(t, "the end of a job whose call was cut", func() bool { return !hasJob(in.jobs(), id) })
	in.none()
	id, answer = create(t.Context(), "4")
	in.endServer(syscall.SIGKILL)
	<-answer
	in.run("", "cove", "server", "start")
	await(t, "the end of a job whose caller is gone", func() bool { return in.job(id).State == cove.JobFailed })
	if out := in.run("", "cove", "job", "show", id); !strings.Contains(out, "the server ended while the agent was being installed") || !strings.Contains(out, "push again") {
		t.Errorf("show: %s", out)
	}
	in.none()

	// The server alone begins to do a job again.
	job, _ = in.push(in.repo, "plan.md", "--agent", "slowly", "--dirty", "ignore")
	in.run("", "cove", "job", "wait", job)
	in.run("", "cove", "job", "gc", "--older-than", "0")
	if all := in.installs(); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	before := in.jobs()
	pid, retried := in.background(in.repo, "cove", "job", "retry", job)
	again := in.next(before)
	signalAll(t, syscall.SIGKILL, pid)
	_, _ = retried()
	in.restart(syscall.SIGKILL, again)
	in.release()
	if got := in.shown(in.repo, again); strings.Count(got, "\n") != 1 || in.job(again).RetryOf != job {
		t.Errorf("it has %q", got)
	}
}
