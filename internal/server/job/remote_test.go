package job

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/forge"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/test/gitserver"
	"github.com/cove-dev/cove/sprites"
)

// remoteRequest asks for a job that clones a URL.
func remoteRequest(url string) cove.JobRequest {
	req := request()
	req.JobSource = cove.JobSource{PlanName: "plan.md", URL: url}
	return req
}

// TestRemoteJob: a job that clones a URL needs no bundle. It may read that one repository by
// the connector that leads there, as long as it is at work. The commit that it began with is
// known from the clone on, and it can be done again.
func TestRemoteJob(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx, c := t.Context(), b.server.Client()
	s := gitserver.Start(t, "", "")
	url := s.Repository("team/project.git", map[string]string{"README": "hello\n"})
	for name, upstream := range map[string]string{"forge": s.URL, "team": s.URL + "/team", "other": "http://127.0.0.1:1"} {
		if _, err := c.PutConnector(ctx, cove.Connector{Name: name, Upstream: upstream, Git: true}); err != nil {
			t.Fatal(err)
		}
	}
	said := filepath.Join(t.TempDir(), "said")
	if err := syscall.Mkfifo(said, 0o600); err != nil {
		t.Fatal(err)
	}
	req := remoteRequest(url)
	req.Env = []string{"said=" + said}
	req.Plan = "# Work\n```sh\necho x >\"$said\"; cat \"$said\"; echo more >>README\n```\n"
	job, err := c.CreateJob(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartJob(ctx, job.ID, cove.JobStart{BundleSHA256: strings.Repeat("a", 64), BundleSize: 1}); code(err) != "bad_request" {
		t.Errorf("with a bundle: got %v", err)
	}
	if _, err := c.StartJob(ctx, job.ID, cove.JobStart{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(said); err != nil { // waits for the writer
		t.Fatal(err)
	}
	if err := os.WriteFile(said, nil, 0); err != nil { // and the reader for this one
		t.Fatal(err)
	}
	grants := func(name string) []cove.ConnectorGrant {
		t.Helper()
		got, err := c.Connector(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		return got.Grants
	}
	base := s.In("team/project.git", "rev-parse", "main")
	job = b.await(job.ID)
	if job.State != cove.JobSucceeded || job.Base != base || job.Branch != "main" || job.Repository != "project" || len(job.RepoID) != 64 || job.Commits != 1 || job.Bundle.Size == 0 {
		t.Fatalf("got %+v", job)
	}
	for _, name := range []string{"forge", "team", "other"} {
		if got := grants(name); len(got) != 0 {
			t.Errorf("after its end, %s is granted: %+v", name, got)
		}
	}
	if _, err := c.MarkPulled(ctx, job.ID, job.Head); err != nil {
		t.Error(err)
	}

	// The job is done again, and its grant is looked at while it works.
	s.In("team/project.git", "branch", "later", "main")
	again, err := c.RetryJob(ctx, job.ID, cove.JobRetry{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(said); err != nil {
		t.Fatal(err)
	}
	want := cove.ConnectorGrant{Sprite: again.Sprite, Job: again.ID, Git: cove.GitGrant{Repository: "/project.git"}}
	if got := grants("team"); len(got) != 1 || got[0].Sprite != want.Sprite || got[0].Job != want.Job || got[0].Git != want.Git {
		t.Errorf("while it is at work, the grants are %+v, want %+v", got, want)
	}
	if got := append(grants("forge"), grants("other")...); len(got) != 0 {
		t.Errorf("another connector is granted: %+v", got)
	}
	if err := os.WriteFile(said, nil, 0); err != nil {
		t.Fatal(err)
	}
	if again = b.await(again.ID); again.State != cove.JobSucceeded || again.Base != base {
		t.Errorf("again: %+v", again)
	}
	list, err := cove.Steps{Client: c}.Get(ctx, again.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range list.Steps {
		switch step.Key {
		case cove.StepUploadRepository:
			if step.State != cove.StepSkipped || !strings.Contains(step.Detail, url) {
				t.Errorf("got %+v", step)
			}
		case cove.StepClone:
			if step.State != cove.StepCompleted || !strings.Contains(step.Detail, base[:12]) {
				t.Errorf("got %+v", step)
			}
		}
	}
}

// TestRemoteBegins: a job that clones a URL can begin without another call, and the job that
// does it again as well. A job that waits for a bundle can't.
func TestRemoteBegins(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx, c := t.Context(), b.server.Client()
	s := gitserver.Start(t, "", "")
	req := remoteRequest(s.Repository("project.git", map[string]string{"README": "hello\n"}))
	req.Begin, req.Plan = true, "# Work\n```sh\necho more >>README\n```\n"
	job, err := c.CreateJob(ctx, req)
	if err != nil || job.State != cove.JobInstalling {
		t.Fatalf("got %+v, %v", job, err)
	}
	if job = b.await(job.ID); job.State != cove.JobSucceeded || job.Commits != 1 {
		t.Fatalf("got %+v", job)
	}
	again, err := c.RetryJob(ctx, job.ID, cove.JobRetry{})
	if err != nil {
		t.Fatal(err)
	}
	if again = b.await(again.ID); again.State != cove.JobSucceeded {
		t.Errorf("again: %+v", again)
	}
	bundled := request()
	bundled.Begin = true
	if _, err := c.CreateJob(ctx, bundled); code(err) != "bad_request" {
		t.Errorf("without a URL: got %v", err)
	}
}

// TestRemoteRefused: what could not be cloned is refused before anything is made.
func TestRemoteRefused(t *testing.T) {
	_, c := newManager(t)
	if _, err := c.PutConnector(t.Context(), cove.Connector{Name: "forge", Upstream: "https://git.example.org", Headers: map[string]string{"Authorization": "Basic {basic:git}"}, Git: true}); err != nil {
		t.Fatal(err)
	}
	const url = "https://other.example.org/team/project.git"
	for want, change := range map[string]func(*cove.JobRequest){
		"no_key forge":                  func(r *cove.JobRequest) { r.URL = "https://git.example.org/team/project.git" },
		"bad_request a secret":          func(r *cove.JobRequest) { r.URL = "https://me:canary@other.example.org/team/project.git" },
		"bad_request not an http":       func(r *cove.JobRequest) { r.URL = "ssh://git@other.example.org/project" },
		"bad_request neither a commit":  func(r *cove.JobRequest) { r.Base = strings.Repeat("a", 40) },
		"bad_request neither a commit ": func(r *cove.JobRequest) { r.RepoID = "x" },
		"bad_request a depth":           func(r *cove.JobRequest) { r.Depth = -1 },
		"bad_request a depth ":          func(r *cove.JobRequest) { r.URL, r.Base, r.Depth = "", strings.Repeat("a", 40), 1 },
		"bad_request can't be a branch": func(r *cove.JobRequest) { r.Branch = "-x" },
	} {
		req := remoteRequest(url)
		change(&req)
		_, err := c.CreateJob(t.Context(), req)
		wantCode, words, _ := strings.Cut(want, " ")
		if code(err) != wantCode || err == nil || !strings.Contains(err.Error(), strings.TrimSpace(words)) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v", want, err)
		}
	}
	job, err := c.CreateJob(t.Context(), remoteRequest(url))
	if err != nil || job.Repository != "project" || job.Base != "" {
		t.Errorf("without a connector: got %+v, %v", job, err)
	}
	bundled, err := c.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartJob(t.Context(), bundled.ID, cove.JobStart{}); code(err) != "bad_request" {
		t.Errorf("a job that is sent a bundle began without: %v", err)
	}
}

// TestQuotedIssue: no line of an issue looks like a heading or a block of the plan, and none
// has characters that a terminal obeys.
func TestQuotedIssue(t *testing.T) {
	got := quotedIssue(12, forge.Issue{Title: "Slow\x1b[2J", Text: "## 2. Evil\r\n```sh\nrm -rf /\n```\n\n# End"})
	_, quoted, _ := strings.Cut(got, "\n\n")
	want := "> Slow[2J\n>\n> ## 2. Evil\n> ```sh\n> rm -rf /\n> ```\n>\n> # End\n"
	if quoted != want || !strings.HasPrefix(got, "This is issue 12 of the repository.") {
		t.Errorf("got %q, want %q", quoted, want)
	}
}

// TestHostileClone: the server takes what a log says of a clone only once, and only if it is
// valid.
func TestHostileClone(t *testing.T) {
	m, c := newManager(t)
	a, z := strings.Repeat("a", 40), strings.Repeat("e", 40)
	good := cove.JobCloned{Branch: "main", Base: a, Shallow: []string{a}}
	for name, test := range map[string]struct {
		said []cove.JobCloned
		want string // the base
	}{
		"twice":          {[]cove.JobCloned{good, {Branch: "main", Base: z}}, a},
		"no commit":      {[]cove.JobCloned{{Branch: "main", Base: "--all"}}, ""},
		"no branch":      {[]cove.JobCloned{{Branch: "-x", Base: a}}, ""},
		"another branch": {[]cove.JobCloned{{Branch: "other", Base: a}}, ""},
		"no id":          {[]cove.JobCloned{{Branch: "main", Base: a, RepoID: "../x"}}, ""},
		"no cut":         {[]cove.JobCloned{{Branch: "main", Base: a, Shallow: []string{"x"}}}, ""},
		"many cuts":      {[]cove.JobCloned{{Branch: "main", Base: a, Shallow: make([]string, maxShallow+1)}}, ""},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			req := remoteRequest("https://other.example.org/team/project.git")
			req.Branch = "main"
			job, err := c.CreateJob(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			var events []cove.JobEvent
			for _, cloned := range test.said {
				events = append(events, cove.JobEvent{Type: "cloned", Cloned: &cloned})
			}
			f := follower{all: m.followers, id: job.ID}
			for i, line := range strings.SplitAfter(strings.TrimSpace(lines(t, events...)), "\n") { // each is read by itself
				if err := f.store(t.Context(), strings.NewReader(strings.TrimSpace(line)+"\n"), int64(i)); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := c.Job(t.Context(), job.ID); err != nil || got.Base != test.want || got.Branch != "main" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	bundled, err := c.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	f := follower{all: m.followers, id: bundled.ID}
	good.Base = z
	if err := f.store(t.Context(), strings.NewReader(lines(t, cove.JobEvent{Type: "cloned", Cloned: &good})), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Job(t.Context(), bundled.ID); err != nil || got.Base != a {
		t.Errorf("a job that was sent a bundle: got %+v, %v", got, err)
	}
}

// TestInwardRepository: a profile and a preview warn of a repository that a sprite does not reach,
// unless a connector or a rule leads there.
func TestInwardRepository(t *testing.T) {
	_, client := newManager(t)
	ctx := t.Context()
	allow := func(cidr string) *sprites.NetworkPolicy {
		return &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{CIDR: cidr, Action: "allow"}}}
	}
	const fix = "cove connector put forge --git --upstream "
	try := func(url string, p *sprites.NetworkPolicy, want string) {
		t.Helper()
		req := remoteRequest(url)
		req.NetworkPolicy = p
		preview, err := client.PreviewJob(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		stored := put(t, client, "inward", cove.ProfileSettings{Agent: "shell", URL: url, NetworkPolicy: p})
		for _, warnings := range [][]string{preview.Warnings, stored.Warnings} {
			if text := strings.Join(warnings, "; "); (text == "") != (want == "") || !strings.HasSuffix(text, want) {
				t.Errorf("%s: got %q, want %q", url, text, want)
			}
		}
	}
	try("http://localhost:3000/team/project", nil, fix+"http://localhost:3000")
	try("http://127.0.0.2/team/project", allow("127.0.0.2"), fix+"http://127.0.0.2")
	try("https://[::1]:3000/team/project", nil, fix+"https://[::1]:3000")
	try("https://10.1.2.3/team/project", allow("10.2.0.0/16"), fix+"https://10.1.2.3")
	try("https://10.1.2.3/team/project", allow("10.1.0.0/16"), "")
	for wrapped, means := range map[string]string{"[64:ff9b::a9fe:a9fe]": "", "[::ffff:0:10.0.0.1]": "", "[2002:a00:1::1]": "", "168.63.129.16": "", "100.100.100.200": "", "240.0.0.1": "", "[fec0::1]": "", "[64:ff9b::7f00:1]": "own"} {
		own, private := connect.InwardRepository("https://" + wrapped + "/team/project")
		if own != (means == "own") || private.IsValid() == own {
			t.Errorf("%s: got %v, %v", wrapped, own, private)
		}
	}
	for _, host := range []string{"*", "*.com", "[fe80::1%25eth0]"} {
		if connect.CheckRepository("https://"+host+"/team/project") == nil {
			t.Errorf("the host %s is taken", host)
		}
	}
	try("https://git.example.org/team/project", nil, "")
	if _, err := client.PutConnector(ctx, cove.Connector{Name: "forge", Upstream: "http://localhost:3000", Git: true}); err != nil {
		t.Fatal(err)
	}
	try("http://localhost:3000/team/project", nil, "")
}
