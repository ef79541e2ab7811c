package jobs

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestJobByForce: an agent pauses the supervisor (SIGSTOP), again whenever it resumes.
// The job still ends when it is stopped. Its work can be pulled, and no process of it is
// left.
func TestJobByForce(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	freeze := "kill -STOP $(cat ~/.cove/jobs/*/lock)\ntouch ~/frozen\nwhile sleep 5; do kill -STOP $(cat ~/.cove/jobs/*/lock); done"
	h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\necho 1 > one.txt\n```\n## Two\n```sh\n" + freeze + "\n```\n"})
	id, sprite := h.Push("repo", "plan.md", "--agent", "shell")
	h.Run("", "cove", "exec", "-s", sprite, "sh", "-c", "until test -e ~/frozen; do sleep 0.2; done")
	h.Run("", "cove", "job", "stop", id)
	h.Try("", "cove", "job", "wait", id, "--timeout", "20m")
	job := h.Job(id)
	if job.State != cove.JobCancelled || job.Outcome == nil || !strings.Contains(job.Outcome.Reason, "by force") || job.Commits != 1 {
		t.Fatalf("got %s, %+v, %d commits", job.State, job.Outcome, job.Commits)
	}
	h.Try("repo", "cove", "pull", id)
	if got := h.Run("repo", "git", "log", "--format=%s", "refs/cove/"+id+"/head"); got != "One\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	if left := h.Run("", "cove", "exec", "-s", sprite, "sh", "-c", "grep -lz ^COVE_JOB= /proc/[0-9]*/environ 2>/dev/null; true"); left != "" {
		t.Errorf("processes of the job are left: %s", left)
	}
}

// TestJobRetry retries a job that failed, once the reason has gone: in a new sprite and
// in the old one.
func TestJobRetry(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{
		"plan.md": "## One\n```sh\ntest \"$LUCKY\" = yes || test -e ~/lucky || exit 3\necho 1 > one.txt\n```\n",
	})
	h.Run(repo, "git", "commit", "-q", "--allow-empty", "-m", "second")
	first, sprite := h.Push(repo, "plan.md", "--agent", "shell", "--timeout", "50m", "--max-turns", "7", "--depth", "1")
	if _, code := h.Try("", "cove", "job", "wait", first); code != 1 {
		t.Fatalf("wait exited with %d", code)
	}
	h.Run("", "cove", "exec", "-s", sprite, "touch", "lucky")
	again := e2e.JSONField(t, h.Run(repo, "cove", "job", "retry", first, "--json"), "id")
	if _, code := h.Try("", "cove", "job", "wait", again); code != 1 {
		t.Errorf("in a new sprite: exit code %d", code)
	}
	got := h.Job(again)
	if got.Sprite == sprite || !got.OwnsSprite || got.RetryOf != first || got.TimeoutSec != 3000 || got.Guards.Turns != 7 || got.Base != h.Job(first).Base {
		t.Errorf("got %+v", got)
	}
	same := e2e.JSONField(t, h.Run(repo, "cove", "job", "retry", first, "--same-sprite", "--json"), "id")
	h.Run("", "cove", "job", "wait", same)
	if got := h.Job(same); got.Sprite != sprite || got.OwnsSprite {
		t.Errorf("got %+v", got)
	}
	// The sprite was made for the first job, and now belongs to the job whose work is in it.
	h.Run("", "cove", "job", "rm", first)
	if got := h.Job(same); !got.OwnsSprite {
		t.Errorf("got %+v", got)
	}
	if out, code := h.Try("", "cove", "job", "rm", same); code != 1 || !strings.Contains(out, "cove pull "+same) {
		t.Errorf("rm of what nobody has pulled: %d, %s", code, out)
	}
	h.Run(repo, "cove", "pull", same)
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "One\nsecond\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
	h.Run("", "cove", "job", "rm", same)
	if out := h.Run("", "cove", "list"); strings.Contains(out, sprite) {
		t.Errorf("the sprite is still there:\n%s", out)
	}
	h.Run("", "cove", "rm", "--force", got.Sprite)
	if out, code := h.Try(repo, "cove", "job", "retry", again); code != 1 || !strings.Contains(out, "push it again") {
		t.Errorf("without its sprite: %d, %s", code, out)
	}
	long, _ := h.Push(repo, "plan.md", "--agent", "shell", "--env", "LUCKY=yes", "--dirty", "ignore")
	h.Run("", "cove", "job", "wait", long)
	if out, code := h.Try(repo, "cove", "job", "retry", "000000"); code != 1 || !strings.Contains(out, "cove job list") {
		t.Errorf("of no job: %d, %s", code, out)
	}
}

