package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/gitserver"
	"github.com/cove-dev/cove/sprites"
)

// TestPublished: only succeeded jobs are published. The result of a try is told within bounds.
// A failure is tried again, and a verdict is not.
func TestPublished(t *testing.T) {
	job := cove.Job{ID: "abc123", JobSettings: cove.JobSettings{Publish: cove.PublishBranch}, JobSource: cove.JobSource{Base: "a"}}
	end := cove.JobEnd{Head: "b"}
	p := begun(job, cove.JobSucceeded, end)
	if p == nil || p.State != cove.PublishPending || p.Branch != "cove/abc123" {
		t.Fatalf("got %+v", p)
	}
	if begun(job, cove.JobFailed, end) != nil || begun(job, cove.JobSucceeded, cove.JobEnd{}) != nil || begun(job, cove.JobSucceeded, cove.JobEnd{Head: "a"}) != nil {
		t.Error("a job that failed, or made nothing, is published")
	}
	if job.Publish = ""; begun(job, cove.JobSucceeded, end) != nil {
		t.Error("it is published, and nobody asked for that")
	}
	now := *p
	for range publishTries - 1 {
		if now = published(now, "b", cove.PublishVerdict{}, errors.New("away")); now.State != cove.PublishPending || now.Error != "away" {
			t.Fatalf("got %+v", now)
		}
	}
	if got := published(now, "b", cove.PublishVerdict{Pushed: true}, nil); got.State != cove.PublishDone || got.Commit != "b" || got.Error != "" || got.Ended == nil {
		t.Errorf("got %+v", got)
	}
	if got := published(now, "b", cove.PublishVerdict{}, errors.New("away")); got.State != cove.PublishFailed || got.Ended == nil {
		t.Errorf("got %+v", got)
	}
	long := strings.Repeat("x", 2*maxReason)
	lie := cove.PublishVerdict{Pushed: true, Refused: long}
	if got := published(*p, "b", lie, nil); got.State != cove.PublishFailed || got.Commit != "" || len(got.Error) > 2*maxReason-100 {
		t.Errorf("got %s, %d bytes", got.State, len(got.Error))
	}
	lie.Risky = make([]cove.RiskyFile, 10*maxRisky)
	lie.Risky[0] = cove.RiskyFile{Path: long, Why: long}
	if got := published(*p, "b", lie, nil); got.State != cove.PublishHeld || len(got.Risky) != maxRisky || len(got.Risky[0].Path) > 2*maxReason-100 {
		t.Errorf("got %s with %d files", got.State, len(got.Risky))
	}
	if got := published(*p, "b", cove.PublishVerdict{}, nil); got.State != cove.PublishFailed {
		t.Errorf("an empty verdict: got %+v", got)
	}
}

func TestUnfit(t *testing.T) {
	for said, test := range map[int64]struct {
		size, limit int64
		want        string
	}{
		-1: {-1, 0, "not taken"}, cove.MaxBundle + 1: {cove.MaxBundle + 1, 0, "not taken"}, cove.MaxBundle: {cove.MaxBundle, 0, ""},
		100: {100, 100, ""}, 101: {101, 100, "is 100"}, 5: {6, 0, "it has 6 bytes, and had 5"}, 6: {5, 0, "it has 5 bytes, and had 6"},
	} {
		got := unfit(cove.Job{JobResult: cove.JobResult{Bundle: cove.Artifact{Size: said}}}, test.size, test.limit)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%d: got %q, want %q", said, got, test.want)
		}
	}
}

// TestPublishDisk: the limit of a publication's disk grows with the bundle, within bounds, whatever a log says of it.
func TestPublishDisk(t *testing.T) {
	for bundle, want := range map[int64]int{-1: 16384, 0: 16384, 100 << 20: 16784, cove.MaxBundle: 32768, 1 << 62: 32768} {
		if got := publishDisk(bundle); got != want {
			t.Errorf("%d: got %d MiB, want %d", bundle, got, want)
		}
	}
}

func TestTitleOf(t *testing.T) {
	for plan, want := range map[string]string{
		"\n# Update the *dependencies*\nx": "Update the *dependencies*", "```sh\ntrue\n```\n": "true", "": "Job x", "```\n": "Job x",
		strings.Repeat("é", 200): strings.Repeat("é", 100) + "…",
	} {
		if got := titleOf(plan, "Job x"); got != want {
			t.Errorf("%.20q: got %q", plan, got)
		}
	}
}

