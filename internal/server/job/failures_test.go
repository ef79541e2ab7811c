package job

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// mishap is a failure that befalls a job in one of its phases.
type mishap string

const (
	anError      mishap = "error"
	aTimeOut     mishap = "time-out"
	aCancel      mishap = "cancel"
	noServer     mishap = "crash of the server"
	noSupervisor mishap = "crash of the supervisor"
)

var mishaps = []mishap{anError, aTimeOut, aCancel, noServer, noSupervisor}

// phase is a part of a job's life, and how a test has it fail, or stand still, there.
type phase struct {
	name  string // a cove.StepKey, or one of those after the preparation
	call  string // the call to the service that it is; empty: it is the supervisor's
	exec  bool   // that call is a command in the sprite
	shell func(c *cell, script string)
	never map[mishap]string // the failures that it has not, with why
}

const (
	notYet = "there is no supervisor yet"
	inTime = "the phase has no limit: its supervisor's first words end it, and a silent one is started again"
)

// phases are all, in their order, but install_agent, which is not at a service (TestSoakInstall
// kills there), and upload_repository, which is the pusher's.
var phases = []phase{
	{name: "create_sprite", call: `^POST /v1/sprites$`, never: map[mishap]string{noSupervisor: notYet}},
	{name: "apply_policy", call: `^POST .*/policy/network$`, never: map[mishap]string{noSupervisor: notYet}},
	{name: "probe_arch", call: `/exec\?.*uname`, exec: true, never: map[mishap]string{noSupervisor: notYet}},
	{name: "upload_supervisor", call: `^PUT .*cove-guest`, never: map[mishap]string{noSupervisor: notYet}},
	{name: "copy_settings", call: `^PUT .*job\.json`, never: map[mishap]string{noSupervisor: notYet}},
	{name: "start_supervisor", call: `^PUT .*/services/`, never: map[mishap]string{noSupervisor: notYet}},
	{name: "health_check", call: `/exec\?.*follow`, exec: true, never: map[mishap]string{aTimeOut: inTime, anError: "what the log can't be read for is an outage, which ends nothing: TestBackendOutage"}},
	{name: "install_deps", shell: func(c *cell, script string) {
		c.without("git", "node", "npm", "apk", "dnf", "sudo")
		c.program("apt-get", `case "$*" in *install*) `+script+`; ln -s `+c.git+` "$HOME"/bin/git;; esac`)
		c.program("id", "echo 0")
	}},
	{name: "clone", shell: func(c *cell, script string) {
		c.program("git", `case "$*" in *" fetch "*) `+script+`;; esac; exec `+c.git+` "$@"`)
	}},
	{name: "setup_script", shell: func(c *cell, script string) {
		c.req.SetupScript = &cove.SetupScript{Name: "setup", Text: script}
	}},
	{name: "configure_agent", shell: func(c *cell, script string) {
		c.program("configure", script)
		c.req.Agent = "configured"
		c.req.Definition = &cove.AgentDefinition{File: "configured.toml", Text: "name = 'configured'\nsetup = [['configure']]\nargv = ['sh', '-c', 'echo x >x; git add x; git commit -q -m work', '{prompt_file}']\nverify = ['sh']\n"}
	}},
	{name: "verify_commit", shell: func(c *cell, script string) {
		c.req.SetupScript = &cove.SetupScript{Name: "setup", Text: `echo x >"$HOME"/verified`}
		c.program("git", `case "$*" in *"rev-parse --verify HEAD^{commit}") if rm "$HOME"/verified 2>/dev/null; then `+script+`; fi;; esac; exec `+c.git+` "$@"`)
	}},
	{name: "running", shell: func(c *cell, script string) {
		c.req.Plan = "# Work\n```sh\necho x >x; git add x; git commit -q -m work\n" + script + "\n```\n"
	}},
	{name: "collecting", shell: func(c *cell, script string) {
		c.program("git", `case "$*" in *" bundle create "*) `+script+`;; esac; exec `+c.git+` "$@"`)
	}, never: map[mishap]string{
		aTimeOut: "the server's own limit is TestCollectCut's",
		aCancel:  "the agent has ended, and its work is collected whoever stops the job",
	}},
}

// cell is a job that one failure befalls in one phase.
type cell struct {
	*testing.T
	phase
	mishap
	b    *bench
	s    *site
	o    *office
	req  cove.JobRequest
	git  string        // the real one
	path string        // of the test itself
	at   string        // is there when the phase has been reached inside
	free string        // lets it go on there
	pace chan struct{} // lets it go on at the service
	temp string        // has the temporary files of the test
	job  cove.Job
}