// gc runs job gc. It returns the reasons for what was removed and kept, by job, or by
// sprite if there is no job.
func gc(h *e2e.Host, args ...string) (removed, kept map[string]string) {
	h.T.Helper()
	var result cove.JobGCResult
	if err := json.Unmarshal([]byte(h.Run("", "cove", append([]string{"job", "gc", "--json"}, args...)...)), &result); err != nil {
		h.T.Fatal(err)
	}
	by := func(items []cove.JobGCItem) map[string]string {
		all := map[string]string{}
		for _, i := range items {
			if i.Job == "" {
				i.Job = i.Sprite
			}
			all[i.Job] = i.Why
		}
		return all
	}
	return by(result.Removed), by(result.Kept)
}

// TestJobH4: job gc removes what jobs leave by fixed rules, whoever made it. It keeps
// work that nobody has pulled, a person's sprite, and a sprite in use. An interrupted
// push leaves nothing.
func TestJobH4(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{
		"plan.md": "## One\n```sh\necho $(date +%N) > one.txt\n```\n", "empty.md": "## None\n```sh\ntrue\n```\n", "long.md": e2e.WaitingPlan,
	})
	pulled, pulledIn := h.Push(repo, "plan.md", "--agent", "shell")
	h.Run(repo, "cove", "pull", pulled, "--wait=10m", "--into=none")
	unpulled, unpulledIn := h.Push(repo, "plan.md", "--agent", "shell")
	empty, _ := h.Push(repo, "empty.md", "--agent", "shell")
	running, runningIn := h.Push(repo, "long.md", "--agent", "shell")
	h.Run("", "cove", "create", "mine", "--label", "cove-job")
	guest, _ := h.Push(repo, "empty.md", "--agent", "shell", "-s", "mine")
	orphan, orphaned := h.Push(repo, "empty.md", "--agent", "shell")
	for _, job := range []string{unpulled, empty, guest, orphan} {
		h.Run("", "cove", "job", "wait", job)
	}

	// A job's end is known before its supervisor has ended, in a sprite that is in use until then.
	e2e.Await(t, "sprites that nobody uses", func() bool {
		_, kept := gc(h, "--older-than", "0", "--dry-run")
		return len(kept) == 2
	})
	if removed, kept := gc(h); len(removed) > 0 || !strings.Contains(kept[pulled], "ago") || !strings.Contains(kept[unpulled], "cove pull "+unpulled) {
		t.Errorf("of what was used today: removed %v, kept %v", removed, kept)
	}
	removed, kept := gc(h, "--older-than", "0", "--dry-run")
	if len(removed) != 4 || removed[pulled] != "pulled" || removed[empty] != "it left nothing" || removed[guest] == "" || removed[orphan] == "" || kept[unpulled] == "" || kept[running] != "it has not ended" || len(kept) != 2 {
		t.Errorf("a dry run: removed %v, kept %v", removed, kept)
	}
	if out := h.Run("", "cove", "job", "gc", "--older-than", "0", "--dry-run"); !strings.HasSuffix(out, "\nKept 2: 1 has not ended, 1 was not pulled.\n") {
		t.Errorf("a dry run says %s", out)
	}
	if got := h.Job(pulled); got.ID != pulled {
		t.Errorf("a dry run removed it: %+v", got)
	}
	// A server may die before it has deleted the sprite of a job. At a backend nothing
	// says whose a sprite is.
	gone := orphan
	if h.Far == nil {
		forget(h, orphan, orphaned)
		gone = orphaned
	}
	_, inUse := h.Background("", "cove", "exec", "-s", pulledIn, "sh", "-c", "until test -e free; do sleep 0.1; done")
	e2e.Await(t, "the command", func() bool {
		return strings.Contains(h.Run("", "cove", "session", "list", "-s", pulledIn), "until test")
	})
	if removed, kept := gc(h, "--older-than", "0"); !strings.Contains(kept[pulled], "in use") || removed[empty] == "" || removed[guest] == "" || removed[gone] == "" || len(removed) != 3 {
		t.Errorf("removed %v, kept %v", removed, kept)
	}
	h.Run("", "cove", "exec", "-s", pulledIn, "touch", "free")
	if _, err := inUse(); err != nil {
		t.Errorf("the command was ended: %v", err)
	}
	e2e.Await(t, "a sprite that nobody uses", func() bool {
		_, kept := gc(h, "--older-than", "0", "--dry-run")
		return kept[pulled] == ""
	})
	if removed, kept := gc(h, "--older-than", "0"); removed[pulled] == "" || len(kept) != 2 {
		t.Errorf("when it is free: removed %v, kept %v", removed, kept)
	}
	list := h.Run("", "cove", "list")
	for name, want := range map[string]bool{pulledIn: false, unpulledIn: true, "mine": true, orphaned: false, runningIn: true} {
		if strings.Contains(list, name) != want {
			t.Errorf("sprite %s: want it %v in\n%s", name, want, list)
		}
	}
	if removed, _ := gc(h, "--older-than", "0", "--force"); len(removed) != 1 || !strings.Contains(removed[unpulled], "lost") {
		t.Errorf("by force: removed %v", removed)
	}
	if got := h.Job(running); got.State.Terminal() {
		t.Errorf("the running job is %s", got.State)
	}
	testInterruptedPush(h)
}

