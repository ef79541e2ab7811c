package gitwork_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/test/executable"
)

func TestOpenRefuses(t *testing.T) {
	home(t, "")
	empty := repo{t, t.TempDir(), t.TempDir()}
	empty.git("init", "-q", "-b", "main")
	whole := newRepo(t)

	for _, test := range []struct {
		name string
		dir  string
		want error
		hint string
	}{
		{"not a repository", t.TempDir(), gitwork.ErrNotRepository, "git init"},
		{"empty", empty.dir, gitwork.ErrEmpty, "git commit"},
		{"inside .git", filepath.Join(whole.dir, ".git", "refs"), gitwork.ErrNotRepository, "work tree"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, err := gitwork.Open(t.Context(), test.dir)
			if err == nil {
				_, _, err = g.Head(t.Context())
			}
			if !errors.Is(err, test.want) || !strings.Contains(text(err), test.hint) {
				t.Errorf("got %v, want %s with %q", err, test.want.(*fail.Error).Code, test.hint)
			}
		})
	}
}

func TestOpenFromSubfolderAndWorktree(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	linked := filepath.Join(t.TempDir(), "linked")
	r.git("worktree", "add", "-q", "-b", "feature/x", linked)
	main := r.open()
	for _, test := range []struct{ dir, top, branch string }{
		{filepath.Join(r.dir, "src"), r.dir, "main"},
		{linked, linked, "feature/x"},
	} {
		g, err := gitwork.Open(t.Context(), test.dir)
		if err != nil {
			t.Fatal(err)
		}
		branch, commit, err := g.Head(t.Context())
		if err != nil || g.Dir != test.top || branch != test.branch || g.CommonDir != main.CommonDir {
			t.Errorf("%s: got %s %s %s, %v", test.dir, g.Dir, branch, g.CommonDir, err)
		}
		a, errA := main.ID(t.Context(), r.git("rev-parse", "main"))
		b, errB := g.ID(t.Context(), commit)
		if errA != nil || errB != nil || a != b || len(a) != 64 {
			t.Errorf("identities %s %s, %v %v", a, b, errA, errB)
		}
	}
}

func TestCheckClean(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	r.write(".gitignore", "*.log\n")
	r.commit("ignore")
	r.write("x.log", "ignored")
	if err := r.open().CheckClean(t.Context()); err != nil {
		t.Fatalf("clean tree: %v", err)
	}
	r.write("README", "changed\n")
	for _, name := range strings.Split("abcdefghijkl", "") {
		r.write("new-"+name+"\x1b[31m", "x")
	}
	err := r.open().CheckClean(t.Context())
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || !errors.Is(err, gitwork.ErrDirty) || len(e.Paths) != 13 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"README", "and 3 more", "--dirty refuse", "--dirty include", "--dirty ignore", `\x1b`} {
		if !strings.Contains(text(err), want) {
			t.Errorf("%q is missing in: %v", want, text(err))
		}
	}
	if strings.Contains(text(err), "\x1b") {
		t.Errorf("an escape is in the message: %q", err)
	}
}

func TestSnapshotLeavesIndexAlone(t *testing.T) {
	home(t, "[user]\n\tname = Ada\n\temail = ada@example.com\n")
	r := newRepo(t)
	r.write(".gitignore", "*.log\n")
	head := r.commit("ignore")
	r.write("README", "changed\n")
	r.write("staged", "s\n")
	r.git("add", "staged")
	r.write("new/file", "n\n")
	r.write("x.log", "ignored\n")
	index := r.read(".git/index")
	status := r.git("status", "--porcelain")

	g := r.open()
	snap, err := g.Snapshot(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.git("ls-tree", "-r", "--name-only", snap); got != ".gitignore\nREADME\nnew/file\nsrc/a.txt\nstaged" {
		t.Errorf("snapshot has %q", got)
	}
	if got := r.git("show", snap+":README"); got != "changed" {
		t.Errorf("README in the snapshot is %q", got)
	}
	if got := r.git("log", "-1", "--format=%P %an <%ae>", snap); got != head+" Ada <ada@example.com>" {
		t.Errorf("snapshot is %q", got)
	}
	if r.read(".git/index") != index || r.git("status", "--porcelain") != status || r.git("rev-parse", "HEAD") != head {
		t.Error("the snapshot changed index, status or branch")
	}
	left, err := os.ReadDir(filepath.Join(r.dir, ".git", "cove", "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v %v", left, err)
	}
	r.git("stash", "-q", "-u")
	if same, err := g.Snapshot(t.Context(), head); err != nil || same != head {
		t.Errorf("snapshot of a clean tree: %s, %v", same, err)
	}
}

// A file may change in the same moment as the index, and keep its size. A snapshot finds
// that change only if the copy of the index keeps the index's time.
func TestSnapshotSeesRacyChange(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	for i := range 5 {
		body := strings.Repeat(string(rune('a'+i)), 8)
		r.write("racy", body)
		head := r.commit("racy")
		r.write("racy", strings.ToUpper(body))
		r.write("other", body+"x")
		snap, err := r.open().Snapshot(t.Context(), head)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.git("show", snap+":racy"); got != strings.ToUpper(body) {
			t.Errorf("snapshot %d has %q", i, got)
		}
	}
}

// A repository in the tree that is not a submodule is refused: its commit could not be fetched.
func TestSnapshotRefusesStrangers(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	head := r.git("rev-parse", "HEAD")
	r.git("init", "-q", "not yet/repo")
	r.git("clone", "-q", r.dir, filepath.Join(r.dir, "clone"))
	r.write("new", "x\n")
	_, err := r.open().Snapshot(t.Context(), head)
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || !errors.Is(err, gitwork.ErrModule) || !slices.Equal(e.Paths, []string{"clone", "not yet/repo"}) {
		t.Fatalf("got %v", err)
	}
	for line := range strings.Lines(e.Hint) {
		if command, ok := strings.CutPrefix(line, "let git ignore it: "); ok {
			cmd := exec.Command("sh", "-c", command)
			cmd.Dir = r.dir
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v", command, err)
			}
		}
	}
	snap, err := r.open().Snapshot(t.Context(), head)
	if err != nil || r.git("diff", "--name-only", head, snap) != "new" {
		t.Errorf("with both ignored: %v", err)
	}
}