// program puts a script into the sprite's PATH. A link of that name to the machine's own program
// is replaced, and not written through.
func (c *cell) program(name, script string) {
	c.Helper()
	dir := filepath.Join(c.b.home, "bin")
	to := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.RemoveAll(to), executable.WriteFile(to, []byte("#!/bin/sh\n"+script+"\n"), 0o755)); err != nil {
		c.Fatal(err)
	}
}

// without takes programs out of the sprite's PATH.
func (c *cell) without(names ...string) {
	c.Helper()
	for _, dir := range filepath.SplitList(c.path) {
		all, _ := os.ReadDir(dir) // of a PATH some may be missing
		for _, e := range all {
			if to := filepath.Join(c.b.home, "bin", e.Name()); !slices.Contains(names, e.Name()) && !exists(to) {
				if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(filepath.Join(dir, e.Name()), to)); err != nil {
					c.Fatal(err)
				}
			}
		}
	}
}

// arrange has the phase fail, or stand still.
func (c *cell) arrange() {
	c.Helper()
	if c.call != "" {
		fault := fakeprovider.Fault{Call: c.call, Pace: c.pace}
		switch {
		case c.mishap == anError:
			fault = fakeprovider.Fault{Call: c.call, Status: http.StatusBadRequest, Body: `{"error":"bad","message":"no route to it"}`}
		case c.late():
			fault = fakeprovider.Fault{Call: c.call, Late: c.pace}
		case c.exec:
			fault = fakeprovider.Fault{Call: c.call, Silent: true, Times: 1}
		}
		c.s.Add(fault)
		return
	}
	script := "echo no route to it >&2; echo x >" + c.at + "; while ! test -e " + c.free + "; do sleep 0.1; done"
	if c.mishap == anError {
		script = "echo no route to it >&2; exit 5"
	}
	c.shell(c, script)
}

// late is whether the service carries out the phase's call after that was given up.
func (c *cell) late() bool {
	return c.name == "create_sprite" && c.mishap != aCancel || c.name == "start_supervisor" && c.mishap == aTimeOut
}

// goOn lets the phase go on.
func (c *cell) goOn() {
	c.Helper()
	close(c.pace)
	c.s.CarryOut()
	c.s.Clear()
	if err := os.WriteFile(c.free, nil, 0o644); err != nil {
		c.Fatal(err)
	}
}

// wait waits until something is so.
func (c *cell) wait(what string, is func() bool) {
	c.Helper()
	limit := time.After(5 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit:
			c.Fatalf("%s: it does not come", what)
		}
	}
}

// reached waits until the job is in its phase.
func (c *cell) reached() {
	c.Helper()
	c.wait("the phase", func() bool {
		if c.call != "" {
			return len(c.s.Calls(c.call)) > 0
		}
		return exists(c.at)
	})
}

// push does what a pusher does: it asks for the job, sends the repository, and hands over.
func (c *cell) push(ctx context.Context) (cove.Job, error) {
	client := c.o.client
	job, err := client.CreateJob(ctx, c.req)
	if err != nil {
		return job, err
	}
	bundle := filepath.Join(c.temp, "..", "in.bundle")
	data, err := os.ReadFile(bundle)
	if err == nil {
		err = spriteOf(client, job).WriteFile(ctx, job.Upload, bytes.NewReader(data), sprites.WriteOptions{})
	}
	if err != nil {
		return job, err
	}
	_, err = client.StartJob(ctx, job.ID, cove.JobStart{BundleSHA256: digestOf(data), BundleSize: int64(len(data))})
	return job, err
}

// rows are all jobs.
func (c *cell) rows() []cove.Job {
	c.Helper()
	rows, err := c.o.client.Jobs(context.WithoutCancel(c.Context()))
	if err != nil {
		c.Fatal(err)
	}
	return rows
}

// made is whether the job has its sprite before the failure.
func (c *cell) made() bool { return c.name != "create_sprite" && c.name != "apply_policy" }

// handed is whether a supervisor has the job before the failure, or is being started.
func (c *cell) handed() bool {
	return c.made() && c.name != "probe_arch" && c.name != "upload_supervisor" && c.name != "copy_settings"
}

// told checks an error of a call.
func (c *cell) told(err error) {
	c.Helper()
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok {
		c.Fatalf("got %v", err)
	}
	want := "no route to it"
	if c.mishap == aTimeOut {
		want = c.name + " took longer than the 1s that it has"
	}
	if !strings.Contains(e.Message, want) || c.mishap == aTimeOut && !strings.Contains(e.Hint, "cove push --step-limit "+c.name+"=2s PLAN") {
		c.Errorf("got %q, with the hint %q", e.Message, e.Hint)
	}
	if !command.MatchString(e.Hint + " ") {
		c.Errorf("it says nothing to type: %q, of %q", e.Hint, e.Message)
	}
}