// publishThere is cove-guest publish in a bench, which has no gateway: a file in its home says where the connector leads.
func publishThere(ctx context.Context) error {
	var order cove.PublishOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		return err
	}
	to, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), "forge"))
	if err != nil {
		return err
	}
	order.URL = strings.Replace(order.URL, "http://forge.connect.internal", string(to), 1)
	order.Bundle = strings.Replace(order.Bundle, boot.Home, os.Getenv("HOME"), 1)
	dir, err := os.MkdirTemp("", "publish-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	verdict, err := gitwork.Publish(ctx, dir, order)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(verdict)
}

// hub is a git server with the API of a forge, where a publication can be held at a point.
type hub struct {
	*gitserver.Server
	url string

	mu      sync.Mutex
	pulls   map[string]int // by head; more than one is one too many
	broken  bool           // the API
	at      string         // where the next one is held; empty: nowhere
	reached chan struct{}
	free    chan struct{}
}

func newHub(t *testing.T) *hub {
	h := &hub{Server: gitserver.Start(t, "", ""), pulls: map[string]int{}}
	h.API = http.HandlerFunc(h.api)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		push := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/git-receive-pack")
		if push {
			h.pass("before the push")
		}
		h.ServeHTTP(w, r)
		if push {
			h.pass("after the push")
		}
	}))
	t.Cleanup(front.Close)
	h.url = front.URL
	return h
}

func (h *hub) api(w http.ResponseWriter, r *http.Request) {
	const page = `{"html_url":"https://forge.example.org/pulls/1"}`
	if r.Method != http.MethodPost {
		fmt.Fprint(w, page)
		return
	}
	var doc struct{ Head string }
	if err := json.NewDecoder(r.Body).Decode(&doc); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.pass("before the pull request")
	h.mu.Lock()
	there, broken := h.pulls[doc.Head] > 0, h.broken
	if !there && !broken {
		h.pulls[doc.Head]++
	}
	h.mu.Unlock()
	switch {
	case broken:
		http.Error(w, "{}", http.StatusInternalServerError)
	case there:
		http.Error(w, "{}", http.StatusConflict)
	default:
		h.pass("after the pull request") // its answer is on the way
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, page)
	}
}

// pass holds the first that comes to the point that was asked for.
func (h *hub) pass(point string) {
	h.mu.Lock()
	held := h.at == point
	if held {
		h.at = ""
	}
	reached, free := h.reached, h.free
	h.mu.Unlock()
	if held {
		close(reached)
		<-free
	}
}

// hold holds the next publication at a point, until free.
func (h *hub) hold(point string) (reached, free chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.reached, h.free = point, make(chan struct{}), make(chan struct{})
	return h.reached, h.free
}

// breaks has the API fail, or not.
func (h *hub) breaks(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = yes
}

func (h *hub) opened(head string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pulls[head]
}

