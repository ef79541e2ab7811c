package supervise_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/gitserver"
)

// newRemoteJob makes a job that clones a repository of a server.
func newRemoteJob(t *testing.T, script string, files map[string]string) (*job, *gitserver.Server) {
	t.Helper()
	s := gitserver.Start(t, "", "")
	j := newJob(t, script)
	j.spec.Remote = s.Repository("team/project.git", files)
	j.spec.BundleSHA256, j.spec.Branch, j.spec.Base = "", "", ""
	if err := os.Remove(j.spec.Bundle); err != nil {
		t.Fatal(err)
	}
	return j, s
}

// cloned is what a job's log says of its clone.
func cloned(t *testing.T, j *job) cove.JobCloned {
	t.Helper()
	var all []cove.JobCloned
	for _, ev := range j.events() {
		if ev.Type == "cloned" {
			all = append(all, *ev.Cloned)
		}
	}
	if len(all) != 1 {
		t.Fatalf("it is said %d times what was cloned", len(all))
	}
	return all[0]
}

// TestRemote: a job with a URL clones the default branch, and reports its name. Its commits
// are collected from there on, also by a later supervisor.
func TestRemote(t *testing.T) {
	j, s := newRemoteJob(t, `test "$(git status --porcelain)" = ""; echo more >>README; git commit -qam second; cp `+"$COVE_JOB"+`/job.json ./spec`, map[string]string{"README": "hello\n"})
	end := j.run()
	base := s.In("team/project.git", "rev-parse", "main")
	got := cloned(t, j)
	if got.Branch != "main" || got.Base != base || got.Shallow != nil || len(got.RepoID) != 64 {
		t.Errorf("cloned: %+v, want %s of main", got, base)
	}
	if end.Phase != "done" || end.Commits != 1 || end.Leftover == "" {
		t.Fatalf("end: %+v", end)
	}
	var spec cove.JobSpec
	text := s.Git(j.spec.Workdir, "show", end.Leftover+":spec")
	if err := json.Unmarshal([]byte(text), &spec); err != nil || spec.Base != base || spec.Branch != "main" {
		t.Errorf("the job's folder says %s (%v)", text, err)
	}
	s.In("team/project.git", "fetch", "-q", end.Bundle.Path, "refs/cove/abc123/head:refs/heads/came")
	if got := s.In("team/project.git", "log", "--format=%s", "main..came"); got != "second" {
		t.Errorf("collected: %q", got)
	}
	if got := s.Git(j.spec.Workdir, "remote", "get-url", "origin"); got != j.spec.Remote {
		t.Errorf("origin is %q", got)
	}
}

// TestRemoteLacks: the job reports what a clone lacks: submodules, content of Git LFS, and
// commits before a limit of the history.
func TestRemoteLacks(t *testing.T) {
	j, s := newRemoteJob(t, "true", map[string]string{
		"README": "hello\n", ".gitattributes": "*.bin filter=lfs\n",
		"a.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 5\n",
	})
	work := t.TempDir()
	s.Git(work, "clone", "-q", j.spec.Remote, ".")
	s.Git(work, "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("b", 40)+",vendor/lib")
	s.Git(work, "commit", "-q", "-m", "second")
	s.Git(work, "push", "-q", "origin", "main:refs/heads/topic")
	j.spec.Branch, j.spec.Depth = "topic", 1
	j.run()
	tip := s.In("team/project.git", "rev-parse", "topic")
	if got := cloned(t, j); got.Base != tip || got.Branch != "topic" || got.RepoID != "" || !slices.Equal(got.Shallow, []string{tip}) {
		t.Errorf("cloned: %+v", got)
	}
	_, last := turns(t, j)
	warning := last[cove.StepClone].Warning
	for _, want := range []string{"cut off after 1 commit", "submodules are not cloned: vendor/lib", "Git LFS", "a.bin"} {
		if !strings.Contains(warning, want) {
			t.Errorf("the warning %q does not have %q", warning, want)
		}
	}
}

// TestRemoteRefused: if the branch is missing, or the repository is empty or can't be read,
// the job ends before anything is cloned. Each has an error of its own.
func TestRemoteRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*job, *gitserver.Server)
		want   []string
	}{
		"no such branch": {func(j *job, s *gitserver.Server) {
			s.In("team/project.git", "branch", "release/2.0", "main")
			s.In("team/project.git", "branch", "topics", "main")
			j.spec.Branch = "topic"
		}, []string{`there is no branch "topic"`, "did you mean topics?"}},
		"an option": {func(j *job, _ *gitserver.Server) { j.spec.Branch = "--upload-pack=touch${IFS}x" }, []string{"there is no branch", "--upload-pack"}},
		"empty": {func(j *job, s *gitserver.Server) {
			s.In("team/project.git", "update-ref", "-d", "refs/heads/main")
		}, []string{"the repository is empty"}},
		"no default": {func(j *job, s *gitserver.Server) {
			s.In("team/project.git", "branch", "-m", "main", "other")
			s.In("team/project.git", "symbolic-ref", "HEAD", "refs/heads/gone")
		}, []string{"name one: other"}},
		"not there": {func(j *job, _ *gitserver.Server) { j.spec.Remote += "x" }, []string{"can't be read", "not found"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			j, s := newRemoteJob(t, "true", map[string]string{"README": "hello\n"})
			test.change(j, s)
			end := j.run()
			if end.Phase != "prepare" {
				t.Fatalf("end: %+v", end)
			}
			for _, want := range test.want {
				if !strings.Contains(end.Reason, want) {
					t.Errorf("the reason %q does not have %q", end.Reason, want)
				}
			}
			if _, err := os.Stat(filepath.Join(j.spec.Workdir, ".git")); !os.IsNotExist(err) {
				t.Errorf("something was cloned: %v", err)
			}
		})
	}
}
