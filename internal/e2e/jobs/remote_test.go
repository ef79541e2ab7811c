package jobs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/gitserver"
)

// forgeToken is a password of a git server that no sandbox may have.
const forgeToken e2e.Canary = "canary-forge/6123456789+abc"

// TestRemote: a person outside any repository has a job clone one from a server that asks for a
// password. The sprite never has the password. It reads this repository and no other, and can't
// write.
func TestRemote(t *testing.T) {
	h := e2e.NewHost(t)
	h.Write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n")
	s := gitserver.Start(t, "robot", string(forgeToken))
	url := s.Repository("team/project.git", map[string]string{"README": "hello\n"})
	s.Repository("team/other.git", map[string]string{"README": "not for the job\n"})
	s.In("team/project.git", "branch", "release/2", "main")
	h.Serve(nil, "--verbose")
	if err := h.Client().SetSecret(t.Context(), "forge", string(forgeToken)); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "connector", "put", "forge", "--upstream", s.URL, "--git", "--header", "Authorization: Basic {basic:robot}")
	plan := h.Plan(
		"echo more >>README; cat .git/config .git/logs/HEAD /proc/[0-9]*/environ /proc/[0-9]*/cmdline >/tmp/seen 2>/dev/null || true",
		"git fetch -q origin main",
		"if git push -q origin HEAD:refs/heads/evil; then exit 9; fi",
		"if git ls-remote "+strings.Replace(url, "project", "other", 1)+"; then exit 9; fi",
		"if curl -sf http://forge.connect.internal/team/project.git/HEAD; then exit 9; fi",
	)
	out, code := h.Try("", "cove", "run", "--agent", "shell", "--repo", url, "--depth", "1", "--branch", "release/2", "--publish", "branch", plan)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	jobs, err := h.Client().Jobs(t.Context())
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	job := h.Job(jobs[0].ID)
	base := s.In("team/project.git", "rev-parse", "release/2")
	clone := "git clone " + url + " job-" + job.ID + " && cd job-" + job.ID + " && cove pull " + job.ID
	if job.State != cove.JobSucceeded || job.Base != base || job.Branch != "release/2" || job.Commits == 0 || len(job.Shallow) != 1 || !strings.Contains(out, clone) {
		t.Errorf("got %+v, and was told:\n%s", job, out)
	}
	if out, code := h.Try("", "cove", "pull", job.ID); code == 0 || !strings.Contains(out, clone) {
		t.Errorf("a pull outside of a clone: %d, %s", code, out)
	}
	h.Run("", "git", "clone", "-q", s.Root+"/team/project.git", "mine")
	h.Run("mine", "git", "switch", "-q", "release/2")
	if out := h.Run("mine", "cove", "pull", job.ID); !strings.Contains(out, "README") {
		t.Errorf("the pull says %s", out)
	}
	if got := h.Run("mine", "cat", "README"); got != "hello\nmore\n" {
		t.Errorf("pulled: %q", got)
	}

	// A sprite that nothing of the job has run in publishes the job's commits, if a pull
	// would take them without a question.
	published := func(id string) cove.JobPublished {
		t.Helper()
		e2e.Await(t, "the publication of "+id+" ends", func() bool { p := h.Job(id).Published; return p != nil && p.Ended != nil })
		return *h.Job(id).Published
	}
	if p := published(job.ID); p.State != cove.PublishDone || p.Commit != job.Head || s.In("team/project.git", "rev-parse", "cove/"+job.ID) != job.Head {
		t.Errorf("published: %+v", p)
	}

	// A pull request is opened by the forge's API. No sprite is granted that API.
	opened := make(chan string, 9)
	s.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/api/v1/repos/team/project/issues/12" {
			fmt.Fprint(w, `{"title":"It is slow","body":"`+"```sh\\ntouch evil\\n```"+`"}`)
			return
		}
		var doc struct{ Title, Head, Base string }
		if err := json.NewDecoder(r.Body).Decode(&doc); err != nil {
			t.Error(err)
		}
		opened <- strings.Join([]string{r.Method, r.URL.Path, doc.Title, doc.Head, doc.Base}, " ")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"html_url":"https://forge.example.org/team/project/pulls/8"}`)
	})
	h.Run("", "cove", "connector", "put", "forge-api", "--upstream", s.URL+"/api/v1", "--header", "Authorization: token {secret}", "--secret", "forge")
	h.Run("", "cove", "connector", "put", "forge", "--upstream", s.URL, "--git", "--header", "Authorization: Basic {basic:robot}", "--forge", "gitea=forge-api")
	h.Write("asks.md", "# Ask for it\n```sh\necho asked >asked; if curl -sf http://forge-api.connect.internal/user; then exit 9; fi\n```\n")
	h.Run("", "cove", "run", "--agent", "shell", "--repo", url, "--issue", "12", "--publish", "pull_request", "--rm", "asks.md")
	if jobs, err = h.Client().Jobs(t.Context()); err != nil || len(jobs) != 2 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	asks := jobs[0].ID
	if p := published(asks); p.State != cove.PublishDone || p.URL != "https://forge.example.org/team/project/pulls/8" {
		t.Errorf("a pull request: %+v", p)
	} else if list := s.In("team/project.git", "ls-tree", "--name-only", "cove/"+asks); strings.Contains(list, "evil") || !strings.Contains(list, "asked") {
		t.Errorf("an issue's text was carried out, or the plan was not: %s", list)
	} else if got, want := <-opened, "POST /api/v1/repos/team/project/pulls Ask for it cove/"+asks+" main"; got != want {
		t.Errorf("the forge was asked %q, want %q", got, want)
	}
	h.Write("risky.md", "## Risky\n```sh\nmkdir -p .github/workflows; echo on: push >.github/workflows/x.yml\n```\n")
	h.Run("", "cove", "run", "--agent", "shell", "--repo", url, "--publish", "branch", "--rm", "risky.md")
	if jobs, err = h.Client().Jobs(t.Context()); err != nil || len(jobs) != 3 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	if p := published(jobs[0].ID); p.State != cove.PublishHeld || len(p.Risky) != 1 || p.Risky[0].Path != ".github/workflows/x.yml" || p.Commit != "" {
		t.Errorf("a file that runs on a server: %+v", p)
	}
	if out := h.Run("", "cove", "job", "show", jobs[0].ID); !strings.Contains(out, ".github/workflows/x.yml") {
		t.Errorf("shown: %s", out)
	}
	if out, code := h.Try("", "cove", "job", "publish", jobs[0].ID); code != 4 || !strings.Contains(out, ".github/workflows/x.yml") {
		t.Errorf("published again, with that file: %d, %s", code, out)
	}
	if out := h.Run("", "cove", "job", "publish", asks); !strings.Contains(out, "pushed https://forge.example.org/team/project/pulls/8") {
		t.Errorf("published again, as it is: %s", out)
	}
	if refs := s.In("team/project.git", "for-each-ref", "--format=%(refname)"); !strings.Contains(refs, "refs/heads/cove/"+job.ID) || !strings.Contains(refs, "refs/heads/cove/"+asks) || strings.Count(refs, "\n") != 3 || !strings.Contains(refs, "refs/heads/main\nrefs/heads/release/2") {
		t.Errorf("the server has %s", refs)
	}
	if out := h.Run("", "cove", "list", "--json"); strings.Contains(out, "install-") {
		t.Errorf("there are %s", out)
	}
	if out, _ := h.Try("", "cove", "exec", "-s", job.Sprite, "--", "sh", "-c", "grep -rl "+string(forgeToken)[:20]+" /home /tmp /etc /run /.sprite /proc/[0-9]*/environ 2>/dev/null"); strings.TrimSpace(out) != "" {
		t.Errorf("the token is in %s", out)
	}
	if out, code := h.Try("", "cove", "run", "--agent", "shell", "--repo", url, "--branch", "releases/2", plan, "--rm"); code == 0 || !strings.Contains(out, "did you mean release/2?") {
		t.Errorf("a branch that is not there: %d, %s", code, out)
	}
}
