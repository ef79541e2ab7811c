package gitwork_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// sent bundles what goes to a job, and returns the file.
func (r repo) sent(out gitwork.Outgoing) (path string, b gitwork.Bundle) {
	r.t.Helper()
	var buf bytes.Buffer
	b, err := r.open().Bundle(r.t.Context(), &buf, out)
	if err != nil {
		r.t.Fatal(err)
	}
	sum := sha256.Sum256(buf.Bytes())
	if b.Size != int64(buf.Len()) || b.SHA256 != hex.EncodeToString(sum[:]) {
		r.t.Errorf("got %+v for %d bytes with %x", b, buf.Len(), sum)
	}
	path = filepath.Join(r.t.TempDir(), "out.bundle")
	write(r.t, path, buf.String())
	return path, b
}

// received makes a repository of a bundle, as a sprite does, and checks it.
func (r repo) received(path string, shallow []string, args ...string) repo {
	r.t.Helper()
	clone := repo{r.t, r.t.TempDir(), r.home}
	clone.git(append([]string{"init", "-q", "-b", "unborn"}, args...)...)
	if len(shallow) > 0 {
		write(r.t, filepath.Join(clone.dir, ".git/shallow"), strings.Join(shallow, "\n")+"\n")
	}
	clone.git("fetch", "-q", path, "refs/cove/base:refs/heads/main", "refs/cove/sub/*:refs/cove/sub/*")
	if out := clone.git("fsck", "--full", "--strict", "--no-dangling"); out != "" {
		r.t.Errorf("fsck: %s", out)
	}
	return clone
}

func (r repo) cut(base string, depth int) []string {
	r.t.Helper()
	cuts, err := r.open().Cut(r.t.Context(), base, depth, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return cuts
}

func TestBundle(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	r.git("branch", "other")
	r.write("b", "b\n")
	head := r.commit("second")
	refs := r.git("for-each-ref")
	path, b := r.sent(gitwork.Outgoing{Base: head})
	if r.git("for-each-ref") != refs {
		t.Error("refs changed")
	}
	if got := r.git("bundle", "list-heads", path); got != head+" refs/cove/base" {
		t.Errorf("refs of the bundle: %q", got)
	}
	clone := r.received(path, nil)
	if got := clone.git("rev-list", "--count", "main"); got != "2" {
		t.Errorf("the clone has %s commits", got)
	}
	// Commits that the other side has are left out, even if it has all. A commit in Have
	// that is not here does not count.
	nonsense := []string{strings.Repeat("1", 40), "--all", "", head[:10], r.git("rev-parse", "HEAD^{tree}")}
	if cuts := r.cut(head, 0); cuts != nil {
		t.Errorf("cut off at %q", cuts)
	}
	same, _ := r.sent(gitwork.Outgoing{Base: head, Have: append(nonsense, head)})
	clone.git("fetch", "-q", same, "refs/cove/base:refs/heads/same")
	if got := clone.git("rev-parse", "same"); got != head {
		t.Errorf("nothing new: got %s", got)
	}
	r.write("c", "c\n")
	next := r.commit("third")
	more, small := r.sent(gitwork.Outgoing{Base: next, Have: append(nonsense, head)})
	clone.git("fetch", "-q", more, "refs/cove/base:refs/heads/next")
	if got := clone.git("rev-parse", "next"); got != next || small.Size >= b.Size {
		t.Errorf("one commit more: got %s with %d bytes, the first time %d", got, small.Size, b.Size)
	}
	alone := repo{t, t.TempDir(), r.home}
	alone.git("init", "-q")
	cmd := exec.Command("git", "fetch", "-q", more, "refs/cove/base:x")
	cmd.Dir = alone.dir
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), head) {
		t.Errorf("without what it builds on: %v, %s", err, out)
	}
}

// Progress tells of each stage, whatever git writes between.
func TestBundleProgress(t *testing.T) {
	home(t, "")
	r := generated(t, 500)
	stages := map[string]int64{}
	var buf bytes.Buffer
	b, err := r.open().Bundle(t.Context(), &buf, gitwork.Outgoing{Base: r.git("rev-parse", "main"), Progress: func(stage string, done, _ int64) {
		if stage != "bundle" {
			done = max(done, stages[stage])
		}
		stages[stage] = done
	}})
	if err != nil || stages["count"] < 500 || stages["compress"] == 0 || stages["bundle"] != b.Size {
		t.Errorf("got %v of %d, %v", stages, b.Size, err)
	}
}

func TestBundleSHA256(t *testing.T) {
	home(t, "")
	r := repo{t, t.TempDir(), t.TempDir()}
	r.git("init", "-q", "-b", "main", "--object-format=sha256")
	r.write("a", "a\n")
	head := r.commit("first")
	path, _ := r.sent(gitwork.Outgoing{Base: head})
	if got := r.received(path, nil, "--object-format=sha256").git("rev-parse", "main"); got != head {
		t.Errorf("got %s", got)
	}
}