// forget takes a job out of the store, while no server runs, and ends the lease of
// its sprite.
func forget(h *e2e.Host, job, sprite string) {
	h.T.Helper()
	h.EndServer(syscall.SIGTERM)
	st, err := store.Open(h.T.Context(), filepath.Join(h.Data, "cove.db"))
	if err != nil {
		h.T.Fatal(err)
	}
	row, err := st.Sprites.Get(h.T.Context(), sprite)
	if err == nil {
		_, err = st.Sprites.Update(h.T.Context(), row.ID, func(s *store.Sprite) error { s.LeaseUntil = time.Now().Add(-time.Minute); return nil })
	}
	if err := errors.Join(err, st.Jobs.Delete(h.T.Context(), job), st.Close()); err != nil {
		h.T.Fatal(err)
	}
	h.Serve(nil, "--keep-jobs", "0") // else it would see to that by itself
}

// held is a request's body that passes on so many bytes, and then nothing.
type held struct {
	io.ReadCloser
	left        int
	reached     chan struct{} // closed with the last byte that is passed on
	interrupted chan struct{}
	ended       chan struct{}
}

func (b *held) Read(p []byte) (int, error) {
	if b.left > 0 {
		n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
		b.left -= n
		return n, err
	}
	close(b.reached)
	<-b.interrupted
	if _, err := io.Copy(io.Discard, b.ReadCloser); err != nil {
		return 0, err // as a rule: the client breaks it off
	}
	<-b.ended
	return 0, io.ErrUnexpectedEOF
}

