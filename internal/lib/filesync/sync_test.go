package filesync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// oddNames are names that must travel as they are.
var oddNames = []string{"-rf", "a b", "new\nline", "tab\t", "\x1b[31mred", "\xff\xfe", "...", "a\\b", "caf\u00e9", "cafe\u0301", "$(id)", "'\"`",
	"a:b", strings.Repeat("x", 255), " ", "*", "[a]", "{a}", "#c", "!d", "git", ".gitx", "~"}

// TestRoundTrip: push and then pull is identity (S1).
func TestRoundTrip(t *testing.T) {
	w := newWorld(t)
	for i, name := range oddNames {
		w.write(w.local, name, fmt.Sprint(i), "d/"+name+"/f", "x")
	}
	w.write(w.local, "empty", "", "deep/a/b/c/d/e/f", "x", "void/inner/", "", "link", "-> deep/a", "deep/up", "-> ../empty", "dangling", "-> nowhere",
		"big", strings.Repeat("0123456789", 100_000))
	for name, mode := range map[string]os.FileMode{"empty": 0o700, "big": 0o755, "deep/a": 0o700, "void": 0o555, "-rf": 0o400} {
		if err := os.Chmod(filepath.Join(w.local, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Unix(1, 23456789)
	if err := os.Chtimes(filepath.Join(w.local, "big"), old, old); err != nil {
		t.Fatal(err)
	}
	report := w.run(Push, "")
	w.same(w.local, w.remote)
	if report.Added.Count == 0 || report.Bytes < 1_000_000 {
		t.Errorf("got %+v", report)
	}
	first := w.local
	w.local = filepath.Join(filepath.Dir(first), "second")
	w.Local = w.local
	w.run(Pull, "")
	w.same(first, w.local)
}

// TestAgainSendsNothing: unchanged files are neither sent nor read (S3).
func TestAgainSendsNothing(t *testing.T) {
	w := newWorld(t)
	for i := range 200 {
		w.write(w.local, fmt.Sprintf("d%d/f%d", i%7, i), strings.Repeat(fmt.Sprint(i), 1000))
	}
	settle()
	w.run(Push, "")
	settle()
	w.write(w.local, "d3/f3", "changed")
	settle()
	report := w.run(Push, "")
	if report.Modified.Count != 1 || report.Bytes != 7 || report.Changes() != 1 {
		t.Errorf("got %+v", report)
	}
	if report.Sent > 40_000 {
		t.Errorf("%d bytes were sent for one change", report.Sent)
	}
	w.same(w.local, w.remote)
}

// TestDeletesAndRenames propagate, a rename without its content (S4).
func TestDeletesAndRenames(t *testing.T) {
	w := newWorld(t)
	content := strings.Repeat("content ", 100_000)
	w.write(w.local, "old/name", content, "gone/a", "1", "gone/b/c", "2", "stays", "3", "file", "4", "dir/x", "5")
	w.run(Push, "")
	w.mkdir(filepath.Join(w.local, "new"))
	if err := os.Rename(filepath.Join(w.local, "old/name"), filepath.Join(w.local, "new/other")); err != nil {
		t.Fatal(err)
	}
	w.remove(w.local, "old", "gone", "file", "dir")
	w.write(w.local, "file/now", "a folder", "dir", "a file")
	report := w.run(Push, "")
	w.same(w.local, w.remote)
	if report.Sent > 20_000 {
		t.Errorf("%d bytes were sent for a rename", report.Sent)
	}
	w.remove(w.remote, "stays")
	w.run(Pull, "")
	w.same(w.local, w.remote)
	w.remove(w.local, "new")
	w.NoDelete = true
	w.run(Push, "")
	if w.read(w.remote, "new/other") == "(none)" {
		t.Error("it was deleted all the same")
	}
}

// TestConflicts: both ends change, in every way (S8).
func TestConflicts(t *testing.T) {
	base := []string{"both", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "clash", "a\n", "mine", "a", "yours", "a", "gone-here", "a", "gone-there", "a", "kind", "a", "gone", "a"}
	start := func(t *testing.T) *world {
		w := newWorld(t)
		w.write(w.local, base...)
		w.run(Push, "")
		w.write(w.local, "both", "one\n2\n3\n4\n5\n6\n7\n8\n9\n", "clash", "local\n", "mine", "local", "gone-there", "local", "new", "local", "twin", "t")
		w.write(w.remote, "both", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n", "clash", "remote\n", "yours", "remote", "gone-here", "remote", "new", "remote", "twin", "t")
		w.remove(w.local, "gone-here", "kind", "gone")
		w.remove(w.remote, "gone-there", "gone")
		w.write(w.local, "kind/now", "a folder")
		w.write(w.remote, "kind", "changed")
		return w
	}
	t.Run("fail", func(t *testing.T) {
		w := start(t)
		for _, verb := range []Verb{Push, Pull} {
			l, r := dump(t, w.local), dump(t, w.remote)
			report := w.run(verb, CodeConflict)
			var got []string
			for _, c := range report.Conflicts {
				got = append(got, c.Path+":"+c.Local+"/"+c.Remote)
			}
			want := []string{"clash:changed/changed", "gone-here:deleted/changed", "gone-there:changed/deleted", "kind:changed/changed", "new:changed/changed"}
			if verb == Push { // texts are merged on this side only
				want = slices.Insert(want, 0, "both:changed/changed")
			} else {
				want = slices.Insert(want, 4, "kind/now:changed/absent")
			}
			if verb == Push {
				want = slices.Insert(want, 5, "kind/now:changed/absent")
			}
			if verb == Pull {
				want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "kind/now") })
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", verb, got, want)
			}
			w.differ(l, dump(t, w.local))
			w.differ(r, dump(t, w.remote))
		}
	})
	content := func(w *world, root string) string {
		var b strings.Builder
		for _, name := range []string{"both", "clash", "gone-here", "gone-there", "new", "mine", "yours", "clash.cove-theirs", "new.cove-theirs", "gone-here.cove-theirs"} {
			fmt.Fprintf(&b, "%s=%s ", name, strings.ReplaceAll(w.read(root, name), "\n", ","))
		}
		return strings.TrimSpace(b.String())
	}
	merged := "both=one,2,3,4,5,6,7,8,nine, "
	for _, c := range []struct {
		verb   Verb
		policy Policy
		want   string
	}{
		{Pull, Ours, merged + "clash=local, gone-here=(none) gone-there=local new=local mine=local yours=remote clash.cove-theirs=(none) new.cove-theirs=(none) gone-here.cove-theirs=(none)"},
		{Pull, Theirs, merged + "clash=remote, gone-here=remote gone-there=(none) new=remote mine=local yours=remote clash.cove-theirs=(none) new.cove-theirs=(none) gone-here.cove-theirs=(none)"},
		{Pull, Both, merged + "clash=local, gone-here=(none) gone-there=local new=local mine=local yours=remote clash.cove-theirs=remote, new.cove-theirs=remote gone-here.cove-theirs=remote"},
		{Push, Ours, "both=one,2,3,4,5,6,7,8,9, clash=local, gone-here=(none) gone-there=local new=local mine=local yours=remote clash.cove-theirs=(none) new.cove-theirs=(none) gone-here.cove-theirs=(none)"},
		{Push, Theirs, "both=1,2,3,4,5,6,7,8,nine, clash=remote, gone-here=remote gone-there=(none) new=remote mine=local yours=remote clash.cove-theirs=(none) new.cove-theirs=(none) gone-here.cove-theirs=(none)"},
		{Push, Both, "both=1,2,3,4,5,6,7,8,nine, clash=remote, gone-here=remote gone-there=(none) new=remote mine=local yours=remote clash.cove-theirs=local, new.cove-theirs=local gone-here.cove-theirs=(none)"},
	} {
		t.Run(fmt.Sprintf("%s %s", c.verb, c.policy), func(t *testing.T) {
			w := start(t)
			w.remove(w.local, "kind") // a folder in a file's place is the next test's
			w.write(w.local, "kind", "changed")
			w.Policy = c.policy
			target := w.local
			if c.verb == Push {
				target = w.remote
			}
			w.run(c.verb, "")
			if got := content(w, target); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			// The decision stays: a sync the other way has no conflict.
			w.run(c.verb.Other(), "")
			w.run(c.verb, "")
			for _, name := range []string{"both", "clash", "new", "mine", "yours", "gone-here", "gone-there"} {
				if a, b := w.read(w.local, name), w.read(w.remote, name); a != b {
					t.Errorf("%s: %q here, %q there", name, a, b)
				}
			}
		})
	}
}

// TestNoBase: files that no base knows are not overwritten, except when that is asked for.
func TestNoBase(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "local", "same", "s")
	w.write(w.remote, "a", "remote", "same", "s", "b", "remote's own")
	w.run(Push, CodeConflict)
	w.run(Pull, CodeConflict)
	w.Reset = true
	report := w.run(Push, "")
	if report.Deleted.Count != 1 || report.Modified.Count != 1 {
		t.Errorf("got %+v", report)
	}
	if w.read(w.remote, "a") != "local" || w.read(w.remote, "b") != "(none)" {
		t.Error("the target was not made what the source is")
	}
}