func TestSnapshotRefusesFilteredFiles(t *testing.T) {
	dir := t.TempDir()
	home(t, "[filter \"crypt\"]\n\tclean = touch "+filepath.Join(dir, "ran")+"; cat\n\trequired\n")
	r := newRepo(t)
	r.write(".gitattributes", "*.key filter=crypt\n")
	head := r.commit("attributes")
	r.write("secret.key", "in the clear\n")
	if _, err := r.open().Snapshot(t.Context(), head); !errors.Is(err, gitwork.ErrFiltered) || !strings.Contains(err.Error(), "secret.key") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the filter ran")
	}
}

// A file of Git LFS that has the content of its pointer is not a change, no matter what its
// times are. One with other content is a change.
func TestLargeFilesAreClean(t *testing.T) {
	dir := t.TempDir()
	home(t, "[filter \"lfs\"]\n\tclean = touch "+filepath.Join(dir, "ran")+"; cat\n\trequired\n")
	r := newRepo(t)
	big := strings.Repeat("large\n", 1000)
	sum := sha256.Sum256([]byte(big))
	pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%x\nsize %d\n", sum, len(big))
	r.write(".gitattributes", "*.bin filter=lfs -text\n")
	r.write("a dir/big.bin", pointer)
	r.write("plain", pointer)
	head := r.commit("large files")
	r.write("a dir/big.bin", big)
	g := r.open()
	if err := g.CheckClean(t.Context()); err != nil {
		t.Error(err)
	}
	if snap, err := g.Snapshot(t.Context(), head); snap != head || err != nil {
		t.Errorf("a snapshot of nothing: %s, %v", snap, err)
	}
	r.write("more", "x\n")
	snap, err := g.Snapshot(t.Context(), head)
	if err != nil || r.git("diff", "--name-only", head, snap) != "more" || r.git("show", snap+":a dir/big.bin")+"\n" != pointer {
		t.Errorf("a snapshot: %v", err)
	}
	r.write("plain", big) // no filter is responsible for it
	if err := g.CheckClean(t.Context()); err == nil || !strings.Contains(text(err), ": plain, more;") {
		t.Errorf("got %v", err)
	}
	r.write("a dir/big.bin", strings.ToUpper(big))
	if err := g.CheckClean(t.Context()); err == nil || !strings.Contains(err.Error(), "a dir/big.bin") {
		t.Errorf("other content: %v", err)
	}
	if _, err := g.Snapshot(t.Context(), head); !errors.Is(err, gitwork.ErrFiltered) {
		t.Errorf("a snapshot of other content: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the filter ran")
	}
}