// through returns the variables by which a command reaches the host's server through a proxy,
// which changes each request.
func through(h *e2e.Host, change func(*http.Request)) (env []string) {
	h.T.Helper()
	target, err := url.Parse(h.Client().URL)
	if err != nil {
		h.T.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorLog = log.New(io.Discard, "", 0)
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		change(r)
		forward.ServeHTTP(w, r)
	}))
	h.T.Cleanup(between.Close)
	return []string{"COVE_URL=" + between.URL, "COVE_TOKEN=" + h.Client().Token}
}

// testInterruptedPush: Ctrl-C in the middle of a push removes all that the push has made.
func testInterruptedPush(h *e2e.Host) {
	h.T.Helper()
	upload := &held{left: 1 << 20, reached: make(chan struct{}), interrupted: make(chan struct{}), ended: make(chan struct{})}
	hold := func(r *http.Request) {
		if r.Method == http.MethodPut && r.ContentLength > 40<<20 {
			upload.ReadCloser, r.Body = r.Body, upload
		}
	}
	var env []string
	if h.Far != nil {
		h.Far.Change.Store(&hold)
		defer h.Far.Change.Store(nil)
	} else {
		env = through(h, hold)
	}
	names := func() []string {
		var names []string
		for info, err := range place(h).Client().All(h.T.Context(), "job-") {
			if err != nil {
				h.T.Fatal(err)
			}
			names = append(names, info.Name)
		}
		return names
	}
	before := names()
	h.Write("big/plan.md", "## None\n```sh\ntrue\n```\n")
	h.Run("big", "sh", "-c", "head -c 40M /dev/urandom >big")
	h.Run("big", "git", "init", "-q")
	h.Run("big", "git", "config", "core.compression", "0")
	h.Run("big", "git", "add", "-A")
	h.Run("big", "git", "commit", "-q", "-m", "first")
	w := newWaiter(h, "big", env, "push", "plan.md", "--agent", "shell")
	select {
	case <-upload.reached:
	case err := <-w.ended:
		h.T.Fatalf("the push has ended without an upload: %v, %s", err, w.said.String())
	}
	if len(names()) == len(before) {
		h.T.Error("the push has made no sprite")
	}
	e2e.SignalAll(h.T, syscall.SIGINT, w.Process.Pid)
	close(upload.interrupted)
	err := <-w.ended
	close(upload.ended)
	if err == nil || !strings.Contains(w.said.String(), "interrupted") {
		h.T.Errorf("the push: %v, %s", err, w.said.String())
	}
	e2e.Await(h.T, "what was before", func() bool { return slices.Equal(names(), before) })
	if out := h.Run("big", "git", "for-each-ref", "refs/cove"); out != "" {
		h.T.Errorf("left: %s", out)
	}
}

