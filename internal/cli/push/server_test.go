package push_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/sprites"
)

// server is the part of a server that this package talks to: a job, and files in
// a folder. At the start of a job the agent runs in a real clone of the bundle.
type server struct {
	t     *testing.T
	url   string
	files string
	agent func(clone repo) // what the job does; nil: it is never finished

	policed bool                // it enforces network policies
	made    func(*http.Request) // called when the job is there, and not answered yet; nil: nothing

	installs func(looks int, job *cove.Job) // called at each look at a job that is installing; nil: none is

	mu      sync.Mutex
	job     cove.Job // guarded by mu, as all below
	req     cove.JobRequest
	pulled  []string
	deleted bool
	looks   int
	fails   map[string]int // path suffix to the status that is answered
	dies    string         // path suffix of a call after which no call is answered, nor that one
	dead    bool
	back    int // calls that are not answered until it answers again; 0: it never does
	missed  int
	starts  int
	cut     bool // the call of dies is not carried out
}

const id = "a3f7b2"

func newServer(t *testing.T, agent func(repo)) *server {
	s := &server{t: t, files: t.TempDir(), agent: agent, fails: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/jobs", s.create)
	mux.HandleFunc("POST /v1/jobs/{id}/start", s.start)
	mux.HandleFunc("GET /v1/jobs/{id}", s.get)
	mux.HandleFunc("POST /v1/jobs/{id}/pulled", s.markPulled)
	mux.HandleFunc("DELETE /v1/jobs/{id}", s.delete)
	mux.HandleFunc("PUT /v1/sprites/paint/fs/write", s.write)
	mux.HandleFunc("GET /v1/sprites/paint/fs/read", s.read)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.missed++; s.dead && (s.back == 0 || s.missed < s.back) {
			panic(http.ErrAbortHandler)
		}
		if s.dies != "" && !s.dead && strings.HasSuffix(r.URL.Path, s.dies) {
			if !s.cut {
				mux.ServeHTTP(httptest.NewRecorder(), r)
			}
			s.dead, s.missed = true, 0
			panic(http.ErrAbortHandler)
		}
		for suffix, status := range s.fails {
			if strings.HasSuffix(r.URL.Path, suffix) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
				return
			}
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

func (s *server) courier() *push.Courier {
	return push.New(&cove.Client{Client: &sprites.Client{URL: s.url}})
}

func (s *server) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.job); err != nil {
		s.t.Error(err)
	}
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	if err := json.NewDecoder(r.Body).Decode(&s.req); err != nil {
		s.t.Error(err)
	}
	s.job = cove.Job{
		ID:          id,
		State:       cove.JobQueued,
		JobSettings: cove.JobSettings{Sprite: "paint"},
		JobSource:   cove.JobSource{Branch: s.req.Branch, Base: s.req.Base, RepoID: s.req.RepoID, Repository: s.req.Repository, PlanName: s.req.PlanName},
		JobProgress: cove.JobProgress{Upload: "/in.bundle"},
	}
	if s.policed {
		s.job.NetworkPolicy = s.req.NetworkPolicy
	}
	if s.installs != nil {
		if !s.req.Early {
			s.t.Error("the push did not ask for an early answer")
		}
		s.job.State, s.job.Upload = cove.JobInstalling, ""
		s.job.Installing = &cove.InstallProgress{Agent: "slowly 1"}
	}
	if s.made != nil {
		s.made(r)
	}
	s.answer(w)
}

func (s *server) get(w http.ResponseWriter, r *http.Request) {
	if s.job.State == cove.JobInstalling {
		if got := r.URL.Query().Get("while"); got != string(cove.JobInstalling) {
			s.t.Errorf("asked to wait while %q", got)
		}
		s.looks++
		s.installs(s.looks, &s.job)
	}
	if r.PathValue("id") != s.job.ID {
		http.Error(w, `{"error":"not_found","message":"no such job"}`, http.StatusNotFound)
		return
	}
	s.answer(w)
}

func (s *server) start(w http.ResponseWriter, r *http.Request) {
	s.starts++
	var req cove.JobStart
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		s.t.Error(err)
	}
	data, err := os.ReadFile(filepath.Join(s.files, "in.bundle"))
	if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != req.BundleSHA256 || int64(len(data)) != req.BundleSize {
		s.t.Errorf("the bundle did not arrive: %v", err)
	}
	s.job.State = cove.JobRunning
	if s.agent != nil {
		s.run()
	}
	s.answer(w)
}

// run clones, lets the agent work, and collects.
func (s *server) run() {
	clone := repo{s.t, s.t.TempDir()}
	clone.git("init", "-q", "-b", "unborn")
	clone.git("fetch", "-q", filepath.Join(s.files, "in.bundle"), "refs/cove/base:refs/heads/"+s.req.Branch)
	clone.git("checkout", "-q", s.req.Branch)
	s.agent(clone)
	s.job.State = cove.JobSucceeded
	head := clone.git("rev-parse", "HEAD")
	if head == s.job.Base {
		return
	}
	s.job.Head, s.job.Ref = head, "refs/cove/"+id+"/head"
	clone.git("update-ref", s.job.Ref, head)
	out := filepath.Join(s.files, "out.bundle")
	clone.git("bundle", "create", "-q", out, s.job.Ref, "^"+s.job.Base)
	s.record(out)
}

// record writes the terminal record of the output bundle.
func (s *server) record(out string) {
	data, err := os.ReadFile(out)
	if err != nil {
		s.t.Error(err)
	}
	sum := sha256.Sum256(data)
	s.job.Bundle = cove.Artifact{Path: "/out.bundle", Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
}

func (s *server) markPulled(w http.ResponseWriter, r *http.Request) {
	var req cove.JobPulled
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		s.t.Error(err)
	}
	s.pulled = append(s.pulled, req.Head)
	s.answer(w)
}

func (s *server) delete(w http.ResponseWriter, r *http.Request) {
	s.deleted = r.URL.Query().Get("force") == "true"
	w.WriteHeader(http.StatusNoContent)
}

func (s *server) write(w http.ResponseWriter, r *http.Request) {
	f, err := os.Create(filepath.Join(s.files, filepath.Base(r.URL.Query().Get("path"))))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = f.Close() }()
	n, err := io.Copy(f, r.Body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, `{"path":"/in.bundle","mode":"0644","size":`+strconv.FormatInt(n, 10)+`}`)
}

func (s *server) read(w http.ResponseWriter, r *http.Request) {
	http.ServeFile(w, r, filepath.Join(s.files, filepath.Base(r.URL.Query().Get("path"))))
}

// repo is a real repository.
type repo struct {
	t   *testing.T
	dir string
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false", // newer versions do it beside the test
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repo) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r repo) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	return r.git("rev-parse", "HEAD")
}

// newRepo makes a repository, and a home with an identity.
func newRepo(t *testing.T) repo {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	repo{t, home}.write(".gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.com\n")
	r := repo{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	r.write("README", "hello\n")
	r.commit("first")
	return r
}
