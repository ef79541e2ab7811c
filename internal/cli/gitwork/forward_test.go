package gitwork_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// delivered is a repository into which a job's commits have been imported.
func delivered(t *testing.T) (r repo, base, head string) {
	t.Helper()
	r = newRepo(t)
	r.write("gone", "soon gone\n")
	r.write("kind", "a file\n")
	r.write("folder/in", "x\n")
	base = r.commit("base")
	a := r.agent()
	a.write("README", "hello\nfrom the job\n"+strings.Repeat("more\n", 1000))
	a.write("deep/er/new", "new\n")
	a.git("rm", "-q", "gone", "kind", "-r", "folder")
	a.write("folder", "now a file\n")
	if err := os.Symlink("README", filepath.Join(a.dir, "kind")); err != nil {
		t.Fatal(err)
	}
	head = a.commit("the job's work")
	path, want := a.bundle(base)
	if err := r.imports(path, want); err != nil {
		t.Fatal(err)
	}
	return r, base, head
}

func refusal(t *testing.T, err error, code string) *gitwork.RefusedError {
	t.Helper()
	e, ok := errors.AsType[*gitwork.RefusedError](err)
	if !ok || e.Code != code || e.ExitCode() != 4 || e.Ref != "refs/cove/"+job+"/head" {
		t.Fatalf("got %#v, want a refusal %s", err, code)
	}
	return e
}

// at checks that branch, index and files are all as in commit.
func (r repo) at(commit string) {
	r.t.Helper()
	if got := r.git("rev-parse", "main"); got != commit {
		r.t.Errorf("main is at %s, want %s", got, commit)
	}
	if got := r.git("status", "--porcelain"); got != "" {
		r.t.Errorf("not clean:\n%s", got)
	}
	r.git("diff", "--exit-code", commit)
	r.git("diff", "--exit-code", "--cached", commit)
	for _, name := range []string{"index.lock", "cove-index", "cove-index.lock", "cove-index.mark", "cove-index.was", "cove/journal"} {
		if _, err := os.Lstat(filepath.Join(r.dir, ".git", name)); err == nil {
			r.t.Errorf("%s is left", name)
		}
	}
}

func TestFastForwardCheckedOut(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	r.write("untouched", "mine\n")
	r.write("src/a.txt", "mine too\n")
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	if r.read("untouched") != "mine\n" || r.read("src/a.txt") != "mine too\n" {
		t.Error("the person's changes are gone")
	}
	r.git("checkout", "-q", "src/a.txt")
	if err := os.Remove(filepath.Join(r.dir, "untouched")); err != nil {
		t.Fatal(err)
	}
	r.at(head)
	if got := r.git("reflog", "-1", "--format=%gs", "main"); !strings.Contains(got, "cove pull "+job) {
		t.Errorf("reflog says %q", got)
	}
	if err := r.forward(base, head); err != nil { // again
		t.Error(err)
	}
}

func TestFastForwardElsewhere(t *testing.T) {
	home(t, "")
	t.Run("nowhere checked out", func(t *testing.T) {
		r, base, head := delivered(t)
		r.git("switch", "-q", "-c", "other")
		if err := r.forward(base, head); err != nil {
			t.Fatal(err)
		}
		if r.git("rev-parse", "main") != head || r.git("rev-parse", "HEAD") != base || r.git("status", "--porcelain") != "" {
			t.Error("the wrong branch was moved")
		}
	})
	t.Run("in another work tree", func(t *testing.T) {
		r, base, head := delivered(t)
		r.git("switch", "-q", "-c", "other")
		linked := filepath.Join(t.TempDir(), "linked tree")
		r.git("worktree", "add", "-q", linked, "main")
		if err := r.forward(base, head); err != nil {
			t.Fatal(err)
		}
		l := repo{t, linked, r.home}
		if l.git("rev-parse", "HEAD") != head || l.git("status", "--porcelain") != "" || r.git("rev-parse", "HEAD") != base || r.git("status", "--porcelain") != "" {
			t.Error("the work trees are not as they should be")
		}
	})
}