// The same id comes of all commits of a history, whatever was noted before.
func TestID(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	id := func(commit string) string {
		t.Helper()
		got, err := r.open().ID(t.Context(), commit)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := r.git("rev-parse", "HEAD")
	want := id(first)
	second := r.commit("second")
	if id(second) != want || id(first) != want || id(second) != want {
		t.Error("commits of one history differ")
	}
	r.git("checkout", "-q", "--orphan", "other")
	other := r.commit("another root")
	alone := id(other)
	r.git("merge", "-q", "--no-edit", "--allow-unrelated-histories", second)
	both := r.git("rev-parse", "HEAD")
	joined := id(both)
	if alone == want || joined == want || joined == alone {
		t.Error("other roots, the same id")
	}
	for _, note := range []string{"", "nonsense", strings.Repeat("1", 40) + "\n" + strings.Repeat("2", 40) + "\n", first + "\n--all\n"} {
		r.write(".git/cove/roots", note)
		if id(both) != joined || id(second) != want {
			t.Errorf("with %q noted", note)
		}
	}
}

func TestVersion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, _, err := gitwork.Version(t.Context()); !errors.Is(err, gitwork.ErrNoGit) {
		t.Errorf("no git: got %v", err)
	}
	executable.Write(t, filepath.Join(dir, "git"), "#!/bin/sh\necho git version 2.33.8\n")
	if _, _, err := gitwork.Version(t.Context()); !errors.Is(err, gitwork.ErrOldGit) || !strings.Contains(text(err), "2.34") {
		t.Errorf("old git: got %v", err)
	}
}

func TestLockSerialises(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	g := r.open()
	first, err := g.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := g.Lock(t.Context())
		if err == nil {
			second.Unlock()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the second lock did not wait: %v", err)
	default:
	}
	first.Unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestSweepLeavesIndexLock: git makes the lock of a snapshot's index when it begins to read the
// files, and writes to it at the end. Another pull meanwhile leaves that lock. Once the index is
// gone, the next one removes it.
func TestSweepLeavesIndexLock(t *testing.T) {
	home(t, "")
	g := newRepo(t).open()
	index, err := g.TempFile("index-")
	if err != nil {
		t.Fatal(err)
	}
	name := index.Name() + ".lock"
	write(t, name, "")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
	swept := func() bool {
		lock, err := g.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lock.Unlock()
		_, err = os.Lstat(name)
		return err != nil
	}
	if swept() {
		t.Error("the lock of an index in use is gone")
	}
	index.Remove()
	if !swept() {
		t.Error("the lock of an index that is gone is left")
	}
}

// BenchmarkBundle prints plain git's time for the same beside ours.
func BenchmarkBundle(b *testing.B) {
	b.Setenv("HOME", b.TempDir())
	r := generated(b, 10_000)
	head := r.git("rev-parse", "main")
	g := r.open()
	b.Run("cove", func(b *testing.B) {
		for b.Loop() {
			f, err := os.Create(filepath.Join(b.TempDir(), "out"))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := g.Bundle(b.Context(), f, gitwork.Outgoing{Base: head}); err != nil {
				b.Fatal(err)
			}
			_ = f.Close()
		}
	})
	b.Run("git-bundle-create", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("git", "bundle", "create", "-q", filepath.Join(b.TempDir(), "out"), "main")
			cmd.Dir, cmd.Env = r.dir, env(r.home)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

// generated is a repository of n commits.
func generated(t testing.TB, n int) repo {
	r := repo{t, t.TempDir(), t.TempDir()}
	r.git("init", "-q", "-b", "main")
	var b strings.Builder
	for i := range n {
		body := strings.Repeat("line of "+hex.EncodeToString([]byte{byte(i), byte(i >> 8)})+"\n", 20)
		path := "d" + hex.EncodeToString([]byte{byte(i % 100)}) + "/f" + hex.EncodeToString([]byte{byte(i % 7)})
		b.WriteString("commit refs/heads/main\ncommitter T <t@example.com> 1700000000 +0000\ndata 1\nc\n")
		b.WriteString("M 100644 inline " + path + "\ndata " + itoa(len(body)) + "\n" + body + "\n")
	}
	r.pipe(b.String(), "fast-import", "--quiet")
	return r
}

func TestTop(t *testing.T) {
	dir := t.TempDir()
	if top, err := gitwork.Top(t.Context(), dir); top != "" || err != nil {
		t.Errorf("no repository: %q, %v", top, err)
	}
	deep := filepath.Join(dir, "repo", "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("git", "-C", filepath.Join(dir, "repo"), "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want, err := filepath.EvalSymlinks(filepath.Join(dir, "repo"))
	if err != nil {
		t.Fatal(err)
	}
	if top, err := gitwork.Top(t.Context(), deep); top != want || err != nil {
		t.Errorf("from below: %q, %v", top, err)
	}
}

func TestInit(t *testing.T) {
	home(t, "[init]\n\tdefaultBranch = other\n[commit]\n\tgpgSign = true\n")
	dir := t.TempDir()
	if err := gitwork.Init(t.Context(), dir, map[string]string{"a": "1\n"}); err != nil {
		t.Fatal(err)
	}
	r, err := gitwork.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if branch, commit, err := r.Head(t.Context()); branch != "main" || commit == "" || err != nil {
		t.Errorf("got %s, %s, %v", branch, commit, err)
	}
	if err := r.CheckClean(t.Context()); err != nil {
		t.Error(err)
	}
}

// text is what an error says, and what it says to type next.
func text(err error) string {
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}
