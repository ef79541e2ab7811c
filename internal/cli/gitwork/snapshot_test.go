package gitwork_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// dirtied is a repository with uncommitted changes. A job has worked from their snapshot.
func dirtied(t *testing.T) (r repo, old, base, head string) {
	t.Helper()
	r = newRepo(t)
	r.write("gone", "soon gone\n")
	r.write("kind", "a file\n")
	r.write(".gitignore", "*.log\n")
	old = r.commit("old")
	r.write("README", "hello\nmine\n")
	r.write("staged", "staged\n")
	r.write("src/a.txt", "staged, too\n")
	r.git("add", "staged", "src/a.txt")
	r.write("kind", "a changed file\n")
	r.write("untracked/file", "x\n")
	if err := os.Remove(filepath.Join(r.dir, "gone")); err != nil {
		t.Fatal(err)
	}
	base, err := r.open().Snapshot(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	r.git("update-ref", gitwork.JobRef(job, "base"), base)
	dir := filepath.Join(t.TempDir(), "agent")
	r.git("clone", "-q", "--no-local", "--no-checkout", r.dir, dir)
	a := repo{t, dir, r.home}
	a.git("fetch", "-q", r.dir, gitwork.JobRef(job, "base"))
	a.git("checkout", "-q", "-B", "main", base)
	a.write("README", "hello\nfrom the job\n"+strings.Repeat("more\n", 1000))
	a.write("deep/er/new", "new\n")
	a.write("new.log", "ignored there\n")
	a.git("rm", "-q", "kind", "untracked/file")
	a.git("add", "-f", "new.log")
	head = a.commit("the job's work")
	path, want := a.bundle(base)
	if err := r.imports(path, want); err != nil {
		t.Fatal(err)
	}
	return r, old, base, head
}

// TestStagedMeanwhile: the person stages a part of a file after the pull has looked at the
// index. The snapshot does not have that, so it stays, and the pull is refused.
func TestStagedMeanwhile(t *testing.T) {
	home(t, "")
	r, old, base, head := dirtied(t)
	g := r.open()
	g.OnStep(func(step string) {
		if step == "lock" {
			r.git("update-index", "--cacheinfo", "100644,"+r.pipe("hello\na part of mine\n", "hash-object", "-w", "--stdin")+",README")
		}
	})
	lock, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	_, err = g.FastForward(t.Context(), lock, gitwork.Forward{Job: job, Branch: "main", Base: base, Head: head})
	_ = refusal(t, err, "overlap")
	if got := r.git("show", ":README"); got != "hello\na part of mine" {
		t.Errorf("the index has %q", got)
	}
	if got := r.git("rev-parse", "main"); got != old {
		t.Errorf("main is at %s, want %s", got, old)
	}
}

// The commits of a job that began with uncommitted changes go on top of just these.
func TestForwardOverSnapshot(t *testing.T) {
	home(t, "")
	r, _, base, head := dirtied(t)
	if err := r.forward(base, head); err != nil {
		t.Fatal(err)
	}
	r.at(head)
	if got := r.git("show", "HEAD^:staged"); got != "staged" || r.git("rev-parse", "HEAD^") != base {
		t.Errorf("the snapshot is not in between: %q", got)
	}
}

// If a change would be lost, nothing is done.
func TestForwardOverSnapshotRefuses(t *testing.T) {
	home(t, "")
	for name, change := range map[string]func(r repo){
		"edited since":    func(r repo) { r.write("README", "hello\nmine\nand more\n") },
		"deleted since":   func(r repo) { _ = os.Remove(filepath.Join(r.dir, "staged")) },
		"new since":       func(r repo) { r.write("src/new", "x\n") },
		"emptied since":   func(r repo) { r.write("README", "") },
		"staged only":     func(r repo) { r.write("staged", "lost?\n"); r.git("add", "staged"); r.write("staged", "staged\n") },
		"ignored, theirs": func(r repo) { r.write("new.log", "mine\n") },
	} {
		t.Run(name, func(t *testing.T) {
			r, old, base, head := dirtied(t)
			change(r)
			before := r.git("status", "--porcelain", "--ignored") + r.git("diff") + r.git("diff", "--cached")
			if e := refusal(t, r.forward(base, head), "overlap"); len(e.Paths) == 0 {
				t.Error("no paths are named")
			}
			if after := r.git("status", "--porcelain", "--ignored") + r.git("diff") + r.git("diff", "--cached"); after != before || r.git("rev-parse", "main") != old {
				t.Errorf("changed:\n%s\n---\n%s", before, after)
			}
			if _, err := os.Stat(filepath.Join(r.dir, ".git/cove/journal")); err == nil {
				t.Error("a journal is left")
			}
		})
	}
}

// The process is killed at each step. Afterwards, either all is as it was, with index and
// uncommitted changes, or the fast-forward is complete.
func TestKilledForwardOverSnapshot(t *testing.T) {
	home(t, "")
	for _, step := range append(slices.Clone(steps), "amid", "recovery") {
		t.Run(step, func(t *testing.T) {
			r, old, base, head := dirtied(t)
			before := r.git("status", "--porcelain") + r.git("diff") + r.git("diff", "--cached")
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
			if step == "ref" || step == "unlock" {
				r.at(head)
				return
			}
			if after := r.git("status", "--porcelain") + r.git("diff") + r.git("diff", "--cached"); after != before || r.git("rev-parse", "main") != old {
				t.Errorf("changed:\n%s\n---\n%s", before, after)
			}
			if err := r.forward(base, head); err != nil {
				t.Fatal(err)
			}
			r.at(head)
		})
	}
}
