package job

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/guest/supervise"
	"github.com/cove-dev/cove/internal/lib/acp"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// guestVar makes of the test binary a guest binary, as far as jobs need one.
const guestVar = "COVE_TEST_GUEST"

func TestMain(m *testing.M) {
	if os.Getenv(guestVar) != "" {
		os.Exit(guestMain(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func guestMain(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := fmt.Errorf("wrong usage: %q", args)
	switch strings.Join(args[:min(2, len(args))], " ") {
	case "publish":
		err = publishThere(ctx)
	case "job run":
		if late := filepath.Join(os.Getenv("HOME"), "late"); exists(late) {
			_, err = os.ReadFile(late) // waits for the writer
		} else {
			err = nil
		}
		if err == nil {
			err = supervise.Run(ctx, args[2], os.Getenv(cove.JobBootVar))
		}
	case "job stop":
		err = supervise.Stop(args[2])
	case "job finalize":
		if fifo := filepath.Join(args[2], "printed"); exists(fifo) { // an agent has replaced this program
			end, err := os.OpenFile(filepath.Join(args[2], "end"), os.O_RDWR, 0) // it is moved once fifo has been read
			if err == nil {
				_, err = io.CopyN(os.Stdout, zeros{}, flood)
				err = errors.Join(err, os.WriteFile(fifo, []byte("x"), 0))
				_, more := end.Read(make([]byte, 1))
				err = errors.Join(err, more)
			}
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
		err = supervise.Finalize(ctx, args[2], args[3])
	case "job send":
		err = supervise.Send(args[2], os.Stdin)
	case "acp run":
		flags := flag.NewFlagSet("acp", flag.ExitOnError)
		prompt, session, permissions := flags.String("prompt", "", ""), flags.String("session", "", ""), flags.String("permissions", "", "")
		var cwd string
		if cwd, err = os.Getwd(); err == nil {
			err = flags.Parse(args[2:])
		}
		if err == nil {
			err = acp.Main(ctx, acp.Job{Argv: flags.Args(), Dir: cwd, Session: *session, Permissions: acp.Permissions(*permissions)}, *prompt)
		}
	case "job follow":
		var from int64
		if from, err = strconv.ParseInt(args[3], 10, 64); err == nil {
			err = supervise.Follow(ctx, os.Stdout, args[2], from)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return supervise.ExitCode(err)
}

// flood is how many bytes a foreign guest prints.
const flood = 128 << 20

// zeros are read without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// bench is a server whose jobs have a real guest, supervisor and git. They run as the test's
// user, in a folder that stands for the home of the sprite's user.
type bench struct {
	t       testing.TB
	home    string
	dir     string
	env     []string // more variables of the jobs
	said    string   // the pipe of the last one
	backend string   // of the jobs; empty: none
	runtime *covetest.InProcess
	server  *covetest.Server
	manager *Manager
}

func newBench(t testing.TB) *bench {
	// The path of a job's socket must fit in 107 bytes, so home does not have the test's name.
	home, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	b := &bench{t: t, home: home, dir: t.TempDir()}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &guest.Server{
		Env:  map[string]string{"HOME": b.home, "PATH": b.home + "/bin:" + os.Getenv("PATH"), guestVar: "1", "GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull},
		User: strconv.Itoa(os.Getuid()), Workdir: b.home, Dir: t.TempDir(),
	}
	there := strings.NewReplacer(boot.BinDir+"/cove-guest", exe, boot.Home, b.home)
	inside := g.Handler()
	b.runtime = &covetest.InProcess{Dir: t.TempDir(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		for _, values := range q {
			for i := range values {
				values[i] = there.Replace(values[i])
			}
		}
		r.URL.RawQuery = q.Encode()
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/fs/rename") || r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/services/") {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler) // the sender is gone
			}
			text = []byte(there.Replace(string(text)))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
		if r.Method == http.MethodPut && strings.HasSuffix(q.Get("path"), "/job.json") {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler) // the sender is gone
			}
			sent := fmt.Sprint(len(text))
			text = []byte(there.Replace(string(text)))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			answer := httptest.NewRecorder()
			inside.ServeHTTP(answer, r)
			w.WriteHeader(answer.Code)
			if _, err := io.WriteString(w, strings.Replace(answer.Body.String(), ":"+fmt.Sprint(len(text)), ":"+sent, 1)); err != nil {
				t.Error(err)
			}
			return
		}
		inside.ServeHTTP(w, r)
	})}
	t.Cleanup(func() {
		g.Stop(0)
		if err := errors.Join(b.runtime.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// serve starts a server; the last one must have been stopped.
func (b *bench) serve(grace, collect time.Duration) {
	b.t.Helper()
	b.server = covetest.Start(b.t, covetest.Options{Dir: b.dir, Runtime: b.runtime, Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		b.manager = &Manager{Store: st, Client: client, Grace: grace, CollectLimit: collect}
		return b.manager, b.manager.Close, b.manager.Resume(b.t.Context())
	}})
}

func (b *bench) git(dir string, args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// begin starts a job whose agent makes a commit, does what the script says, and then waits for ever. It returns once the
// script has written into the pipe $said, and the server has heard that the job works.
func (b *bench) begin(script string) cove.Job {
	b.t.Helper()
	job := b.beginDeaf(script)
	for ev, err := range b.server.Client().JobEvents(b.t.Context(), job.ID, 1, true) {
		if err != nil {
			b.t.Fatal(err)
		}
		if ev.Type == "state" && ev.State == cove.JobRunning {
			return job
		}
	}
	b.t.Fatalf("job %s ended before it worked", job.ID)
	return job
}

// beginDeaf is begin for a job that may keep the server from hearing of it.
func (b *bench) beginDeaf(script string) cove.Job {
	b.t.Helper()
	return b.beginWith(script, func(*cove.JobRequest) {})
}

// beginWith is beginDeaf with a change of the request.
func (b *bench) beginWith(script string, change func(*cove.JobRequest)) cove.Job {
	b.t.Helper()
	said := filepath.Join(b.t.TempDir(), "said")
	if err := syscall.Mkfifo(said, 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.said = said
	job := b.queue(func(req *cove.JobRequest) {
		req.Env = append([]string{"said=" + said}, b.env...)
		req.Plan = "# Work\n```sh\necho x >x; git add x; git commit -q -m work; echo y >y\n" + script + "\nsleep 100000\n```\n"
		change(req)
	})
	if _, err := os.ReadFile(b.said); err != nil { // waits for the writer
		b.t.Fatal(err)
	}
	return job
}

// queue pushes a job, and starts it.
func (b *bench) queue(change func(*cove.JobRequest)) cove.Job {
	b.t.Helper()
	ctx, repo := b.t.Context(), b.t.TempDir()
	b.git(repo, "init", "-q", "-b", "main")
	b.git(repo, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "--allow-empty", "-m", "first")
	b.git(repo, "update-ref", "refs/cove/base", "HEAD")
	bundle := filepath.Join(b.t.TempDir(), "in.bundle")
	b.git(repo, "bundle", "create", "-q", bundle, "refs/cove/base")
	data, err := os.ReadFile(bundle)
	if err != nil {
		b.t.Fatal(err)
	}
	req := request()
	req.Backend = b.backend
	req.Base, req.TimeoutSec = b.git(repo, "rev-parse", "HEAD"), 24*3600
	change(&req)
	c := b.server.Client()
	job, err := c.CreateJob(ctx, req)
	if err == nil {
		err = spriteOf(c, job).WriteFile(ctx, job.Upload, bytes.NewReader(data), sprites.WriteOptions{})
	}
	if err == nil {
		job, err = c.StartJob(ctx, job.ID, cove.JobStart{BundleSHA256: digestOf(data), BundleSize: int64(len(data))})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return job
}

// prepared begins a job with a setup script, and returns once that has written into a pipe,
// which it makes at the path given.
func (b *bench) prepared(script *cove.SetupScript, at string) cove.Job {
	b.t.Helper()
	if err := syscall.Mkfifo(at, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return b.beginWith("true", func(r *cove.JobRequest) {
		r.SetupScript = script
		b.said = at
	})
}

// await waits for a job's end.
func (b *bench) await(id string) cove.Job {
	b.t.Helper()
	job, err := b.server.Client().WaitJob(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	if left := b.processes(id); len(left) > 0 {
		b.t.Errorf("processes %v of the job are left", left)
	}
	return job
}

// processes are the processes of a job, by their environment.
func (b *bench) processes(id string) (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		if env, _ := os.ReadFile(name); slices.Contains(strings.Split(string(env), "\x00"), "COVE_JOB="+b.home+"/.cove/jobs/"+id) {
			pids = append(pids, name)
		}
	}
	return pids
}

// stopSupervisor stops the supervisor for good, and then tells the test.
const stopSupervisor = `kill -STOP "$(cat "$HOME"/.cove/jobs/*/lock)"; echo stopped >"$said"`

// TestStopByForce: an agent that stops its supervisor does not keep its job alive.
func TestStopByForce(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	job := b.beginDeaf(stopSupervisor)
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	if job.State != cove.JobCancelled || !strings.Contains(job.Outcome.Reason, "stopped on request (by force") || job.Commits != 1 || job.Leftover == "" || job.Bundle.Size == 0 || job.Uncollected != "" {
		t.Errorf("got %s, %+v, %+v", job.State, job.Outcome, job)
	}
	if job.Stopping || job.Forced != "" || job.Exited != nil {
		t.Errorf("the ended job is still %+v", job.JobEnding)
	}
}

// TestRetryWithPlan: a job is done again by another plan, and with all other settings that it had.
func TestRetryWithPlan(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	client, policy := b.server.Client(), &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}
	job := b.beginWith(`echo x >"$said"`, func(req *cove.JobRequest) { req.NetworkPolicy, req.TimeoutSec, req.Guards.Turns = policy, 777, 9 })
	if _, err := client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	b.await(job.ID)
	const plan = "# Another\n```sh\ntest \"$said\" && echo z >z && git add z && git commit -q -m another\n```\n"
	again, err := client.RetryJob(t.Context(), job.ID, cove.JobRetry{Plan: plan})
	if err != nil {
		t.Fatal(err)
	}
	again = b.await(again.ID)
	if again.State != cove.JobSucceeded || again.Commits != 1 || again.Title != "Another" || again.RetryOf != job.ID {
		t.Errorf("got %+v", again)
	}
	if again.NetworkPolicy == nil || !reflect.DeepEqual(again.NetworkPolicy.Rules, policy.Rules) || again.TimeoutSec != 777 || again.Guards.Turns != 9 {
		t.Errorf("its settings are %+v, %+v", again.NetworkPolicy, again.JobSettings)
	}
	if got, err := cove.PlanOf(t.Context(), client, again.ID); err != nil || got.Plan != plan {
		t.Errorf("its plan is %q, %v", got.Plan, err)
	}
	if _, err := client.RetryJob(t.Context(), job.ID, cove.JobRetry{Plan: "# Nothing to run\n"}); code(err) != "bad_plan" {
		t.Errorf("a plan without steps: %v", err)
	}
}

// TestRetryTakesWhatWasSent: a retry takes the large files that were sent for its job, and none
// that the agent has made.
func TestRetryTakesWhatWasSent(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	client := b.server.Client()
	job := b.begin(`echo x >"$said"`)
	if _, err := client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	large := func(id string) string { return filepath.Join(b.home, ".cove", "jobs", id, cove.LargeFilesIn) }
	dir := large(job.ID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	content := []byte("large")
	name := filepath.Join(dir, digestOf(content))
	retry := func(room int64, file []byte) string {
		t.Helper()
		if err := os.WriteFile(name, file, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := b.manager.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error { j.LargeBytes = room; return nil }); err != nil {
			t.Fatal(err)
		}
		again, err := client.RetryJob(t.Context(), job.ID, cove.JobRetry{})
		if err == nil {
			if _, err := client.StopJob(t.Context(), again.ID); err != nil {
				t.Fatal(err)
			}
			b.await(again.ID)
			if got, err := os.ReadFile(filepath.Join(large(again.ID), filepath.Base(name))); !bytes.Equal(got, file) {
				t.Errorf("the retry has %q, %v", got, err)
			}
		}
		return code(err)
	}
	const sent = "<nil>"
	if got := retry(4, content); got != "not_kept" {
		t.Errorf("more than was sent: got %q", got)
	}
	if got := retry(5, []byte("other")); got != "not_kept" {
		t.Errorf("other than was sent: got %q", got)
	}
	if got := retry(5, content); got != sent {
		t.Errorf("what was sent: got %q", got)
	}
}

// TestFloodIsNotKept: the server keeps only the beginning of a guest's output. The agent may
// have put another program in the guest's place, which prints without end.
func TestFloodIsNotKept(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	job := b.beginDeaf(`cd "$HOME"/.cove/jobs/*; mkfifo printed end; ` + stopSupervisor)
	held := func() int64 {
		runtime.GC()
		runtime.GC() // what pools keep goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := held()
	stopped := make(chan error, 1)
	go func() { _, err := b.server.Client().StopJob(t.Context(), job.ID); stopped <- err }()
	dir := filepath.Join(b.home, ".cove", "jobs", job.ID)
	if _, err := os.ReadFile(filepath.Join(dir, "printed")); err != nil { // waits for the writer, who has printed all
		t.Fatal(err)
	}
	if grown := held() - before; grown > flood/2 {
		t.Errorf("of %d MiB that were printed %d are held", flood>>20, grown>>20)
	}
	for _, name := range []string{"printed", "end"} { // the next guest is cove's
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(b.home, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.home, "end"), []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Logf("the stop: %v", err) // its job has ended or not
	}
	if job := b.await(job.ID); job.State != cove.JobCancelled {
		t.Errorf("got %s, %+v", job.State, job.Outcome)
	}
}

// TestTimeoutByForce: a job without its supervisor does not go on beyond its time, since the
// server counts the time, too.
func TestTimeoutByForce(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	job := b.beginDeaf(stopSupervisor)
	if err := b.manager.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error { j.RanSec = j.TimeoutSec; return nil }); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	if job.State != cove.JobTimedOut || !strings.Contains(job.Outcome.Reason, "its time (24h0m0s) is up (by force") || job.Commits != 1 || job.Leftover == "" {
		t.Errorf("got %s, %+v, %+v", job.State, job.Outcome, job)
	}
}

// TestTimeoutThoughItWaits: an agent may stop its supervisor and write into its log that it
// waits for a person. Its time is limited all the same. That holds if it may never ask, has
// asked nothing, has made its question up, or has really asked.
func TestTimeoutThoughItWaits(t *testing.T) {
	const forge = `log=$(echo "$HOME"/.cove/jobs/*/events.jsonl); kill -STOP "$(cat "$HOME"/.cove/jobs/*/lock)"
add() { n=$(($(wc -l <"$log") + 1)); printf '{"seq":%s,"time":"2026-01-02T03:04:05Z",%s}\n' "$n" "$1" >>"$log"; }
`
	const waits = `add '"type":"state","state":"waiting"'
echo x >"$said"; sleep 100000`
	const asks = `add '"type":"event","stream":"events","text":"{\"type\":\"permission_request\",\"id\":\"1\",\"title\":\"t\",\"options\":[{\"id\":\"1\",\"kind\":\"allow_once\",\"name\":\"Yes\"}]}"'
`
	for name, test := range map[string]struct {
		permissions, script string
		waited              bool // its time is up by what it has waited
	}{
		"never asked":    {"", forge + waits, false},
		"it made one up": {"", forge + asks + waits, false},
		"no question":    {"ask", forge + waits, false},
		"a question":     {"ask", forge + asks + waits, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serve(time.Second, 0)
			said, script := filepath.Join(t.TempDir(), "said"), filepath.Join(t.TempDir(), "agent")
			if err := errors.Join(syscall.Mkfifo(said, 0o600), os.WriteFile(script, []byte(test.script), 0o600)); err != nil {
				t.Fatal(err)
			}
			job := b.queue(func(req *cove.JobRequest) {
				req.Agent, req.AgentCommand, req.Permissions, req.Env, req.Plan = "acp", "sh "+script, test.permissions, []string{"said=" + said}, "ask"
			})
			if _, err := os.ReadFile(said); err != nil {
				t.Fatal(err)
			}
			changed, stop := b.manager.Store.Jobs.Watch(job.ID)
			for job.State != cove.JobWaiting && !job.State.Terminal() {
				var err error
				if job, err = b.manager.Store.Jobs.Get(t.Context(), job.ID); err != nil {
					t.Fatal(err)
				}
				if job.State != cove.JobWaiting {
					<-changed
				}
			}
			stop()
			if err := b.manager.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error {
				if test.waited {
					j.WaitedSec = int64(leastAwakeWait / time.Second)
				} else {
					j.RanSec = j.TimeoutSec
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			job = b.await(job.ID)
			if job.State != cove.JobTimedOut || strings.Contains(job.Outcome.Reason, "waited for a person for 24h0m0s while its sprite was awake") != test.waited {
				t.Errorf("got %s, %+v", job.State, job.Outcome)
			}
		})
	}
}

// TestStopNextServer: a stop that one server was asked for, the next one carries out, also
// in the middle of doing so by force.
func TestStopNextServer(t *testing.T) {
	b := newBench(t)
	b.serve(time.Hour, 0)
	asked, begun := b.beginDeaf(stopSupervisor), cove.Job{}
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	changed, stop := b.manager.Store.Jobs.Watch(asked.ID)
	defer stop()
	go func() { _, err := b.manager.Stop(ctx, asked.ID); answered <- err }()
	for job := asked; !job.Stopping; {
		<-changed
		var err error
		if job, err = b.manager.Store.Jobs.Get(t.Context(), asked.ID); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-answered; err != nil {
		t.Logf("the stop: %v", err) // it may be cut off, or done
	}
	b.server.Stop()
	b.serve(time.Second, 0)
	if job := b.await(asked.ID); job.State != cove.JobCancelled || job.Commits != 1 {
		t.Errorf("got %s, %+v", job.State, job.Outcome)
	}

	b.server.Stop()
	if err := os.RemoveAll(filepath.Join(b.home, ".cove")); err != nil { // the script finds one job
		t.Fatal(err)
	}
	b.serve(time.Hour, 0)
	begun = b.beginDeaf(stopSupervisor)
	b.server.Stop()
	st, err := store.Open(t.Context(), filepath.Join(b.dir, "cove.db"))
	if err == nil {
		err = st.Jobs.Update(t.Context(), begun.ID, func(j *cove.Job) error { j.Stopping, j.Forced = true, forcedStop; return nil })
		err = errors.Join(err, st.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	b.serve(time.Hour, 0)
	if job := b.await(begun.ID); job.State != cove.JobCancelled || job.Commits != 1 {
		t.Errorf("got %s, %+v", job.State, job.Outcome)
	}
}

// TestCollectCut: a job ends even if its work can't be collected in time. The row says so, and
// the sprite is kept for the work.
func TestCollectCut(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, time.Second)
	// From now on, every reader of the job's description waits for ever.
	job := b.beginDeaf(`cd "$HOME"/.cove/jobs/*; rm job.json; mkfifo job.json; ` + stopSupervisor)
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	if job.State != cove.JobCancelled || !strings.Contains(job.Uncollected, "took longer than 1s") || job.Bundle.Size != 0 {
		t.Errorf("got %s, %+v, %q", job.State, job.Outcome, job.Uncollected)
	}
	if _, err := b.server.Client().Get(t.Context(), job.Sprite); err != nil {
		t.Errorf("its sprite: %v", err)
	}
}

// TestEndOfSilent: a job ends by force though its sandbox never says what runs in it. Its work
// stays in the sprite.
func TestEndOfSilent(t *testing.T) {
	b := newBench(t)
	var silent atomic.Bool
	b.server = covetest.Start(t, covetest.Options{Dir: b.dir, Runtime: b.runtime, Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		inner, transport := *client.Client, client.HTTPClient.Transport
		inner.HTTPClient = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if silent.Load() && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/exec") {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return transport.RoundTrip(r)
		})}
		b.manager = &Manager{Store: st, Client: &cove.Client{Client: &inner}, Grace: time.Second, CollectLimit: time.Second}
		return b.manager, b.manager.Close, b.manager.Resume(t.Context())
	}})
	job := b.beginDeaf(stopSupervisor)
	silent.Store(true)
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	if job.State != cove.JobCancelled || !strings.Contains(job.Uncollected, "took longer than 1s") {
		t.Errorf("got %s, %+v, %q", job.State, job.Outcome, job.Uncollected)
	}
}

// TestSlowSupervisor: a job is not lost because its supervisor needs long to take its lock.
func TestSlowSupervisor(t *testing.T) {
	b := newBench(t)
	late := filepath.Join(b.home, "late")
	if err := syscall.Mkfifo(late, 0o600); err != nil {
		t.Fatal(err)
	}
	const more = maxStarts + 2 // than a supervisor that does not run is started
	var follows atomic.Int32
	enough, ended := make(chan struct{}), make(chan error, 1)
	inside := b.runtime.Handler
	b.runtime.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(r.URL.Query()["cmd"], "follow") && follows.Add(1) == more {
			close(enough)
		}
		inside.ServeHTTP(w, r)
	})
	b.serve(time.Second, 0)
	job := b.queue(func(req *cove.JobRequest) { req.Plan = "# Work\n```sh\ntrue\n```\n" })
	given := filepath.Join(b.home, ".cove", "jobs", job.ID, "job.json")
	if err := os.Chtimes(given, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := b.server.Client().WaitJob(t.Context(), job.ID)
		ended <- err
	}()
	select {
	case <-enough:
	case err := <-ended:
		t.Fatalf("it ended before its supervisor began: %v, %+v", err, b.await(job.ID))
	}
	if err := os.WriteFile(late, nil, 0); err != nil {
		t.Fatal(err)
	}
	if job := b.await(job.ID); job.State != cove.JobSucceeded {
		t.Errorf("got %s, %+v", job.State, job.Outcome)
	}
}

// TestEndClock: time does not count while the sprite is held, or a person is waited for. Only
// an agent that can wait for a person may do so, and not for ever with its sprite awake.
func TestEndClock(t *testing.T) {
	limits := endLimits{time.Minute, 10 * time.Minute}
	running := cove.Job{State: cove.JobRunning, JobSettings: cove.JobSettings{Agent: "shell", TimeoutSec: 600}}
	for name, test := range map[string]struct {
		change func(*cove.Job)
		want   string
		after  time.Duration
	}{
		"its time":                     {func(*cove.Job) {}, forcedTimeout, 11 * time.Minute},
		"no limit":                     {func(j *cove.Job) { j.TimeoutSec = 0 }, "", 0},
		"a stop":                       {func(j *cove.Job) { j.Stopping = true }, forcedStop, time.Minute},
		"a stop of one that waits":     {func(j *cove.Job) { j.State, j.Converse, j.Stopping = cove.JobWaiting, true, true }, forcedStop, time.Minute},
		"it waits":                     {func(j *cove.Job) { j.State, j.Converse = cove.JobWaiting, true }, "", 0},
		"it says so":                   {func(j *cove.Job) { j.State = cove.JobWaiting }, forcedTimeout, 11 * time.Minute},
		"it asks":                      {func(j *cove.Job) { j.State, j.Agent, j.Question = cove.JobWaiting, "acp", &cove.JobQuestion{} }, "", 0},
		"it may ask, and has not":      {func(j *cove.Job) { j.State, j.Agent = cove.JobWaiting, "acp" }, forcedTimeout, 11 * time.Minute},
		"awake, it waits":              {func(j *cove.Job) { j.State, j.Converse = cove.JobWaiting, true }, forcedTimeout, leastAwakeWait + time.Minute},
		"awake, it waits long":         {func(j *cove.Job) { j.State, j.Converse, j.TimeoutSec = cove.JobWaiting, true, 30*3600 }, forcedTimeout, 30*time.Hour + time.Minute},
		"its backend is silent":        {func(j *cove.Job) { j.Unknown, j.Stopping = &cove.JobUnknown{}, true }, "", 0},
		"it is held":                   {func(j *cove.Job) { j.Held, j.Stopping = &sprites.Held{}, true }, "", 0},
		"its work":                     {func(j *cove.Job) { j.Exited, j.Stopping = &cove.JobExit{}, true }, forcedCollect, 11 * time.Minute},
		"it is ended by force already": {func(j *cove.Job) { j.Forced, j.Stopping = forcedStop, true }, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			job := running
			test.change(&job)
			clock, began := endClock{last: time.Now(), asks: job.Agent == "acp", awake: strings.HasPrefix(name, "awake")}, time.Now()
			tick := time.NewTicker(endTick)
			defer tick.Stop()
			for clock.due(job, limits) == "" && time.Since(began) < 40*time.Hour {
				clock.tick(job, <-tick.C)
			}
			if got := clock.due(job, limits); got != test.want || got != "" && time.Since(began) != test.after {
				t.Errorf("%s: %q after %v, want %q after %v", name, got, time.Since(began), test.want, test.after)
			}
			if over := clock.over(limits); over != (job.Forced != "") {
				t.Errorf("%s: given up: %v", name, over)
			}
		})
	}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