// TestPublishCut: at whatever point a server ends while it publishes, the next one brings about one branch and one pull
// request. A publication that has failed is done again if somebody asks for that, once.
func TestPublishCut(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx, h := t.Context(), newHub(t)
	h.Repository("team/project.git", map[string]string{"README": "hello\n"})
	if err := os.WriteFile(filepath.Join(b.home, "forge"), []byte(h.url), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []cove.Connector{
		{Name: "forge-api", Upstream: h.url + "/api/v1"},
		{Name: "forge", Upstream: h.url, Git: true, Forge: cove.ConnectorForge{Kind: "gitea", API: "forge-api"}},
	} {
		if _, err := b.server.Client().PutConnector(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	publish := func() cove.Job {
		t.Helper()
		req := remoteRequest(h.url + "/team/project.git")
		req.Publish, req.Plan = cove.PublishPullRequest, "# Work\n```sh\necho more >>README\n```\n"
		job, err := b.server.Client().CreateJob(ctx, req)
		if err == nil {
			_, err = b.server.Client().StartJob(ctx, job.ID, cove.JobStart{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	ended := func(id string, also func()) (job cove.Job) {
		t.Helper()
		if job = b.await(id); job.State != cove.JobSucceeded || job.Published == nil {
			t.Fatalf("got %+v", job)
		}
		changed, cancel := b.manager.Store.Jobs.Watch(id)
		defer cancel()
		for {
			var err error
			if job, err = b.server.Client().Job(ctx, id); err != nil || job.Published.Ended != nil {
				return job
			}
			also()
			select {
			case <-changed:
			case <-time.After(5 * time.Minute):
				t.Fatalf("it is published no more: %+v", job.Published)
			}
		}
	}
	is := func(job cove.Job) {
		t.Helper()
		refs := h.In("team/project.git", "for-each-ref", "--format=%(objectname)", "refs/heads/cove/"+job.ID)
		if p := job.Published; p.State != cove.PublishDone || p.URL != "https://forge.example.org/pulls/1" || p.Commit != job.Head || refs != job.Head || h.opened("cove/"+job.ID) != 1 {
			t.Errorf("published %+v, with the branches %q and %d pull requests; the head is %s", p, refs, h.opened("cove/"+job.ID), job.Head)
		}
	}
	for _, point := range []string{"before the push", "after the push", "before the pull request", "after the pull request"} {
		reached, free := h.hold(point)
		job := publish()
		select {
		case <-reached:
		case <-time.After(5 * time.Minute):
			job, err := b.server.Client().Job(ctx, job.ID)
			t.Fatalf("%s: it never came there: %+v, published %+v, %v", point, job, job.Published, err)
		}
		rows, err := b.manager.Store.Sprites.List(ctx, store.SpriteFilter{Prefix: store.InstallName})
		if i := slices.IndexFunc(rows, func(s store.Sprite) bool { return strings.HasSuffix(s.Owner, ":"+job.ID) }); err == nil && strings.HasSuffix(point, "the push") && (i < 0 || rows[i].Config.DiskLimit() != 16<<30) {
			t.Errorf("%s: the sprites of publications are %+v, without one that has its limit of the disk", point, rows)
		}
		b.server.Stop()
		b.serve(time.Second, 0) // what the sprite has begun goes on beside it
		close(free)
		is(ended(job.ID, func() {}))
	}

	h.breaks(true)
	job := publish()
	job = ended(job.ID, b.manager.finisher.publisher.more)
	if p := job.Published; p.State != cove.PublishFailed || p.Tries != publishTries || !strings.Contains(p.Error, "open a pull request") {
		t.Errorf("got %+v", p)
	}
	h.breaks(false)
	pusher, _ := by(t, b.server.Client(), cove.TokenScope{All: true})
	if _, err := cove.PublishJob(ctx, pusher, job.ID); code(err) != "forbidden" {
		t.Errorf("by a token that could not begin it: %v", err)
	}
	if again, err := cove.PublishJob(ctx, b.server.Client(), job.ID); err != nil || again.Published.State != cove.PublishPending {
		t.Errorf("again: %+v, %v", again.Published, err)
	}
	job = ended(job.ID, func() {})
	is(job)
	if again, err := cove.PublishJob(ctx, b.server.Client(), job.ID); err != nil || again.Published.State != cove.PublishDone || !again.Published.Ended.Equal(*job.Published.Ended) {
		t.Errorf("once more: %+v, %v", again.Published, err)
	}
	// A log that the agent has written may tell of any bundle. None such is tried twice.
	forged, was := job.Bundle, job.Bundle
	for want, change := range map[string]func(){
		"more than 4294967296 are not taken": func() { forged.Size = 5 << 30 },
		"it has":                             func() { forged.Size++ },
		"is not as it was collected":         func() { forged.SHA256 = strings.Repeat("0", 64) },
		"is not in sprite":                   func() { forged.Path += ".gone" },
	} {
		forged = was
		change()
		if err := b.manager.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Bundle, j.Published = forged, &cove.JobPublished{State: cove.PublishPending, Branch: j.Published.Branch}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		b.manager.finisher.publisher.more()
		if p := ended(job.ID, func() {}).Published; p.State != cove.PublishFailed || p.Tries != 0 || !strings.Contains(p.Error, want) {
			t.Errorf("%s: got %+v", want, p)
		}
	}
	if err := b.server.Client().Delete(ctx, job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	failed := func(j *cove.Job) error { j.Published.State = cove.PublishFailed; return nil }
	if err := b.manager.Store.Jobs.Update(ctx, job.ID, failed); err != nil {
		t.Fatal(err)
	}
	if _, err := cove.PublishJob(ctx, b.server.Client(), job.ID); code(err) != "not_kept" {
		t.Errorf("without its sprite: %v", err)
	}
	for info, err := range b.server.Client().All(ctx, "") {
		if err != nil || strings.HasPrefix(info.Name, "install-") {
			t.Errorf("there is %s, %v", info.Name, err)
		}
	}
}

// TestPublishingIsKept: a job whose commits are not published yet, and its environment, are removed by
// force alone.
func TestPublishingIsKept(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	job, err := client.CreateJob(ctx, request())
	if err != nil {
		t.Fatal(err)
	}
	m.finisher.publisher.Close() // so that it stays to be published
	now := time.Now().Add(-time.Hour)
	if _, err := m.Store.Jobs.Finish(ctx, job.ID, cove.JobSucceeded, cove.Outcome{}, func(j *cove.Job) {
		j.Publish, j.Bundle.Size, j.PulledAt = cove.PublishBranch, 7, &now
		j.Published = &cove.JobPublished{State: cove.PublishPending}
	}); err != nil {
		t.Fatal(err)
	}
	refused := func(what, hint string, err error) {
		t.Helper()
		e, _ := errors.AsType[*sprites.Error](err)
		if code(err) != "job_running" || !strings.Contains(err.Error(), "not published yet") || !strings.Contains(e.Hint, hint) {
			t.Errorf("%s: got %v", what, err)
		}
		if _, err := client.Get(ctx, job.Sprite); err != nil {
			t.Fatalf("%s: its sprite: %v", what, err)
		}
	}
	refused("removed", "cove job rm --force "+job.ID, client.DeleteJob(ctx, job.ID, false))
	_, err = cove.Environments{Client: client}.Destroy(ctx, job.Execution, false)
	refused("its environment", "cove environment rm "+job.Sprite+" --force", err)
	if result, err := client.CollectJobs(ctx, cove.JobGC{}); err != nil || len(result.Kept) != 1 || result.Kept[0].Reason != cove.KeptInUse {
		t.Errorf("collected %+v, %v", result, err)
	}
	if err := client.DeleteJob(ctx, job.ID, true); err != nil {
		t.Errorf("by force: %v", err)
	}
}

// TestPublishUnended: whoever asks to publish a job that is being prepared is refused at once.
func TestPublishUnended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := inBubble(t, nil)
		job := m.row(t)
		prepared, err := m.locks.Lock(t.Context(), job.ID)
		if err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 1)
		go func() {
			_, err := m.Publish(t.Context(), job.ID)
			refused <- err
		}()
		synctest.Wait()
		select {
		case err := <-refused:
			if code(err) != "job_running" {
				t.Errorf("got %v", err)
			}
		default:
			t.Error("it waits until the job is prepared")
		}
		prepared()
		synctest.Wait()
	})
}

// TestPublishable: a job with nothing to publish, or with files that hold it, is refused, and says why.
func TestPublishable(t *testing.T) {
	job := func(change func(*cove.Job)) cove.Job {
		j := cove.Job{ID: "abc123", State: cove.JobSucceeded, JobSettings: cove.JobSettings{Publish: cove.PublishBranch}}
		j.Published = &cove.JobPublished{State: cove.PublishFailed}
		change(&j)
		return j
	}
	for want, change := range map[string]func(*cove.Job){
		"":                              func(*cove.Job) {},
		"not_published is not to be":    func(j *cove.Job) { j.Publish = "" },
		"not_published not succeeded":   func(j *cove.Job) { j.State = cove.JobTimedOut },
		"not_published made no commits": func(j *cove.Job) { j.Published = nil },
		"risky .github/x.yml": func(j *cove.Job) {
			j.Published = &cove.JobPublished{State: cove.PublishHeld, Risky: []cove.RiskyFile{{Path: ".github/x.yml"}}}
		},
	} {
		err := publishable(job(change))
		wantCode, words, _ := strings.Cut(want, " ")
		if want == "" && err != nil || want != "" && (code(err) != wantCode || !strings.Contains(err.Error(), words)) {
			t.Errorf("%q: got %v", want, err)
		}
	}
}
