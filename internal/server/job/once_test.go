package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// there checks how many jobs and sprites there are.
func there(t *testing.T, c *cove.Client, want int) {
	t.Helper()
	jobs, err := c.Jobs(t.Context())
	list, listErr := c.List(t.Context(), sprites.ListOptions{})
	if err != nil || listErr != nil || len(jobs) != want || len(list.Sprites) != want {
		t.Errorf("there are %d jobs and %d sprites, want %d: %v, %v", len(jobs), len(list.Sprites), want, err, listErr)
	}
}

// TestJobKey: a request that comes again under its key gets the job that it has made, also if
// all come at once. Another request, or another token, does not. Without a key each makes a
// job.
func TestJobKey(t *testing.T) {
	m, client := newManager(t)
	req := request()
	req.Key = "push-1"
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			job, err := client.CreateJob(t.Context(), req)
			if err != nil || job.State != cove.JobQueued || job.Upload == "" {
				t.Errorf("got %+v, %v", job, err)
			}
			ids[i] = job.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("the jobs are %v", ids)
			break
		}
	}
	there(t, client, 1)
	other := req
	other.Plan += "\nmore"
	theirs, _ := by(t, client, cove.TokenScope{All: true})
	for name, call := range map[string]func() error{
		"another plan":  func() error { _, err := client.CreateJob(t.Context(), other); return err },
		"another token": func() error { _, err := theirs.CreateJob(t.Context(), req); return err },
		"a retry": func() error {
			_, err := client.RetryJob(t.Context(), ids[0], cove.JobRetry{Key: req.Key})
			return err
		},
		"a resume": func() error {
			_, err := client.ResumeJob(t.Context(), ids[0], cove.JobResume{Key: req.Key, Message: "on"})
			return err
		},
	} {
		err := call()
		if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "key_taken" || e.StatusCode != http.StatusConflict || e.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := req
	bad.Key = "a key"
	if _, err := client.CreateJob(t.Context(), bad); code(err) != "bad_request" {
		t.Errorf("a key that is none: %v", err)
	}
	there(t, client, 1)
	settings, err := m.Store.Jobs.Settings(t.Context(), ids[0])
	if err != nil || bytes.Contains(settings, []byte(req.Key)) {
		t.Errorf("the settings have the key: %s, %v", settings, err)
	}
	// An older client sends none.
	body, err := json.Marshal(request())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := client.Call(t.Context(), sprites.Request{Method: http.MethodPost, Path: "/v1/jobs", JSON: json.RawMessage(body)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	there(t, client, 3)
	// The key goes with its job.
	if err := client.DeleteJob(t.Context(), ids[0], true); err != nil {
		t.Fatal(err)
	}
	if job, err := client.CreateJob(t.Context(), req); err != nil || job.ID == ids[0] {
		t.Errorf("made %+v, %v", job, err)
	}
	there(t, client, 3)
}

// TestJobKeyKilled: a server that is killed while it makes a job has told nobody of it. The
// request that comes again makes one in its place. One that has begun to work stays.
func TestJobKeyKilled(t *testing.T) {
	m, client := newManager(t)
	req := request()
	req.Key, req.Digest = "push-1", "d"
	half := func(change func(*cove.Job)) cove.Job {
		t.Helper()
		row := newRow(req, made{}, 0)
		row.Sprite = m.jobSprites.environments.Name("", row.ID)
		settings, err := json.Marshal(req)
		if err == nil {
			err = m.Store.Jobs.CreateKeyed(t.Context(), row, settings, keyOf(req))
		}
		if err == nil {
			_, err = client.Create(t.Context(), sprites.CreateRequest{Name: row.Sprite, Labels: []string{label}, Owner: store.JobOwner(row.ID)})
		}
		if err == nil {
			_, err = m.Store.Environments.Change(t.Context(), row.Execution, func(e *cove.Environment) error { e.State = cove.EnvironmentCreating; return nil })
		}
		if err == nil {
			err = m.Store.Jobs.Update(t.Context(), row.ID, func(j *cove.Job) error { change(j); return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	first := half(func(*cove.Job) {})
	job, err := m.Create(t.Context(), req)
	if err != nil || job.ID == first.ID || job.State != cove.JobQueued {
		t.Errorf("made %+v, %v", job, err)
	}
	there(t, client, 1)
	if err := client.DeleteJob(t.Context(), job.ID, true); err != nil {
		t.Fatal(err)
	}
	begun := half(func(j *cove.Job) { now := stepTime(); j.StartedAt = &now })
	if job, err = m.Create(t.Context(), req); err != nil || job.ID != begun.ID {
		t.Errorf("made %+v, %v", job, err)
	}
	there(t, client, 1)
}

// TestJobKeyCut: a caller's connection is cut while its job is made, and the caller comes
// again at once. It has one job in the end, and one sprite.
func TestJobKeyCut(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	pace := make(chan struct{})
	s.Add(fakeprovider.Fault{Call: `^POST /v1/sprites$`, Pace: pace, Times: 1})
	req := farRequest()
	req.Key = "push-1"
	ctx, cut := context.WithCancel(t.Context())
	defer cut()
	first := make(chan error, 1)
	go func() { _, err := o.client.CreateJob(ctx, req); first <- err }()
	for len(s.Calls(`^POST /v1/sprites$`)) == 0 && t.Context().Err() == nil {
		runtime.Gosched()
	}
	cut()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	type answer struct {
		job cove.Job
		err error
	}
	second := make(chan answer, 1)
	go func() { job, err := o.client.CreateJob(t.Context(), req); second <- answer{job, err} }()
	close(pace)
	got := <-second
	jobs, err := o.client.Jobs(t.Context())
	if all := s.sprites(); got.err != nil || err != nil || len(jobs) != 1 || len(all) != 1 || jobs[0].ID != got.job.ID || all[0].Name != got.job.Sprite || got.job.State != cove.JobQueued {
		t.Errorf("got %+v, %v; there are %+v and %+v, %v", got.job, got.err, jobs, all, err)
	}
}

// cutter is a server before another one. The answers to calls for jobs that a path has are lost, as
// often as lose says, though the calls are carried out.
type cutter struct {
	*httptest.Server
	mu    sync.Mutex
	path  string // a part of it
	lose  int    // guarded by mu
	calls int    // guarded by mu
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to); p.Out.Host = to.Host }}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, c.path) && c.loses() {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cutter) loses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.lose--
	return c.lose >= 0
}

// TestJobAnswerLost: if the answer to a push, a retry or a resume is lost, it is sent again,
// and ends with one job.
func TestJobAnswerLost(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	c := b.server.Client()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	repo := t.TempDir()
	b.git(repo, "init", "-q", "-b", "main")
	b.git(repo, "config", "user.name", "Ada")
	b.git(repo, "config", "user.email", "ada@example.org")
	b.git(repo, "commit", "-q", "--allow-empty", "-m", "first")
	script, loads, plan := filepath.Join(t.TempDir(), "keeper"), filepath.Join(t.TempDir(), "loads"), filepath.Join(t.TempDir(), "plan.md")
	if err := errors.Join(os.WriteFile(script, []byte(keeper), 0o644), os.WriteFile(loads, []byte("true"), 0o644), os.WriteFile(plan, []byte("go on"), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(repo)
	at := newCutter(t, b.server.URL)
	// run runs a command that makes a job, and returns that when it has ended.
	run := func(path string, args ...string) cove.Job {
		t.Helper()
		before, err := c.Jobs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at.mu.Lock()
		at.path, at.lose, at.calls = path, 2, 0
		at.mu.Unlock()
		var out, errs bytes.Buffer
		exit := cli.Main(context.WithoutCancel(t.Context()), append(args, "--json", "--url", at.URL, "--token", b.server.Token), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		var said struct{ Job string }
		if err := json.Unmarshal(out.Bytes(), &said); exit != 0 || err != nil {
			t.Fatalf("cove %v: exit code %d, %v: %s%s", args, exit, err, &out, &errs)
		}
		after, err := c.Jobs(t.Context())
		if err != nil || len(after) != len(before)+1 || at.calls != 3 {
			t.Errorf("cove %v made %d jobs by %d calls, %v", args, len(after)-len(before), at.calls, err)
		}
		job := b.await(said.Job)
		if job.State != cove.JobSucceeded {
			t.Errorf("cove %v: the job is %+v", args, job)
		}
		return job
	}
	job := run("/v1/jobs", "push", plan, "--agent", "acp", "--agent-command", "sh "+script, "--env", "loads="+loads)
	if next := run("/retry", "job", "retry", job.ID, "--same-sprite"); next.RetryOf != job.ID {
		t.Errorf("the retry is %+v", next)
	}
	if next := run("/resume", "job", "resume", job.ID, "and on"); next.ResumeOf != job.ID {
		t.Errorf("the resume is %+v", next)
	}
}