// command is a command of cove's in a text.
var command = regexp.MustCompile(`\bcove (push|job|profile|ping|policy|backend) `)

// ended checks a job that a failure inside has ended.
func (c *cell) ended(state cove.JobState) {
	c.Helper()
	c.job = c.b.await(c.job.ID)
	if c.job.State != state || c.job.Outcome == nil || c.job.Outcome.Reason == "" && state != cove.JobSucceeded {
		c.Errorf("it is %s, %+v, %q; want %s", c.job.State, c.job.Outcome, c.job.Error, state)
		return
	}
	if c.name == "running" || c.name == "collecting" || state != cove.JobFailed {
		return
	}
	step := stepOf(c.T, c.o.client, c.job.ID, cove.StepKey(c.name))
	want := []string{"no route to it"}
	if c.mishap == aTimeOut {
		if want = append(want, "longer than", "1s"); !exists(c.at) {
			want = want[1:]
		}
		if !strings.Contains(step.Hint, "cove push --step-limit "+c.name+"=2s PLAN") || !step.TimedOut {
			c.Errorf("the hint is %q", step.Hint)
		}
	}
	if step.State != cove.StepFailed || !command.MatchString(step.Hint+" ") {
		c.Errorf("the step is %s, with the hint %q", step.State, step.Hint)
	}
	for _, w := range want {
		if !strings.Contains(step.Error+step.Output.String(), w) {
			c.Errorf("the step says %q, %q; want %q", step.Error, step.Output.String(), w)
		}
	}
}

// stopped has the job stopped by its owner, who has given up.
func (c *cell) stopped() {
	c.Helper()
	job, err := c.o.client.StopJob(c.Context(), c.job.ID)
	if err != nil {
		c.Fatal(err)
	}
	if job = c.b.await(job.ID); job.State != cove.JobCancelled {
		c.Errorf("it is %s, %+v", job.State, job.Outcome)
	}
}

// run makes the failure befall the job, and checks what becomes of the job.
func (c *cell) run() {
	c.Helper()
	if c.mishap == aTimeOut {
		c.req.StepLimits = map[cove.StepKey]int64{cove.StepKey(c.name): 1}
		if c.name == "running" {
			c.req.StepLimits, c.req.TimeoutSec = nil, 1
		}
	}
	c.arrange()
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	pushed := make(chan error, 1)
	go func() { _, err := c.push(ctx); pushed <- err }()
	switch c.mishap {
	case anError:
		c.fails(<-pushed)
		return
	case aTimeOut: // it may come before the phase stands still
		c.overdue(<-pushed)
		c.goOn()
		return
	}
	c.reached()
	if all := c.rows(); len(all) == 1 {
		c.job = all[0]
	} else {
		c.Fatalf("there are %d jobs", len(all))
	}
	switch c.mishap {
	case aCancel:
		c.cancelled(cancel, pushed)
	case noServer:
		c.restarted(cancel, pushed)
	case noSupervisor:
		c.killed(pushed)
	}
}

// overdue checks what becomes of a push whose phase takes too long.
func (c *cell) overdue(err error) {
	c.Helper()
	if c.name != "running" {
		c.fails(err)
		return
	}
	if err != nil {
		c.Fatal(err)
	}
	c.job = c.rows()[0]
	c.ended(cove.JobTimedOut)
}

// fails checks what becomes of a push whose phase failed.
func (c *cell) fails(err error) {
	c.Helper()
	if c.call != "" {
		c.told(err)
	} else if err != nil {
		c.Fatal(err)
	}
	all := c.rows()
	if !c.made() {
		if len(all) != 0 {
			c.Errorf("the job is left: %+v", all)
		}
		return
	}
	c.job = all[0]
	switch {
	case c.name == "start_supervisor":
		c.ended(cove.JobFailed)
		if exists(filepath.Join(c.b.folder(c.job.ID), "job.json")) { // without which one that comes late does nothing
			c.Error("its settings are still in the sprite")
		}
	case c.handed():
		c.ended(cove.JobFailed)
	default: // the pusher may hand over again, and here gives up
		step := stepOf(c.T, c.o.client, c.job.ID, cove.StepKey(c.name))
		if c.job.State != cove.JobQueued || step.State != cove.StepPending || step.Warning == "" {
			c.Errorf("the job is %s, and the step %+v", c.job.State, step)
		}
		c.stopped()
	}
}