// TestDryRun: it does nothing, and reports exactly what a sync then does (S16).
func TestDryRun(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1", "b/c", "2", "d", "3")
	w.DryRun = true
	plan := w.run(Push, "")
	if _, err := os.Lstat(w.remote); err == nil {
		t.Fatal("a dry run made the target")
	}
	for range 2 {
		w.DryRun = false
		done := w.run(Push, "")
		plan.DryRun, plan.Sent, plan.Seconds, plan.Backup = false, done.Sent, done.Seconds, done.Backup
		if fmt.Sprintf("%+v", plan) != fmt.Sprintf("%+v", done) {
			t.Errorf("planned %+v\ndone    %+v", plan, done)
		}
		w.write(w.local, "a", "changed", "new/x", "4")
		w.remove(w.local, "d")
		w.DryRun = true
		before := dump(t, w.remote)
		plan = w.run(Push, "")
		w.differ(before, dump(t, w.remote))
	}
}

// TestUndo: replaced and deleted files come back, and an undo can be undone (S10).
func TestUndo(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "keep", "k", "change", "old", "gone/a/b", "x", "gone/link", "-> a", "type", "file", "mode", "m")
	w.run(Push, "")
	before := dump(t, w.remote)
	w.write(w.local, "change", "new", "added/x", "1")
	w.remove(w.local, "gone", "type")
	w.write(w.local, "type/x", "folder")
	if err := os.Chmod(filepath.Join(w.local, "mode"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.run(Push, "")
	after := dump(t, w.remote)
	for _, want := range [][]string{before, after, before} {
		if _, err := w.Undo(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		w.differ(want, dump(t, w.remote))
	}
	w.run(Push, "") // as if the second push had never been
	w.differ(after, dump(t, w.remote))

	w.write(w.remote, "added/x", "changed since")
	_, err := w.Undo(t.Context(), "")
	w.wants(err, CodeConflict)

	// The other side, too.
	w.write(w.remote, "keep", "remote")
	local := dump(t, w.local)
	w.run(Pull, "")
	if _, err := w.Undo(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	w.differ(local, dump(t, w.local))
}

// TestBackupsAreNotShared: a file that is written in place, after an undo put it back or under
// another name of its own, changes no backup.
func TestBackupsAreNotShared(t *testing.T) {
	w := newWorld(t)
	in := func(name string) string { return filepath.Join(w.local, name) }
	link := func(old, name string) {
		t.Helper()
		if err := os.Link(in(old), filepath.Join(filepath.Dir(w.local), name)); err != nil {
			t.Fatal(err)
		}
	}
	w.write(w.local, "a", "original", "gone", "kept", "l", "-> a")
	if err := os.Chmod(in("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(Push, "")
	first := dump(t, w.local)
	link("a", "other-a")
	link("gone", "other-gone")
	w.remove(w.remote, "a", "gone", "l")
	w.write(w.remote, "a", "remote", "l", "-> b")
	pulled := w.run(Pull, "").Backup
	w.write(filepath.Dir(w.local), "other-a", "written through another name", "other-gone", "likewise")
	undo := func() {
		t.Helper()
		if _, err := w.Undo(t.Context(), pulled); err != nil {
			t.Fatal(err)
		}
		w.differ(first, dump(t, w.local))
		for _, name := range []string{"a", "gone"} {
			info, err := os.Stat(in(name))
			if err != nil {
				t.Fatal(err)
			}
			if n := info.Sys().(*syscall.Stat_t).Nlink; n != 1 {
				t.Errorf("%s has %d names", name, n)
			}
		}
	}
	undo()
	w.write(w.local, "a", "mine", "gone", "mine too") // in place
	w.Policy = Theirs
	w.run(Pull, "")
	undo()
}

// TestBackupsAreBounded: the newest ten are kept, and can be named.
func TestBackupsAreBounded(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for i := range keepBackups + 4 {
		w.write(w.local, "f", fmt.Sprint(i, strings.Repeat("x", i)))
		ids = append(ids, w.run(Push, "").Backup)
	}
	_, remote, err := w.Backups(t.Context())
	if err != nil || len(remote) != keepBackups || remote[0].ID != ids[len(ids)-1] {
		t.Fatalf("%d backups, %v", len(remote), err)
	}
	w.DryRun = false
	_, err = w.Undo(t.Context(), ids[0])
	w.wants(err, CodeNotFound)
	if _, err := w.Undo(t.Context(), "../../x"); err == nil {
		t.Error("a path is taken for a backup")
	}
}

// TestLeavesOut: rules, both ways (S5).
func TestLeavesOut(t *testing.T) {
	w := newWorld(t)
	w.Rules.Exclude = []string{"/build", "*.tmp"}
	w.write(w.local, "build/x", "1", "src/build/y", "2", "a.tmp", "3", ".gitignore", "*.log\nnode_modules/\n", "x.log", "4", "node_modules/big", "5",
		".coveignore", "!keep.log\nsecret\n", "keep.log", "6", "secret", "7", ".git/config", "8", "sub/.GIT/x", "9", "sub/ok", "10")
	report := w.run(Push, "")
	for name, want := range map[string]string{"build": "", "src/build/y": "2", "a.tmp": "", "x.log": "", "node_modules": "", "keep.log": "6", "secret": "", ".git": "", "sub/.GIT": "", "sub/ok": "10"} {
		_, err := os.Lstat(filepath.Join(w.remote, name))
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(report.Skipped) < 3 {
		t.Errorf("got %+v", report.Skipped)
	}
	// The same the other way. A file that is ignored here is never overwritten, nor deleted
	// because the other end lacks it.
	w.write(w.remote, "build/z", "r", "b.tmp", "r", "y.log", "r", "secret", "theirs", "sub/new", "r", "node_modules/r", "r")
	before := []string{w.read(w.local, "secret"), w.read(w.local, "x.log"), w.read(w.local, "build/x")}
	w.run(Pull, "")
	after := []string{w.read(w.local, "secret"), w.read(w.local, "x.log"), w.read(w.local, "build/x")}
	if !slices.Equal(before, after) || w.read(w.local, "y.log") != "(none)" || w.read(w.local, "b.tmp") != "(none)" || w.read(w.local, "sub/new") != "r" {
		t.Errorf("got %q, want %q", after, before)
	}
	// A rule that is new at one end: what it hides there was not deleted.
	w.write(w.local, "sub/data.bin", "d")
	w.run(Push, "")
	w.write(w.remote, "sub/.gitignore", "*.bin\n")
	w.run(Pull, "")
	if w.read(w.local, "sub/data.bin") != "d" {
		t.Error("it was deleted here because it is ignored there")
	}
	// With everything in, git's own still stays out.
	w.Rules = Rules{}
	w.run(Push, CodeConflict) // secret is in both
	w.Policy = Ours
	w.run(Push, "")
	if w.read(w.remote, "x.log") != "4" || w.read(w.remote, ".git/config") != "(none)" || w.read(w.remote, "sub/.GIT/x") != "(none)" {
		t.Error("--no-ignore is wrong")
	}
}

// TestSpecial: entries that are not files are passed over, and never waited for.
func TestSpecial(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1", "out", "-> /etc/passwd", "up", "-> ../../x", "in", "-> a", "dot", "-> .git/config")
	if err := unix.Mkfifo(filepath.Join(w.local, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	device(filepath.Join(w.local, "null"))
	report := w.run(Push, "")
	if got := report.Added.Paths; !slices.Equal(got, []string{"a", "in"}) {
		t.Errorf("got %q", got)
	}
}

// TestModes: exec bits travel, setuid and other people's writing do not; the mode
// of a file that is private stays so.
func TestModes(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "x", "1", "s", "2", "w", "3", "p", "4")
	for name, mode := range map[string]uint32{"x": 0o755, "s": 0o4755, "w": 0o666, "p": 0o600} {
		if err := unix.Chmod(filepath.Join(w.local, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	w.run(Push, "")
	for name, want := range map[string]os.FileMode{"x": 0o755, "s": 0o755, "w": 0o644, "p": 0o600} {
		info, err := os.Stat(filepath.Join(w.remote, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	// The bits that do not travel stay when the content changes.
	w.write(w.remote, "w", "changed")
	w.run(Pull, "")
	info, err := os.Stat(filepath.Join(w.local, "w"))
	if err != nil || info.Mode() != 0o666 || w.read(w.local, "w") != "changed" {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Chmod(filepath.Join(w.remote, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	if report := w.run(Pull, ""); report.Modified.Count != 1 || report.Bytes != 0 {
		t.Errorf("a change of mode: %+v", report)
	}
	if info, err := os.Stat(filepath.Join(w.local, "p")); err != nil || info.Mode() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestMissing: there is nothing to sync.
func TestMissing(t *testing.T) {
	w := newWorld(t)
	w.run(Pull, CodeNotFound)
	if entries, err := os.ReadDir(w.local); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestParallel: syncs of the same folders wait for one another (S15).
func TestParallel(t *testing.T) {
	w := newWorld(t)
	for i := range 50 {
		w.write(w.local, fmt.Sprintf("f%d", i), fmt.Sprint(i))
	}
	errs := make(chan error)
	for range 4 {
		y := w.Sync
		y.Verb = Push
		go func() { _, err := y.Run(t.Context()); errs <- err }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	w.same(w.local, w.remote)
}

// TestCancelled ends a sync that waits.
func TestCancelled(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	w.far = func(step string) error {
		if step == "sync" {
			cancel()
			<-ctx.Done()
			return context.Canceled
		}
		return nil
	}
	w.Verb = Push
	if _, err := w.Run(ctx); err == nil {
		t.Fatal("it went on")
	}
	w.far = nil
	w.run(Push, "")
	w.same(w.local, w.remote)
}

// TestListCutOff: if a list can't be sent whole, the caller that waits for the answer gets the
// reason. It does not wait with the end, which waits for the rest of the list. This holds even
// if the sync is cancelled meanwhile.
func TestListCutOff(t *testing.T) {
	broken := errors.New("the disk can't be read")
	for name, cancelled := range map[string]bool{"failed": false, "cancelled": true} {
		t.Run(name, func(t *testing.T) {
			far, near := newPipe()
			end := make(chan error, 1)
			go func() { end <- recvList(far, func(*dec) error { return nil }) }()
			p := newPeer("here", near)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			want, begun := broken, make(chan struct{})
			if cancelled {
				want = context.Canceled
			}
			wait := p.list(ctx, func(add func(func(*enc)) error) error {
				if err := add(func(e *enc) { e.string("a") }); err != nil {
					return err
				}
				<-begun
				if !cancelled {
					return broken
				}
				cancel()
				return add(func(e *enc) { e.string("b") })
			})
			close(begun)
			for range 2 {
				if _, err := p.recv(); !errors.Is(err, want) {
					t.Errorf("the answer: got %v, want %v", err, want)
				}
			}
			if err := wait(); !errors.Is(err, want) {
				t.Errorf("the list: got %v, want %v", err, want)
			}
			near.close()
			p.leave()
			if err := <-end; err == nil {
				t.Error("the end has a whole list")
			}
		})
	}
}

// TestRandom compares with the simplest model: after a push and a pull, every change at only
// one end is at both.
func TestRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	w.mkdir(w.remote)
	names := []string{"a", "a/b", "a/b/c", "a.b", "a-b", "d", "d/e", "f", "f/g/h"}
	for round := range 25 {
		root := []string{w.local, w.remote}[round%2]
		for range r.IntN(6) {
			name := names[r.IntN(len(names))]
			for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
				if info, err := os.Lstat(filepath.Join(root, dir)); err == nil && !info.IsDir() {
					w.remove(root, dir)
				}
			}
			if r.IntN(3) == 0 {
				w.remove(root, name)
				continue
			}
			w.remove(root, name)
			w.write(root, name, fmt.Sprint(r.IntN(3)))
		}
		verb := []Verb{Push, Pull}[round%2]
		if _, err := os.Lstat(w.remote); err != nil {
			verb = Push
		}
		w.run(verb, "")
		w.differ(withoutTimes(dump(t, w.local)), withoutTimes(dump(t, w.remote)))
	}
}

// withoutTimes leaves the times out: what both ends wrote alike has its own.
func withoutTimes(lines []string) []string {
	for i, line := range lines {
		if f := strings.Split(line, " "); len(f) == 4 {
			lines[i] = f[0] + f[1] + f[3]
		}
	}
	return lines
}

// pair is where the state of the two folders is.
func (w *world) pair() string {
	w.t.Helper()
	dir, err := w.pairDir()
	if err != nil {
		w.t.Fatal(err)
	}
	return dir
}

// known returns what the base has of a path.
func (w *world) known(name string) known {
	w.t.Helper()
	r, done, err := openBase(filepath.Join(w.pair(), "base"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer done()
	k, err := find(r, name, func(k *known) string { return k.entry.Path })
	if err != nil || k == nil {
		w.t.Fatalf("%s is not in the base: %v", name, err)
	}
	return *k
}

// TestStamps: the base's times of a file are valid at once. If a file is touched, they are
// valid again after the next look at it. So no file is hashed twice.
func TestStamps(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "dir/a", "1", "b", "2")
	settle()
	holds := func(name string) {
		t.Helper()
		tree, err := openTree(w.remote)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.close()
		now, err := tree.lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if k := w.known(name); !k.remote.holds(now.stamp()) {
			t.Errorf("%s was left as %+v, and is %+v", name, k.remote, now.stamp())
		}
	}
	w.run(Push, "")
	holds("dir/a")
	holds("b")
	w.write(w.local, "b", "changed")
	settle()
	w.run(Push, "")
	holds("b")
	<-time.After(time.Duration(ctimeSlack) + racy) // the clock of the file system is what is waited for
	for _, mode := range []fs.FileMode{0o600, 0o644} {
		if err := os.Chmod(filepath.Join(w.remote, "b"), mode); err != nil {
			t.Fatal(err)
		}
	}
	settle()
	if r := w.run(Push, ""); r.Changes() != 0 {
		t.Errorf("got %+v", r)
	}
	holds("b")
}

// TestChangedWhileCommitted: a program at the target changes a file that a sync has written, before
// the sync is done. The change is seen, whatever the time that the file has then.
func TestChangedWhileCommitted(t *testing.T) {
	w := newWorld(t)
	w.write(w.local, "a", "1", "b", "1")
	w.run(Push, "")
	w.write(w.local, "a", "2", "b", "2")
	changed := 0
	w.far = func(step string) error {
		if step != "remove journal" {
			return nil
		}
		changed++
		old := time.Now().Add(-time.Hour)
		w.write(w.remote, "a", "by a program")
		return os.Chtimes(filepath.Join(w.remote, "a"), old, old)
	}
	w.run(Push, "")
	w.far = nil
	if changed != 1 || w.read(w.remote, "b") != "2" {
		t.Fatalf("changed %d times, b is %q", changed, w.read(w.remote, "b"))
	}
	settle()
	w.run(Pull, "")
	if got := w.read(w.local, "a"); got != "by a program" {
		t.Errorf("the pull left %q", got)
	}
}

// A state folder that can't be made is refused with the variable that names another one.
func TestNoStateFolder(t *testing.T) {
	w := newWorld(t)
	w.State = filepath.Join(w.local, "file", "state")
	if err := os.WriteFile(filepath.Join(w.local, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := w.Run(t.Context())
	e, ok := err.(*fail.Error)
	if !ok || e.Code != CodeDenied || !strings.Contains(e.Hint, "XDG_STATE_HOME=DIR") {
		t.Errorf("got %#v", err)
	}
}