func TestFastForwardRefuses(t *testing.T) {
	home(t, "[user]\n\tname = T\n\temail = t@example.com\n")
	put := func(name string) func(repo) {
		return func(r repo) { r.write(name, "mine\n") }
	}
	for _, test := range []struct {
		name  string
		make  func(repo)
		code  string
		paths []string
	}{
		{"changed file", put("README"), "overlap", []string{"README"}},
		{"staged file", func(r repo) { r.write("README", "mine\n"); r.git("add", "README") }, "overlap", []string{"README"}},
		{"deleted here too", func(r repo) { r.write("gone", "but edited\n") }, "overlap", []string{"gone"}},
		{"untracked file", put("deep/er/new"), "overlap", []string{"deep/er/new"}},
		{"untracked file for a folder", put("deep"), "overlap", []string{"deep"}},
		{"ignored file", func(r repo) { r.write(".git/info/exclude", "new\n"); r.write("deep/er/new", "mine\n") }, "overlap", []string{"deep/er/new"}},
		{"untracked in a folder that goes", put("folder/mine"), "overlap", []string{"folder/mine"}},
		{"ignored in a folder that goes", func(r repo) { r.write(".git/info/exclude", "mine\n"); r.write("folder/mine", "m\n") }, "overlap", []string{"folder/mine"}},
		{"merge in progress", func(r repo) { r.write(".git/MERGE_HEAD", r.git("rev-parse", "HEAD")+"\n") }, "in_progress", nil},
		{"rebase in progress", func(r repo) {
			r.git("checkout", "-q", "--detach")
			r.write(".git/rebase-merge/head-name", "refs/heads/main\n")
		}, "in_progress", nil},
		{"index locked", func(r repo) { r.write(".git/index.lock", "") }, "locked", nil},
		{"branch gone", func(r repo) { r.git("switch", "-q", "-c", "other"); r.git("branch", "-D", "main") }, "branch_gone", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, base, head := delivered(t)
			test.make(r)
			before := r.git("for-each-ref") + r.git("status", "--porcelain", "--ignored")
			e := refusal(t, r.forward(base, head), test.code)
			if !slices.Equal(e.Paths, test.paths) || len(e.Next) == 0 {
				t.Errorf("got paths %q and commands %q", e.Paths, e.Next)
			}
			if after := r.git("for-each-ref") + r.git("status", "--porcelain", "--ignored"); after != before {
				t.Errorf("changed:\n%s\n---\n%s", before, after)
			}
			if _, err := os.Stat(filepath.Join(r.dir, ".git/cove/journal")); err == nil {
				t.Error("a journal is left")
			}
			if test.code == "overlap" {
				r.makesWay(e.Next[0], base, head)
			}
		})
	}
}

// makesWay runs the command of a refusal. The branch moves, and the files that were in the
// way are still in the work tree.
func (r repo) makesWay(command, base, head string) {
	r.t.Helper()
	sh := func(text string) string {
		cmd := exec.Command("sh", "-c", text)
		cmd.Dir = r.dir
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "CONFLICT") {
			r.t.Errorf("%s: %v, %s", text, err, out)
		}
		return string(out)
	}
	before, after, ok := strings.Cut(command, "cove pull "+job)
	if !ok {
		r.t.Fatalf("no command that tries again: %s", command)
	}
	sh(strings.TrimSuffix(before, " && "))
	if err := r.forward(base, head); err != nil {
		r.t.Errorf("after %q: %v", before, err)
	}
	said := ""
	if last := strings.TrimPrefix(after, " && "); last != "" {
		said = sh(last)
	}
	if out := sh("git grep --untracked --no-exclude-standard -h -E '^(mine|m|but edited)$'"); out == "" {
		r.t.Errorf("what was in the way is gone: %s\n%s", command, said)
	}
}

// A branch that has gone on is not moved. The refusal says what a merge would do.
func TestMovedOn(t *testing.T) {
	home(t, "")
	for _, test := range []struct{ name, file, conflict string }{
		{"mergeable", "src/a.txt", ""},
		{"conflict", "README", "README"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, base, head := delivered(t)
			r.write(test.file, "moved on\n")
			moved := r.commit("mine")
			e := refusal(t, r.forward(base, head), "branch_moved")
			if e.Merges != (test.conflict == "") || strings.Join(e.Conflicts, " ") != test.conflict {
				t.Errorf("preview: merges %v, conflicts %q", e.Merges, e.Conflicts)
			}
			if got := r.git("rev-parse", "main"); got != moved {
				t.Errorf("main was moved to %s", got)
			}
			next := "cove job merge " + job
			if test.conflict != "" {
				next = "git switch main && git merge refs/cove/" + job + "/head"
			}
			if len(e.Next) != 3 || e.Next[0] != next || !strings.Contains(e.Error(), "a merge would have") {
				t.Errorf("says %v, and to type %q", e, e.Next)
			}
		})
	}
}

