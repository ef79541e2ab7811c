package supervise_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/supervise"
	"github.com/cove-dev/cove/internal/test/executable"
)

// verbVar makes the test binary a supervisor, as the guest binary is. Run ends every process
// below its own, so it needs a process to itself.
const verbVar = "COVE_TEST_JOB_VERB"

func TestMain(m *testing.M) {
	if verb := os.Getenv(verbVar); verb != "" {
		os.Exit(supervisor(verb, os.Args[1:]))
	}
	for _, pair := range [][2]string{{"GIT_CONFIG_GLOBAL", os.DevNull}, {"GIT_CONFIG_SYSTEM", os.DevNull}} {
		if err := os.Setenv(pair[0], pair[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func supervisor(verb string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := errors.New("no verb " + verb)
	switch verb {
	case "run":
		err = supervise.Run(ctx, args[0], os.Getenv(cove.JobBootVar))
	case "set-up":
		err = supervise.SetUp(ctx, args[0], os.Stdout)
	case "agents":
		err = runAgents(args[0], args[1])
	case "finalize":
		err = supervise.Finalize(ctx, args[0], args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return supervise.ExitCode(err)
}

// job is a job's folder, with a bundle of one commit to start from.
type job struct {
	t      *testing.T
	ctx    context.Context // bounds everything that the test waits for
	source string          // the repository that the bundle is of
	dir    string
	path   string // of the supervisor; empty: this process's
	spec   cove.JobSpec
}

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// longEnough runs a test that reaches a limit of some seconds. The work before the limit takes
// longer on a slow machine, so the limit grows until the test passes.
func longEnough(t *testing.T, seconds int64, test func(limit int64) error) {
	t.Helper()
	for ; ; seconds *= 6 {
		err := test(seconds)
		if err == nil {
			return
		}
		if seconds > 200 {
			t.Fatal(err)
		}
		t.Logf("with a limit of %d s: %v", seconds, err)
	}
}

// newJob makes a job whose agent is a script for sh. The job is given to a
// supervisor by start or run, and may be changed until then.
func newJob(t *testing.T, script string) *job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lastResort)
	t.Cleanup(cancel)
	top := t.TempDir()
	j := &job{t: t, ctx: ctx, source: filepath.Join(top, "source"), dir: filepath.Join(top, "job")}
	for _, dir := range []string{j.source, j.dir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bundle := filepath.Join(j.dir, "in.bundle")
	j.git("init", "-q", "-b", "main")
	j.write(filepath.Join(j.source, "README"), "hello\n")
	j.git("add", "README")
	j.git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-q", "-m", "first")
	j.git("update-ref", "refs/cove/base", "HEAD")
	j.git("bundle", "create", "-q", bundle, "refs/cove/base")
	j.spec = cove.JobSpec{
		JobIdentity: cove.JobIdentity{ID: "abc123"}, Bundle: bundle, BundleSHA256: j.digest(bundle),
		Workdir: filepath.Join(top, "work"), Branch: "topic", Base: j.git("rev-parse", "HEAD"),
		Author: cove.Person{Name: "Ada", Email: "ada@example.com"},
		Argv:   []string{"/bin/sh", "-ec", script},
	}
	t.Cleanup(func() {
		for _, pid := range j.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return j
}

// git runs git in the repository that the job's work came from.
func (j *job) git(args ...string) string {
	j.t.Helper()
	return j.gitIn(j.source, args...)
}

func (j *job) gitIn(dir string, args ...string) string {
	j.t.Helper()
	cmd := exec.CommandContext(j.ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		j.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (j *job) write(name, text string) {
	j.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		j.t.Fatal(err)
	}
}

func (j *job) read(name string) string {
	j.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		j.t.Fatal(err)
	}
	return string(data)
}

func (j *job) digest(name string) string {
	sum := sha256.Sum256([]byte(j.read(name)))
	return hex.EncodeToString(sum[:])
}

func (j *job) file(name string) string { return filepath.Join(j.dir, name) }

func (j *job) exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// tools links programs of this machine into a folder.
func (j *job) tools(dir string, names ...string) {
	j.t.Helper()
	for _, name := range names {
		file, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(file, filepath.Join(dir, name))
		}
		if err != nil {
			j.t.Fatal(err)
		}
	}
}

// program writes a script for sh.
func (j *job) program(name, script string) {
	j.t.Helper()
	executable.Write(j.t, name, "#!/bin/sh\n"+script+"\n")
}

// give writes job.json.
func (j *job) give() {
	j.t.Helper()
	data, err := json.Marshal(j.spec)
	if err != nil {
		j.t.Fatal(err)
	}
	j.write(j.file("job.json"), string(data))
}

// command is one of the supervisor's, not started yet.
func (j *job) command(verb string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(j.ctx, os.Args[0], append([]string{j.dir}, args...)...)
	cmd.Env = append(os.Environ(), verbVar+"="+verb)
	if j.path != "" {
		cmd.Env = append(cmd.Env, "PATH="+j.path)
	}
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

// start gives the job to a supervisor, and waits until its agent has said ready.
func (j *job) start() *exec.Cmd {
	j.t.Helper()
	j.give()
	cmd := j.command("run")
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.await(func(ev cove.JobEvent) bool { return ev.Type == "output" && ev.Text == "ready" })
	return cmd
}

// exitCode waits for a supervisor's end.
func (j *job) exitCode(cmd *exec.Cmd) int {
	j.t.Helper()
	if err := cmd.Wait(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			j.t.Fatal(err)
		}
	}
	if j.ctx.Err() != nil {
		j.t.Fatal("the supervisor did not end in time")
	}
	return cmd.ProcessState.ExitCode()
}

// call runs one of the supervisor's commands.
func (j *job) call(verb string, args ...string) int {
	j.t.Helper()
	cmd := j.command(verb, args...)
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	return j.exitCode(cmd)
}

// run gives the job to a supervisor, and returns the end that it recorded.
func (j *job) run() cove.JobEnd {
	j.t.Helper()
	j.give()
	if code := j.call("run"); code != supervise.ExitDone {
		j.t.Fatalf("the supervisor exited with %d", code)
	}
	return j.end()
}

func (j *job) end() cove.JobEnd {
	j.t.Helper()
	var end cove.JobEnd
	if err := json.Unmarshal([]byte(j.read(j.file("end.json"))), &end); err != nil {
		j.t.Fatal(err)
	}
	return end
}

// watcher takes a log in, and calls off the following when it has seen enough.
type watcher struct {
	text   bytes.Buffer
	enough func(cove.JobEvent) bool
	cancel context.CancelFunc
	met    bool
}

func (w *watcher) Write(line []byte) (int, error) {
	var ev cove.JobEvent
	if err := json.Unmarshal(line, &ev); err != nil {
		return 0, err
	}
	if w.enough(ev) {
		w.met = true
		w.cancel()
	}
	return w.text.Write(line)
}

// await follows the job until an event is as wanted.
func (j *job) await(enough func(cove.JobEvent) bool) {
	j.t.Helper()
	if err := j.awaited(enough); err != nil {
		j.t.Fatal(err)
	}
}

// awaited is await for a job that may end before.
func (j *job) awaited(enough func(cove.JobEvent) bool) error {
	ctx, cancel := context.WithCancel(j.ctx)
	defer cancel()
	w := &watcher{enough: enough, cancel: cancel}
	if err := supervise.Follow(ctx, w, j.dir, 1); !w.met {
		return fmt.Errorf("%w, and the log is\n%s", cmp.Or(err, errors.New("the job has ended")), w.text.String())
	}
	return nil
}

// follow returns what Follow writes of a job that nobody is at work on.
func (j *job) follow(from int64) ([]cove.JobEvent, error) {
	j.t.Helper()
	var text bytes.Buffer
	err := supervise.Follow(j.ctx, &text, j.dir, from)
	return j.parse(text.String()), err
}

func (j *job) parse(text string) []cove.JobEvent {
	j.t.Helper()
	var events []cove.JobEvent
	for line := range strings.Lines(text) {
		var ev cove.JobEvent
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			j.t.Fatalf("line %q: %v", line, err)
		}
		events = append(events, ev)
	}
	return events
}

// events returns the log of a job that has ended, which must be in order.
func (j *job) events() []cove.JobEvent {
	j.t.Helper()
	events := j.parse(j.read(j.file("events.jsonl")))
	for i, ev := range events {
		if ev.Seq != int64(i+1) || ev.Time.IsZero() {
			j.t.Fatalf("event %d is %+v", i+1, ev)
		}
		if (ev.Type == "end") != (i == len(events)-1) {
			j.t.Fatalf("event %d of %d is %+v", i+1, len(events), ev)
		}
	}
	return events
}

// fetch takes the job's bundle into the repository that its work came from.
func (j *job) fetch(end cove.JobEnd) {
	j.t.Helper()
	if end.Bundle.Path != j.file("out.bundle") || end.Bundle.SHA256 != j.digest(end.Bundle.Path) ||
		end.Bundle.Size != int64(len(j.read(end.Bundle.Path))) {
		j.t.Fatalf("the bundle is not %+v", end.Bundle)
	}
	j.git("fetch", "-q", end.Bundle.Path, "refs/cove/abc123/*:refs/cove/abc123/*")
}

// subjects lists what the job committed, oldest first.
func (j *job) subjects(end cove.JobEnd) []string {
	j.t.Helper()
	j.fetch(end)
	return strings.Split(j.git("log", "--reverse", "--format=%s", j.spec.Base+".."+end.Head), "\n")
}

// processes lists the job's processes that are alive, by their environment.
func (j *job) processes() []int {
	names, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		j.t.Error(err)
	}
	var pids []int
	for _, name := range names {
		env, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(env), "COVE_JOB="+j.dir+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
