package gitwork_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/test/executable"
)

// movedOn is a repository whose branch has gone on while a job made three commits.
func movedOn(t *testing.T) (r repo, base string, commits []string) {
	t.Helper()
	r = newRepo(t)
	base = r.git("rev-parse", "HEAD")
	a := r.agent()
	a.write(".gitattributes", "* merge=union text eol=crlf filter=evil\n")
	a.write("one", "1\n")
	commits = append(commits, a.commit("one"))
	a.write("both", "same\n")
	a.write("README", "hello\nfrom the job\n")
	a.git("add", "-A")
	a.git("commit", "-q", "--author=Agent <agent@example.com>", "-m", "# two\n\nbody")
	commits = append(commits, a.git("rev-parse", "HEAD"))
	a.write("three", "3\n")
	commits = append(commits, a.commit("three"))
	path, want := a.bundle(base)
	if err := r.imports(path, want); err != nil {
		t.Fatal(err)
	}
	r.write("mine", "mine\n")
	r.commit("mine")
	return r, base, commits
}

func (r repo) integrate(base, head string, how gitwork.How, commits ...string) (string, error) {
	r.t.Helper()
	g := r.open()
	lock, err := g.Lock(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer lock.Unlock()
	return g.Integrate(r.t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head}, how, commits)
}

// clean checks that an integration has left no temporary files and no changes in the tree.
func (r repo) clean() {
	r.t.Helper()
	if got := r.git("status", "--porcelain") + r.git("fsck", "--no-dangling"); got != "" {
		r.t.Errorf("got %s", got)
	}
	entries, err := os.ReadDir(filepath.Join(r.dir, ".git/cove"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && e.Name() != "tmp" {
			r.t.Errorf("%s is left", e.Name())
		}
	}
}

func TestIntegrate(t *testing.T) {
	canaries := t.TempDir()
	home(t, "[user]\n\tname = Ada\n\temail = ada@example.com\n[filter \"evil\"]\n\tclean = touch "+filepath.Join(canaries, "ran")+"; cat\n\tsmudge = touch "+filepath.Join(canaries, "ran")+"; cat\n")
	subjects := func(r repo) string { return r.git("log", "--format=%s|%an|%cn", "--first-parent", "main") }
	for _, test := range []struct {
		how   gitwork.How
		names func(commits []string) []string
		want  string
		files []string
	}{
		{gitwork.Merge, nil, "Merge job " + job + "|Ada|Ada\nmine|T|T\nfirst|T|T", []string{"one", "both", "three", "mine"}},
		{gitwork.Rebase, nil, "three|T|Ada\n# two|Agent|Ada\none|T|Ada\nmine|T|T\nfirst|T|T", []string{"one", "both", "three", "mine"}},
		{gitwork.CherryPick, func(c []string) []string { return []string{c[2], c[0]} }, "one|T|Ada\nthree|T|Ada\nmine|T|T\nfirst|T|T", []string{"one", "three", "mine"}},
	} {
		t.Run(string(test.how), func(t *testing.T) {
			r, base, commits := movedOn(t)
			for _, hook := range strings.Fields("pre-merge-commit post-merge post-commit post-checkout post-rewrite prepare-commit-msg commit-msg reference-transaction") {
				script := filepath.Join(r.dir, ".git/hooks", hook)
				executable.Write(t, script, "#!/bin/sh\ntouch "+filepath.Join(canaries, "hook-"+hook)+"\n")
			}
			var names []string
			if test.names != nil {
				names = test.names(commits)
			}
			head, err := r.integrate(base, commits[2], test.how, names...)
			if err != nil {
				t.Fatal(err)
			}
			if got := canariesIn(t, canaries); len(got) > 0 {
				t.Errorf("ran: %v", got)
			}
			if got := subjects(r); got != test.want || r.git("rev-parse", "main") != head {
				t.Errorf("got %s", got)
			}
			for _, name := range test.files {
				if got, want := r.git("cat-file", "-s", "main:"+name), map[string]string{"one": "2", "both": "5", "three": "2", "mine": "5"}[name]; got != want {
					t.Errorf("%s has %s bytes", name, got)
				}
			}
			r.clean()
			again, err := r.integrate(base, commits[2], test.how, names...)
			if err != nil || again != head {
				t.Errorf("again: got %s, %v", again, err)
			}
		})
	}
}

// If there are conflicts, nothing changes. The error has the commands to integrate by hand.
func TestIntegrateConflicts(t *testing.T) {
	home(t, "")
	for _, how := range []gitwork.How{gitwork.Merge, gitwork.Rebase, gitwork.CherryPick} {
		t.Run(string(how), func(t *testing.T) {
			r, base, commits := movedOn(t)
			r.write("README", "hello\nfrom me\n")
			moved := r.commit("in the way")
			before := r.state()
			_, err := r.integrate(base, commits[2], how, commits[1])
			e, ok := errors.AsType[*gitwork.ConflictError](err)
			if !ok || !slices.Equal(e.Paths, []string{"README"}) || e.ExitCode() != 3 || len(e.Next) != 1 || !strings.Contains(e.Next[0], "git "+string(how)) {
				t.Fatalf("got %#v", err)
			}
			if how != gitwork.Merge && e.Commit != commits[1] {
				t.Errorf("stopped at %s", e.Commit)
			}
			if after := r.state(); after != before || r.git("rev-parse", "main") != moved {
				t.Errorf("changed:\n%s\n---\n%s", before, after)
			}
			r.clean()
		})
	}
}

// A commit whose changes the branch has already is skipped. A commit that is not the
// job's is refused. A dirty tree keeps its changes.
func TestIntegrateEdges(t *testing.T) {
	home(t, "")
	r, base, commits := movedOn(t)
	r.git("cherry-pick", "--allow-empty", commits[0])
	r.write("three", "not committed\n")
	e := func() *gitwork.RefusedError {
		_, err := r.integrate(base, commits[2], gitwork.Rebase)
		return refusal(t, err, "overlap")
	}()
	if !slices.Equal(e.Paths, []string{"three"}) || !strings.Contains(e.Next[0], "cove job rebase "+job) || r.read("three") != "not committed\n" {
		t.Errorf("got %+v", e)
	}
	if err := os.Remove(filepath.Join(r.dir, "three")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.integrate(base, commits[2], gitwork.Rebase); err != nil {
		t.Fatal(err)
	}
	if got := r.git("log", "--format=%s", "main"); got != "three\n# two\none\nmine\nfirst" {
		t.Errorf("got %q", got)
	}
	r.clean()
	g := r.open()
	short := commits[1][:8]
	if got, err := g.JobCommits(t.Context(), base, commits[2], []string{short}); err != nil || !slices.Equal(got, commits[1:2]) {
		t.Errorf("%s: got %q, %v", short, got, err)
	}
	for _, name := range []string{base, "main", "HEAD", "--all", "", commits[1][:3]} {
		if got, err := g.JobCommits(t.Context(), base, commits[2], []string{name}); err == nil {
			t.Errorf("%q: got %q", name, got)
		}
	}
}