// If a branch has moved, the commands that the refusal names hold risky changes, too. So these
// commands accept the changes, or the command to look at the changes comes first.
func TestMovedOnRisky(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	r.write("src/a.txt", "moved on\n")
	r.commit("mine")
	g := r.open()
	lock, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	ways := []string{"cove job merge " + job + " --accept-risky", "cove job rebase " + job + " --accept-risky", "git branch cove-" + job + " refs/cove/" + job + "/head"}
	hold := func(risks ...gitwork.Risk) func(context.Context, string, string) ([]gitwork.Risk, error) {
		return func(context.Context, string, string) ([]gitwork.Risk, error) { return risks, nil }
	}
	for _, test := range []struct {
		f    gitwork.Forward
		want []string
	}{
		{gitwork.Forward{Again: "cove pull " + job + " --accept-risky"}, ways},
		{gitwork.Forward{Hold: hold(gitwork.Risk{Path: "Makefile", Why: "it runs"})}, append([]string{"cove job diff " + job + " -- Makefile"}, ways...)},
		{gitwork.Forward{Hold: hold()}, []string{"cove job merge " + job, "cove job rebase " + job, ways[2]}},
	} {
		f := test.f
		f.Job, f.Branch, f.Base, f.Head = job, "main", base, head
		_, err := g.FastForward(t.Context(), lock, f)
		if e := refusal(t, err, "branch_moved"); !slices.Equal(e.Next, test.want) {
			t.Errorf("to type: %q, want %q", e.Next, test.want)
		}
	}
}