// cancelled has the job stopped in its phase, or its pusher go away.
func (c *cell) cancelled(cancel func(), pushed chan error) {
	c.Helper()
	if !c.made() {
		cancel()
		c.Log("the call that was cancelled:", <-pushed)
		c.goOn()
		c.wait("the end of the creation", func() bool { return len(c.rows()) == 0 && len(c.s.sprites()) == 0 })
		return
	}
	stopped := make(chan error, 1)
	go func() { _, err := c.o.client.StopJob(c.Context(), c.job.ID); stopped <- err }()
	if c.name == "start_supervisor" { // the stop waits for it
		c.goOn()
	}
	if err := <-stopped; err != nil {
		c.Error(err)
	}
	c.ended(cove.JobCancelled)
	if err := <-pushed; err != nil && code(err) != "job_ended" {
		c.Error(err)
	}
	if c.name != "start_supervisor" {
		c.goOn()
	}
}

// restarted kills the server in the phase, and starts another over what it left. From then on
// nothing that the first server does is stored, or gets to the service.
func (c *cell) restarted(leave func(), pushed chan error) {
	c.Helper()
	c.s.DownAfter(func() {
		if err := c.o.Store.Close(); err != nil {
			c.Error(err)
		}
	})
	ended := make(chan struct{})
	go func() { c.o.server.Kill(); close(ended) }()
	c.goOn()
	<-ended
	leave() // else the pusher asks again
	if err := <-pushed; c.call != "" && err == nil && !c.handed() {
		c.Error("the push went well")
	}
	c.s.SetDown(false)
	c.o = c.s.work(c.b)
	all := c.rows()
	if !c.made() { // nobody waits for the job: it is gone, or its lease ends it
		if err := c.o.janitor.expire(c.Context(), time.Now().Add(2*c.o.Lease)); err != nil {
			c.Error(err)
		}
		for _, job := range all {
			if job, err := c.o.client.Job(c.Context(), job.ID); err != nil || !job.State.Terminal() || job.Outcome.Reason == "" {
				c.Errorf("the job is %+v, %v", job, err)
			}
		}
		return
	}
	if !c.handed() { // the pusher hands over again
		data, err := os.ReadFile(filepath.Join(c.temp, "..", "in.bundle"))
		if err == nil {
			_, err = c.o.client.StartJob(c.Context(), c.job.ID, cove.JobStart{BundleSHA256: digestOf(data), BundleSize: int64(len(data))})
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	c.ended(cove.JobSucceeded)
	if c.job.Commits != 1 || c.job.Bundle.Size == 0 {
		c.Errorf("it has %d commits, %+v", c.job.Commits, c.job.Bundle)
	}
}

// killed kills the supervisor in the phase.
func (c *cell) killed(pushed chan error) {
	c.Helper()
	if err := <-pushed; err != nil {
		c.Fatal(err)
	}
	if c.name == "health_check" { // it is at work when its log is there
		c.wait("the supervisor", func() bool { return exists(filepath.Join(c.b.folder(c.job.ID), "events.jsonl")) })
	}
	if err := syscall.Kill(c.b.supervisor(c.job.ID), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.Fatal(err)
	}
	c.goOn()
	if c.name == "health_check" {
		c.s.Cut() // the silent answer ends
		c.job = c.b.await(c.job.ID)
		if !c.job.State.Terminal() || c.job.Outcome.Reason == "" && c.job.State != cove.JobSucceeded {
			c.Errorf("it is %+v", c.job)
		}
		return
	}
	c.ended(cove.JobLost)
	if want := c.name == "running" || c.name == "collecting"; want != (c.job.Commits == 1) {
		c.Errorf("it has %d commits", c.job.Commits)
	}
}

// settled sees that nothing is left that nobody owns, and after the job's removal nothing at all.
func (c *cell) settled() {
	c.Helper()
	ctx := c.Context()
	owned := map[string]bool{}
	check := func() {
		c.Helper()
		jobs := map[string]cove.Job{}
		for _, job := range c.rows() {
			jobs[job.ID] = job
			if !job.State.Terminal() {
				c.Errorf("job %s is %s", job.ID, job.State)
			}
			for _, step := range cove.StepKeys() {
				if got := stepOf(c.T, c.o.client, job.ID, step); got.State == cove.StepRunning {
					c.Errorf("the step %s still runs", step)
				}
			}
		}
		envs, err := c.o.jobSprites.environments.Store.List(ctx, cove.EnvironmentFilter{})
		if err != nil {
			c.Fatal(err)
		}
		clear(owned)
		for _, env := range envs {
			_, held := jobs[env.Job]
			owned[env.Name] = env.State != cove.EnvironmentGone
			if !held && env.State != cove.EnvironmentGone && env.State != cove.EnvironmentDestroying {
				c.Errorf("the environment %+v is nobody's", env)
			}
		}
		for _, sprite := range c.s.sprites() {
			if !owned[sprite.Name] {
				c.Errorf("the sprite %s is nobody's", sprite.Name)
			}
		}
	}
	check()
	for _, job := range c.rows() {
		if err := c.o.client.DeleteJob(ctx, job.ID, true); err != nil {
			c.Errorf("delete job %s: %v", job.ID, err)
		}
		if left := c.b.processes(job.ID); len(left) > 0 {
			c.Errorf("processes %v are left", left)
		}
	}
	if err := c.o.jobSprites.environments.Sweep(ctx, time.Now().Add(2*time.Hour)); err != nil {
		c.Error(err)
	}
	check()
	if left := c.s.sprites(); len(left) != 0 {
		c.Errorf("%d sprites are left", len(left))
	}
	if n := c.o.underWay(); n != 0 {
		c.Errorf("%d jobs are still being prepared", n)
	}
	c.o.server.Stop()
	c.wait("the end of the server's goroutines", func() bool { return !atWork.MatchString(stacks()) })
	if left, err := os.ReadDir(c.temp); err != nil || len(left) != 0 {
		c.Errorf("temporary files %v are left, %v", left, err)
	}
}

// underWay is how many jobs a server is preparing, or handing over.
func (o *office) underWay() int {
	o.preparations.mu.Lock()
	defer o.preparations.mu.Unlock()
	o.starter.mu.Lock()
	defer o.starter.mu.Unlock()
	return len(o.preparations.underWay) + len(o.starter.handing)
}

// atWork are the parts of a server that have goroutines of their own for jobs.
var atWork = regexp.MustCompile(`server/job\.\(\*?(followers?|preparer|preparations|installs|janitor|publisher|starter|Manager|jobSprites)\)|environment\.\(\*Keeper\)`)

// stacks are those of all goroutines.
func stacks() string {
	buf := make([]byte, 8<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// TestSoakFailures: a failure of a job at a service, of each kind and in each phase, leaves no
// sprite without an owner. It leaves no process, goroutine or temporary file, and no job that
// seems to be starting. The job says in what phase it failed, why, and what to type. A job
// that can go on does. One failure of each phase is shown; with COVE_SOAK=1 all are.
func TestSoakFailures(t *testing.T) {
	all := os.Getenv("COVE_SOAK") != ""
	for i, p := range phases {
		var can []mishap
		for _, f := range mishaps {
			if why := p.never[f]; why != "" {
				t.Logf("%s: %s: never: %s", p.name, f, why)
			} else {
				can = append(can, f)
			}
		}
		if !all {
			can = []mishap{can[i%len(can)]}
		}
		for _, f := range can {
			t.Run(strings.ReplaceAll(p.name+"/"+string(f), " ", "_"), func(t *testing.T) {
				c := newCell(t, p, f)
				c.run()
				c.settled()
			})
		}
	}
}

func newCell(t *testing.T, p phase, f mishap) *cell {
	t.Helper()
	c := &cell{T: t, phase: p, mishap: f, pace: make(chan struct{}), path: os.Getenv("PATH")}
	var err error
	if c.git, err = exec.LookPath("git"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.at, c.free, c.temp = filepath.Join(dir, "at"), filepath.Join(dir, "go-on"), filepath.Join(dir, "temp")
	if err := os.Mkdir(c.temp, 0o755); err != nil {
		t.Fatal(err)
	}
	if p.name == "install_deps" {
		t.Setenv("PATH", "")
	}
	c.b, c.s = newFarBench(t)
	t.Setenv("PATH", c.path)
	t.Setenv("TMPDIR", c.temp)
	c.s.grace = time.Second // a silent service has a stop end by force
	c.o = c.s.work(c.b)
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	c.b.git(repo, "init", "-q", "-b", "main")
	c.b.git(repo, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "--allow-empty", "-m", "first")
	c.b.git(repo, "update-ref", "refs/cove/base", "HEAD")
	c.b.git(repo, "bundle", "create", "-q", filepath.Join(dir, "in.bundle"), "refs/cove/base")
	c.req = farRequest()
	c.req.Base, c.req.TimeoutSec = c.b.git(repo, "rev-parse", "HEAD"), 24*3600
	c.req.Plan = "# Work\n```sh\necho x >x; git add x; git commit -q -m work\n```\n"
	return c
}