// A depth cuts the history off, and so does a clone that is shallow itself.
func TestBundleShallow(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	for _, name := range []string{"b", "c", "d"} {
		r.write(name, strings.Repeat(name+hex.EncodeToString([]byte(name)), 10)+"\n")
		r.commit(name)
	}
	r.git("checkout", "-q", "-b", "side", "HEAD~2")
	r.write("side", "side\n")
	r.commit("side")
	r.git("checkout", "-q", "main")
	r.git("merge", "-q", "--no-edit", "side")
	head := r.git("rev-parse", "HEAD")
	whole, _ := r.sent(gitwork.Outgoing{Base: head})
	for depth, want := range map[int][]string{
		1:  {head},
		2:  {r.git("rev-parse", "HEAD^"), r.git("rev-parse", "HEAD^2")},
		3:  {r.git("rev-parse", "HEAD~2"), r.git("rev-parse", "HEAD^2~1")},
		90: nil,
	} {
		slices.Sort(want)
		cuts := r.cut(head, depth)
		if !slices.Equal(cuts, slices.Compact(want)) {
			t.Errorf("depth %d: cut off at %q, want %q", depth, cuts, want)
		}
		path, b := r.sent(gitwork.Outgoing{Base: head, Shallow: cuts})
		if got := r.received(path, cuts).git("rev-parse", "main^{tree}"); got != r.git("rev-parse", "HEAD^{tree}") {
			t.Errorf("depth %d: got the tree %s", depth, got)
		}
		if info, err := os.Stat(whole); err != nil || depth < 3 && b.Size >= info.Size() || depth > 3 && b.Size != info.Size() {
			t.Errorf("depth %d: %d bytes, all is %d, %v", depth, b.Size, info.Size(), err)
		}
	}
	dir := filepath.Join(t.TempDir(), "s")
	r.git("clone", "-q", "--depth=2", "file://"+r.dir, dir)
	s := repo{t, dir, r.home}
	cuts := s.cut(head, 0)
	if len(cuts) != 2 {
		t.Errorf("a shallow clone is cut off at %q", cuts)
	}
	path, _ := s.sent(gitwork.Outgoing{Base: head, Shallow: cuts})
	clone := s.received(path, cuts)
	if got := clone.git("rev-list", "--count", "main"); got != "3" {
		t.Errorf("of a shallow clone came %s commits", got)
	}
	// The shallow clone can import the commits that are made there.
	clone.git("checkout", "-q", "main")
	clone.write("done", "done\n")
	done := clone.commit("done")
	back, want := clone.bundle(head)
	if err := s.imports(back, want); err != nil {
		t.Fatal(err)
	}
	if got := s.git("rev-parse", gitwork.JobRef(job, "head")); got != done || s.git("fsck", "--no-dangling") != "" {
		t.Errorf("got %s back", got)
	}
	if cuts := s.cut(head, 1); !slices.Equal(cuts, []string{head}) {
		t.Errorf("less of a shallow clone: %q", cuts)
	}
}

// A partial clone can send the commit whose objects it has: the last one.
func TestBundlePartial(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	r.write("README", "again\n")
	head := r.commit("second")
	r.git("config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "p")
	r.git("clone", "-q", "--filter=blob:none", "file://"+r.dir, dir)
	p := repo{t, dir, r.home}
	_, err := p.open().Bundle(t.Context(), &bytes.Buffer{}, gitwork.Outgoing{Base: head})
	if !errors.Is(err, gitwork.ErrPartial) || !strings.Contains(text(err), "--depth 1") {
		t.Errorf("got %v", err)
	}
	cuts := p.cut(head, 1)
	path, _ := p.sent(gitwork.Outgoing{Base: head, Shallow: cuts})
	clone := p.received(path, cuts)
	clone.git("checkout", "-q", "main")
	clone.write("README", "the job's\n")
	clone.commit("done")
	back, want := clone.bundle(head)
	if err := p.imports(back, want); err != nil {
		t.Fatal(err)
	}
	if err := p.forward(head, want.Head); err != nil || p.read("README") != "the job's\n" {
		t.Errorf("forward: %v", err)
	}
}

// Objects borrowed from another repository, by a relative path there, go along. Objects
// that a replacement hides are sent, too.
func TestBundleBorrowedAndReplaced(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	head := r.commit("second")
	borrower := repo{t, filepath.Join(filepath.Dir(r.dir), "borrower"), r.home}
	r.git("clone", "-q", "--shared", r.dir, borrower.dir)
	t.Cleanup(func() { _ = os.RemoveAll(borrower.dir) })
	borrower.write(".git/objects/info/alternates", "../../../"+filepath.Base(r.dir)+"/.git/objects\n")
	first := borrower.git("rev-parse", "HEAD~1")
	borrower.git("replace", first, borrower.git("commit-tree", "-m", "false", first+"^{tree}"))
	borrower.write(".git/info/grafts", head+"\n")
	path, _ := borrower.sent(gitwork.Outgoing{Base: head})
	clone := borrower.received(path, nil)
	if got := clone.git("log", "--format=%s", "main"); got != "second\nfirst" {
		t.Errorf("got %q", got)
	}
}

// A bare repository has a branch, and no tree that could be dirty or in the way.
func TestBareAndDetached(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	dir := filepath.Join(t.TempDir(), "project.git")
	r.git("clone", "-q", "--bare", r.dir, dir)
	b := repo{t, dir, r.home}
	g := b.open()
	branch, base, err := g.Head(t.Context())
	if err != nil || branch != "main" || !g.Bare || g.Name() != "project" || g.CheckClean(t.Context()) != nil {
		t.Fatalf("got %q, %q, %v, %+v", branch, base, err, g)
	}
	a := r.agent()
	a.write("new", "new\n")
	head := a.commit("new")
	path, want := a.bundle(base)
	if err := b.imports(path, want); err != nil {
		t.Fatal(err)
	}
	if err := b.forward(base, head); err != nil || b.git("rev-parse", "main") != head {
		t.Errorf("forward: %v", err)
	}
	r.git("checkout", "-q", "--detach")
	if branch, commit, err := r.open().Head(t.Context()); err != nil || branch != "" || commit != base {
		t.Errorf("detached: got %q, %q, %v", branch, commit, err)
	}
}