// TestMovedMeanwhile: another git commits or switches branches after the fast-forward has read
// the branch. If the job's commits no longer fit, nothing of them is in the work tree. Git holds
// no index.lock while it moves a branch: a commit that began before can move it at any step.
func TestMovedMeanwhile(t *testing.T) {
	home(t, "")
	commit := func(r repo) {
		r.write("src/a.txt", "moved on\n")
		r.commit("mine")
	}
	late := func(r repo) { // the end of a git commit that wrote the index before
		r.git("update-ref", "refs/heads/main", r.git("commit-tree", "-p", "main", "-m", "mine", "main^{tree}"))
	}
	for _, test := range []struct {
		name, step string
		other      bool // another branch is checked out before
		do         func(repo)
		code       string // of the refusal; empty: the branch is moved
	}{
		{"commit", "lock", false, commit, "branch_moved"},
		{"commit that had the index before", "files", false, late, "branch_moved"},
		{"commit at the end", "ref", false, late, "branch_moved"},
		{"commit elsewhere", "ref", true, late, "branch_moved"},
		{"switch", "lock", false, func(r repo) { r.git("switch", "-q", "other") }, ""},
		{"detach", "lock", false, func(r repo) { r.git("switch", "-q", "--detach", "other") }, ""},
		{"merge", "lock", false, func(r repo) { r.write(".git/MERGE_HEAD", r.git("rev-parse", "other")+"\n") }, "in_progress"},
		{"deleted", "lock", false, func(r repo) { r.git("switch", "-q", "other"); r.git("branch", "-q", "-D", "main") }, "branch_gone"},
		{"switch that had the index before", "files", false, func(r repo) { r.git("symbolic-ref", "HEAD", "refs/heads/same") }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, base, head := delivered(t)
			r.git("branch", "same")
			r.git("switch", "-q", "-c", "other")
			r.write("theirs", "x\n")
			r.commit("other")
			if !test.other {
				r.git("switch", "-q", "main")
			}
			g := r.open()
			done := false
			g.OnStep(func(step string) {
				if step == test.step && !done {
					done = true
					test.do(r)
				}
			})
			lock, err := g.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Unlock()
			_, err = g.FastForward(t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head})
			if !done {
				t.Fatal("the step was not reached")
			}
			if test.code != "" {
				_ = refusal(t, err, test.code)
			} else if err != nil {
				t.Fatal(err)
			} else if got := r.git("rev-parse", "main"); got != head {
				t.Errorf("main is at %s, want %s", got, head)
			}
			if got := r.git("status", "--porcelain"); got != "" {
				t.Errorf("not clean:\n%s", got)
			}
			for _, name := range []string{"index.lock", "cove-index", "cove-index.was", "cove/journal"} {
				if _, err := os.Lstat(filepath.Join(r.dir, ".git", name)); err == nil {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

// TestIgnoredMeanwhile: a build makes an ignored file after the pull has looked for files in the
// way. Git would write over it.
func TestIgnoredMeanwhile(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	r.write(".git/info/exclude", "new\n")
	g := r.open()
	g.OnStep(func(step string) {
		if step == "files" {
			r.write("deep/er/new", "mine\n")
		}
	})
	lock, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	_, err = g.FastForward(t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head})
	if e := refusal(t, err, "overlap"); !slices.Equal(e.Paths, []string{"deep/er/new"}) {
		t.Errorf("in the way: %q", e.Paths)
	}
	if got := r.read("deep/er/new"); got != "mine\n" {
		t.Errorf("the file says %q", got)
	}
	r.at(base)
}

// TestMovedAfterDeath: a commit that had begun before moves the branch after the death of a
// pull. The next pull takes the dead one's files away again.
func TestMovedAfterDeath(t *testing.T) {
	home(t, "")
	for _, step := range []string{"amid", "index", "ref"} {
		t.Run(step, func(t *testing.T) {
			r, base, head := delivered(t)
			killed(t, r, base, head, step)
			moved := r.git("commit-tree", "-p", "main", "-m", "mine", "main^{tree}")
			r.git("update-ref", "refs/heads/main", moved)
			_ = refusal(t, r.forward(base, head), "branch_moved")
			r.at(moved)
		})
	}
}

// TestSwitchedAfterDeath: a recovery does not leave the job's files on a branch that was checked
// out meanwhile.
func TestSwitchedAfterDeath(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	killed(t, r, base, head, "ref")
	r.git("branch", "other", base)
	r.git("symbolic-ref", "HEAD", "refs/heads/other") // as git switch --create does, which takes no lock
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	r.git("symbolic-ref", "HEAD", "refs/heads/main")
	if got := r.git("rev-parse", "main"); got != head {
		t.Errorf("main is at %s, want %s", got, head)
	}
	r.git("symbolic-ref", "HEAD", "refs/heads/other")
	if got := r.git("status", "--porcelain"); got != "" {
		t.Errorf("not clean:\n%s", got)
	}
}

// TestIndexNameTaken: an earlier cove that ended a pull may have left the other name of the index.
func TestIndexNameTaken(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	r.write(".git/cove-index.was", "old")
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	r.at(head)
}

var steps = []string{"journal", "lock", "files", "index", "ref", "unlock"}

// The process is killed before each step, and in the middle of changing files. The
// next pull completes or undoes the fast-forward, and no change of the person's is lost.
func TestKilledFastForward(t *testing.T) {
	if step := os.Getenv("TEST_KILL_AT"); step != "" {
		killAt(t, step)
	}
	home(t, "")
	for _, step := range append(slices.Clone(steps), "amid", "amid, then edited", "recovery") {
		t.Run(step, func(t *testing.T) {
			r, base, head := delivered(t)
			r.write("untouched", "mine\n")
			kill := strings.TrimSuffix(step, ", then edited")
			killed(t, r, base, head, kill)
			if step == "recovery" { // killed once more, while it is put back
				killed(t, r, base, head, "files")
			}
			if step == "amid, then edited" {
				r.write("README", "edited after the crash\n")
				e := refusal(t, r.forward(base, head), "overlap")
				if !slices.Equal(e.Paths, []string{"README"}) || r.read("README") != "edited after the crash\n" {
					t.Errorf("in the way: %q, README: %q", e.Paths, r.read("README"))
				}
				r.git("checkout", "-q", "README")
			}
			g := r.open()
			lock, err := g.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			said, err := g.Recover(t.Context(), lock)
			lock.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			if step != "journal" && step != "amid, then edited" && said == "" {
				t.Error("nothing was recovered")
			}
			if r.read("untouched") != "mine\n" {
				t.Error("the person's file is gone")
			}
			if err := os.Remove(filepath.Join(r.dir, "untouched")); err != nil {
				t.Fatal(err)
			}
			want := base
			if step == "ref" || step == "unlock" {
				want = head
			}
			r.at(want)
			if err := r.forward(base, head); err != nil {
				t.Fatal(err)
			}
			r.at(head)
		})
	}
}

// killed runs a fast-forward in a process of its own, which dies at the step.
func killed(t *testing.T, r repo, base, head, step string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledFastForward$")
	cmd.Env = append(env(r.home), "TEST_KILL_AT="+step, "TEST_REPO="+r.dir, "TEST_BASE="+base, "TEST_HEAD="+head, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("not killed: %v\n%s", err, out)
	}
}

func killAt(t *testing.T, step string) {
	r := repo{t, os.Getenv("TEST_REPO"), os.Getenv("HOME")}
	g := r.open()
	die := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }
	at := step
	if step == "amid" || step == "recovery" {
		at = "files"
	}
	g.OnStep(func(s string) {
		if s != at {
			return
		}
		if at != step { // as git leaves things when it is killed while it writes
			for _, name := range []string{"gone", "kind", "README"} {
				if err := os.Remove(filepath.Join(r.dir, name)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			r.write("README", "hello\nfrom the job\nmore\nmo")
			r.write("deep/er/new", "")
			r.write(".git/cove-index", "DIRC")
			r.write(".git/cove-index.lock", "DIR")
		}
		die()
	})
	lock, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Recover(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	_, err = g.FastForward(t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: os.Getenv("TEST_BASE"), Head: os.Getenv("TEST_HEAD")})
	t.Fatalf("came to the end: %v", err)
}

// TestIdenticalUntracked: an untracked file that equals the new one is not in the way. It stays
// as it is, and is then tracked.
func TestIdenticalUntracked(t *testing.T) {
	home(t, "")
	r, base, head := delivered(t)
	r.write("deep/er/new", "new\n")
	name := filepath.Join(r.dir, "deep/er/new")
	was, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o755); err != nil { // as a program it is another file
		t.Fatal(err)
	}
	_ = refusal(t, r.forward(base, head), "overlap")
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	r.at(head)
	if is, err := os.Stat(name); err != nil || !os.SameFile(was, is) {
		t.Errorf("it is another file: %v", err)
	}
}

// TestKilledOverIdentical: killed at any step, the person's untracked file stays, though the
// rest of the files of the new commit are taken away again.
func TestKilledOverIdentical(t *testing.T) {
	home(t, "")
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			r, base, head := delivered(t)
			r.write("deep/er/new", "new\n")
			killed(t, r, base, head, step)
			g := r.open()
			lock, err := g.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = g.Recover(t.Context(), lock)
			lock.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			if got := r.read("deep/er/new"); got != "new\n" {
				t.Errorf("the person's file says %q", got)
			}
			if step != "ref" && step != "unlock" {
				if got := r.git("status", "--porcelain"); got != "?? deep/" {
					t.Errorf("not as before:\n%s", got)
				}
			}
			if err := r.forward(base, head); err != nil {
				t.Fatal(err)
			}
			r.at(head)
		})
	}
}