// TestJobH5: a job's bundle is one file that has all that is known of the job, but no
// value of its environment. Only its maker can read it.
func TestJobH5(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "RUN mkdir -p ~/.claude/projects/$(pwd | tr -c 'A-Za-z0-9\\n' -); echo '{}' >~/.claude/projects/$(pwd | tr -c 'A-Za-z0-9\\n' -)/s.jsonl\nRUN echo hello\n"})
	standInSprite(h, "paint", "--env", "FROM=sprite-secret")
	job, _ := h.Push(repo, append([]string{"plan.md", "-s", "paint", "--env", "KEY=job-secret"}, standInsThere(h)...)...)
	h.Try("", "cove", "job", "wait", job)
	h.Run(repo, "cove", "job", "bundle", job)
	name := filepath.Join(filepath.Dir(h.Home), repo, ".git", "cove", "bundles", "cove-job-"+job+".tar.gz")
	if out := h.Run(repo, "git", "status", "--porcelain"); out != "" {
		t.Errorf("the repository has changed: %s", out)
	}
	h.Run("", "cove", "job", "bundle", job)
	if _, err := os.Stat(filepath.Join(filepath.Dir(h.Home), "cove-job-"+job+".tar.gz")); err != nil {
		t.Errorf("outside of a repository: %v", err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	files := readBundle(t, name)
	for file, want := range map[string]string{
		"manifest.json": "/cove-job-" + job + ".tar.gz", "job.json": `"kind": "no_result"`, "events.jsonl": `"type":"end"`, "log.txt": "| hello",
		"environment.json": `"FROM"`, "versions.json": `"runsc": "v0.0.0`, "sprite.json": `"name": "paint"`,
		"agent/output.log": "hello\n", "agent/supervisor.log": "agent started", "agent/end.json": `"phase":"done"`, "transcript/1.jsonl": "{}",
		"sandbox/shim.log": "", "sandbox/refused.jsonl": "",
	} {
		if h.Far != nil && strings.HasPrefix(file, "sandbox/") {
			continue // it is a cove's own
		}
		if text, ok := files["cove-job-"+job+"/"+file]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s (there: %v) lacks %q:\n%.2000s", file, ok, want, text)
		}
	}
	for file, text := range files {
		if strings.Contains(text, "-secret") {
			t.Errorf("%s has a value of the environment", file)
		}
	}
	if out, code := h.Try(repo, "cove", "job", "bundle", job); code != 1 || !strings.Contains(out, "is there already") {
		t.Errorf("again: %d, %s", code, out)
	}
	// Files that went with the sprite are named, and the rest is there.
	h.Run("", "cove", "rm", "--force", "paint")
	doc := h.Run(repo, "cove", "job", "bundle", job, "--output", "forensics/", "--json")
	if !strings.Contains(doc, "agent/output.log") || !strings.Contains(h.Run(repo, "cat", "forensics/log.txt"), "| hello") {
		t.Errorf("without its sprite: %s", doc)
	}
}

// readBundle returns the files of an archive.
func readBundle(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil || header.Mode != 0o600 {
			t.Errorf("%s: mode %o, %v", header.Name, header.Mode, err)
		}
		files[header.Name] = string(text)
	}
}

// TestJobStartedAnew: a server is killed after it has recorded that a job begins, and
// before the job's supervisor runs. The next server starts the job.
func TestJobStartedAnew(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\necho 1 > one.txt\n```\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.Run("", "cove", "job", "wait", job)
	// As it was when the supervisor had not run yet.
	h.Run("", "cove", "exec", "-s", sprite, "sh", "-c", "cd .cove/jobs/"+job+" && rm -rf lock events.jsonl output.log end.json out.bundle ~/work/"+job+" && touch -d '1 hour ago' job.json")
	h.EndServer(syscall.SIGTERM)
	rewind(h, job)
	h.Run("", "cove", "server", "start") // starts the next server
	if out, code := h.Try("", "cove", "job", "wait", job, "--timeout", "10m"); code != 0 || h.Job(job).Commits != 1 {
		t.Errorf("it was not started: %d, %s\n%s", code, out, h.Run("", "cove", "job", "logs", job))
	}
	h.Run(repo, "cove", "pull", job)
}

// rewind turns a job back into one that is about to begin, while no server runs.
func rewind(h *e2e.Host, id string) {
	h.T.Helper()
	st, err := store.Open(h.T.Context(), filepath.Join(h.Data, "cove.db"))
	if err != nil {
		h.T.Fatal(err)
	}
	job, err := st.Jobs.Get(h.T.Context(), id)
	settings, settingsErr := st.Jobs.Settings(h.T.Context(), id)
	if err := errors.Join(err, settingsErr, st.Jobs.Delete(h.T.Context(), id)); err != nil {
		h.T.Fatal(err)
	}
	job.State, job.Outcome, job.EndedAt, job.Bundle, job.Commits, job.Head, job.Error = cove.JobPreparing, nil, nil, cove.Artifact{}, 0, "", ""
	job.OwnsSprite = false // its environment is there
	if err := errors.Join(st.Jobs.Create(h.T.Context(), job, settings), st.Close()); err != nil {
		h.T.Fatal(err)
	}
}