// TestPullWithoutBrokenModules: a .gitmodules that git can't read does not keep the commits
// out. It is held, with the reason. If the person accepts it, they can pull a commit that mends it.
func TestPullWithoutBrokenModules(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	a := r.agent()
	a.write(".gitmodules", "[submodule \"x\"]\n\tpath = x\n<<<<<<< ours\n")
	a.write("work", "done\n")
	a.git("add", "-A")
	a.git("update-index", "--add", "--cacheinfo", "160000,"+base+",x")
	a.git("commit", "-q", "-m", "broken") // which needs no .gitmodules
	head := a.git("rev-parse", "HEAD")
	a.write(".gitmodules", "")
	a.git("add", ".gitmodules")
	a.git("commit", "-q", "-m", "mended")
	next := a.git("rev-parse", "HEAD")
	path, want := a.bundle(base)
	if err := r.imports(path, want); err != nil {
		t.Fatal(err)
	}
	summary, err := r.open().Summary(t.Context(), base, head)
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for _, risk := range summary.Risky {
		if risk.Path == ".gitmodules" {
			said = risk.Why
		}
	}
	if !strings.Contains(said, "git can't read it") {
		t.Errorf("it says %q of .gitmodules", said)
	}
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	if r.read("work") != "done\n" || r.git("rev-parse", "main") != head {
		t.Error("the work did not come")
	}
	if err := r.forward(base, next); err != nil {
		t.Fatal(err)
	}
	r.at(next)
}
