package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/unidiff"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/sprites"
)

// changes is an agent's script that changes a lot.
const changes = `mkdir -p .github/workflows sub; echo 'on: push' >.github/workflows/ci.yml; printf 'a\nb\n' >sub/two; git add .; git commit -q -m "second
with more"; echo z >untracked; git config core.fsmonitor "touch $HOME/ran"; git config diff.external false; git config color.diff always; git config diff.noprefix true
echo x >"$said"`

// benchAt is a bench with a server at work, of jobs here or at a backend.
func benchAt(t *testing.T, far bool) *bench {
	if !far {
		b := newBench(t)
		b.serve(0, 0)
		return b
	}
	b, s := newFarBench(t)
	s.work(b)
	return b
}

// summary is the summary of a pull of a job whose review is d.
func (b *bench) summary(job cove.Job, d cove.JobDiff) gitwork.Summary {
	t := b.t
	t.Helper()
	repo := filepath.Join(t.TempDir(), "pulled")
	b.git(t.TempDir(), "init", "-q", "--bare", repo)
	b.git(repo, "fetch", "-q", strings.Replace(job.Workdir, boot.Home, b.home, 1), "HEAD:refs/heads/main")
	b.git(repo, "bundle", "unbundle", filepath.Join(b.home, ".cove", "jobs", job.ID, "out.bundle"))
	pulled, err := gitwork.Open(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := pulled.Summary(t.Context(), d.Base, d.Head)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestDiff: while a job runs, its review shows its changed files, including those that git
// does not know yet. Once it has ended, the review shows its commits. Both hold here and at a
// backend. The agent's settings of git change nothing.
func TestDiff(t *testing.T) {
	for name, far := range map[string]bool{"here": false, "far": true} {
		t.Run(name, func(t *testing.T) {
			b := benchAt(t, far)
			job := b.begin(changes)
			review := cove.Review{Client: b.server.Client()}
			paths := func(d cove.JobDiff) (all []string) {
				for _, f := range d.Files {
					all = append(all, f.Status+" "+f.Path)
				}
				return all
			}
			const risky = "added .github/workflows/ci.yml"
			want := []string{risky, "added sub/two", "added untracked", "added x", "added y"}
			for _, ended := range []bool{false, true} {
				if ended {
					if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
						t.Fatal(err)
					}
					job = b.await(job.ID)
				}
				d, err := review.Diff(t.Context(), job.ID)
				if err != nil {
					t.Fatal(err)
				}
				got := paths(d)
				if ended {
					left, err := review.Leftover(t.Context(), job.ID)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, paths(left)...)
					slices.Sort(got)
				}
				if compares := map[bool]string{false: cove.DiffFiles, true: cove.DiffCommits}[ended]; d.Compares != compares || d.HistoryEnds != "" {
					t.Errorf("ended %v: it compares %q, and its history ends at %q", ended, d.Compares, d.HistoryEnds)
				}
				if !slices.Equal(got, want) || d.Cut != "" || d.Base != job.Base || (d.Head != "") != ended {
					t.Errorf("ended %v: got %q, %q, %q of %q", ended, got, d.Cut, d.Head, d.Base)
				}
				if d.Files[0].Risk == "" || d.Files[1].Risk != "" || d.Files[1].Added != 2 || d.Files[1].Hunks[0].Lines[1].Text != "b" {
					t.Errorf("ended %v: got %+v", ended, d.Files)
				}
				subjects := []string{"second with more", "work"}
				var told []string
				for _, c := range d.Commits {
					told = append(told, c.Subject)
				}
				if !slices.Equal(told, subjects) || d.Commits[len(d.Commits)-1].Time.IsZero() {
					t.Errorf("ended %v: the commits are %+v", ended, d.Commits)
				}
			}
			if err := b.server.Client().At(job.Backend).Delete(t.Context(), job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := review.Diff(t.Context(), job.ID); code(err) != "sprite_gone" || !strings.Contains(err.Error(), "not there any more") {
				t.Errorf("without its sprite: %v", err)
			}
			if !far {
				tooManyComments(t, b, job.ID)
			}
		})
	}
}

// tooManyComments: one comment more than a job can have is refused, and not by a word that to wait would help.
func tooManyComments(t *testing.T, b *bench, job string) {
	t.Helper()
	c := cove.JobComment{Path: "x", Side: cove.SideNew, Line: 1, Text: "why?"}
	for range store.MaxComments {
		if _, err := b.server.Store.Comments.Add(t.Context(), job, c); err != nil {
			t.Fatal(err)
		}
	}
	_, err := cove.Review{Client: b.server.Client()}.Add(t.Context(), job, c)
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.Code != "conflict" || e.RetryAfterSeconds != 0 || !strings.Contains(e.Message, "500 comments") || !strings.Contains(e.Hint, "delete some") {
		t.Errorf("one comment too many: %+v", err)
	}
}

// TestDiffWarns: the review warns of each change that a pull holds or lists, in the pull's
// words. It does so while the job runs and when it has ended.
func TestDiffWarns(t *testing.T) {
	var script strings.Builder
	want := map[string]string{} // how each path is told of: held, listed, or not
	for _, c := range []struct{ told, path, how string }{
		{"held", ".github/workflows/ci.yml", ""},
		{"held", ".VSCode/tasks.json", ""},
		{"held", "hooks/pre-commit", ""},
		{"held", ".newest", ""},
		{"held", "sub/.envrc", ""},
		{"held", "odd\nname/CLAUDE.md", ""},
		{"held", ".idea", "ln -s src/idea .idea"},
		{"held", "src/idea/run.xml", ""},
		{"held", "etc", "ln -s ../../etc etc"},
		{"held", "config", "ln -s .git/config config"},
		{"", "near", "ln -s src/a.go near"},
		{"held", "docs/HEAD", ""},
		{"held", "docs/objects/x", ""},
		{"held", "docs/refs/x", ""},
		{"held", ".gitignore", "printf '*.log\\n!keep.log\\n' >.gitignore"},
		{"", "more/.gitignore", "printf '*.log\\n' >more/.gitignore"},
		{"held", "hooked/package.json", `echo '{"lint-staged": {"*": "sh x.sh"}}' >hooked/package.json`},
		{"listed", "tested/package.json", `echo '{"scripts": {"test": "sh x.sh"}}' >tested/package.json`},
		{"", "plain/package.json", `echo '{"version": "1"}' >plain/package.json`},
		{"listed", "sub/Makefile", ""},
		{"listed", "build.rs", ""},
		{"held", "CODEOWNERS", ""},
		{"held", "vendored", "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),vendored; mkdir vendored"},
		{"", "src/a.go", ""},
		{"", "x", "true"}, // of each job here
		{"", "y", "true"},
	} {
		want[c.path] = c.told
		if c.how == "" {
			c.how = "echo x >'" + c.path + "'"
		}
		script.WriteString("mkdir -p \"$(dirname '" + c.path + "')\"; " + c.how + "\n")
	}
	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(script.String() + `git add -A; git commit -q -m all; echo x >"$said"`)
	review := func() cove.JobDiff {
		t.Helper()
		d, err := cove.Review{Client: b.server.Client()}.Diff(t.Context(), job.ID)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	warnings := func(d cove.JobDiff) map[string]string {
		all, rank := map[string]string{}, 0
		for _, f := range d.Files {
			now := 2
			switch {
			case f.Risk != "":
				all[f.Path], now = "held: "+f.Risk, 0
			case f.Listed != "":
				all[f.Path], now = "listed: "+f.Listed, 1
			}
			if kind, _, _ := strings.Cut(all[f.Path], ":"); kind != want[f.Path] {
				t.Errorf("%q is told of as %q, want %q", f.Path, all[f.Path], want[f.Path])
			}
			if now < rank {
				t.Errorf("%q comes after what matters less", f.Path)
			}
			rank = now
		}
		if len(d.Files) != len(want) {
			t.Errorf("there are %d files, want %d", len(d.Files), len(want))
		}
		return all
	}
	live := warnings(review())
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	d := review()
	ended := warnings(d)
	rows, err := b.manager.Store.Sprites.List(t.Context(), store.SpriteFilter{Prefix: store.InstallName})
	if err != nil || len(rows) != 0 || !d.Apart {
		t.Errorf("told apart: %v; the sprites %+v are left, %v", d.Apart, rows, err)
	}
	if !maps.Equal(live, ended) {
		t.Errorf("while it ran: %q; now: %q", live, ended)
	}

	sum := b.summary(job, d)
	byPull := map[string]string{}
	for kind, risks := range map[string][]gitwork.Risk{"held: ": sum.Risky, "listed: ": sum.Listed} {
		for _, r := range risks {
			if byPull[r.Path] != "" {
				byPull[r.Path] += "; " + r.Why
			} else {
				byPull[r.Path] = kind + r.Why
			}
		}
	}
	if !maps.Equal(ended, byPull) {
		t.Errorf("the review says %q; a pull says %q", ended, byPull)
	}
}

// TestDiffOfHostile: the review shows what a pull takes. The agent hides none of it by
// settings of its repository, or by a program in place of git. If the bundle is not the one
// that was collected, nothing is shown. The bundle's content is not read in the clone.
func TestDiffOfHostile(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(`echo evil >evil; git add .; git commit -q -m evil
evil=$(git rev-parse HEAD); first=$(git rev-parse HEAD~2)
git replace "$evil^{tree}" "$first^{tree}"; git replace "$evil" "$first"; echo "$evil $first" >.git/info/grafts
echo '* -diff' >.git/info/attributes; echo x >"$said"`)
	check := func(when string, job cove.Job) {
		t.Helper()
		d, err := cove.Review{Client: b.server.Client()}.Diff(t.Context(), job.ID)
		if err != nil {
			t.Fatal(when, err)
		}
		var files, subjects []string
		for _, f := range d.Files {
			files = append(files, f.Path)
		}
		for _, c := range d.Commits {
			subjects = append(subjects, c.Subject)
		}
		if !slices.Contains(files, "evil") || !slices.Contains(subjects, "evil") || !slices.Contains(subjects, "work") {
			t.Errorf("%s: got the files %q of the commits %q", when, files, subjects)
		}
		if i := slices.Index(files, "evil"); job.State.Terminal() && i >= 0 && len(d.Files[i].Hunks) != 1 {
			t.Errorf("%s: got %+v", when, d.Files[i])
		}
	}
	bin := filepath.Join(b.home, "bin")
	hide := func() {
		t.Helper()
		if err := errors.Join(os.MkdirAll(bin, 0o755), executable.WriteFile(filepath.Join(bin, "git"), []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	hide()
	check("at work", job)
	if err := os.RemoveAll(bin); err != nil { // the supervisor collects by it
		t.Fatal(err)
	}
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	hide()
	bundle := filepath.Join(b.home, ".cove", "jobs", job.ID, "out.bundle")
	if err := errors.Join(os.Rename(bundle, bundle+".kept"), os.WriteFile(bundle, []byte("another"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if d, err := (cove.Review{Client: b.server.Client()}).Diff(t.Context(), job.ID); code(err) != "not_kept" || !strings.Contains(err.Error(), "not as it was collected") {
		t.Errorf("another bundle: %+v, %v", d, err)
	}
	if err := os.Rename(bundle+".kept", bundle); err != nil {
		t.Fatal(err)
	}
	clone := strings.Replace(job.Workdir, boot.Home, b.home, 1)
	id := b.git(clone, "hash-object", "evil")
	loose := filepath.Join(clone, ".git", "objects", id[:2], id[2:])
	if err := errors.Join(os.Remove(loose), os.WriteFile(loose, []byte("nonsense"), 0o444)); err != nil {
		t.Fatal(err)
	}
	check("ended", job) // by the bundle: the clone's own object is not read
}

// TestDiffsOfToken: a sprite that makes diffs wait holds up only the diffs of its job and
// token.
func TestDiffsOfToken(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	stuck := b.begin(`rm .git/index; mkfifo .git/index; echo x >"$said"`)
	free := b.begin(`echo x >"$said"`)
	holder, _ := by(t, b.server.Client(), cove.TokenScope{All: true})
	other, _ := by(t, b.server.Client(), cove.TokenScope{All: true})
	ctx, cancel := context.WithCancel(t.Context())
	const most = 16 // a quarter of all
	ended := make(chan error, most+1)
	for range most + 1 {
		go func() { _, err := (cove.Review{Client: holder}).Diff(ctx, stuck.ID); ended <- err }()
	}
	if err := <-ended; code(err) != "limit" { // the others wait
		t.Errorf("the first of %d that ends: %v", most+1, err)
	}
	for name, c := range map[string]*cove.Client{"another token": other, "the owner": b.server.Client()} {
		if d, err := (cove.Review{Client: c}).Diff(t.Context(), free.ID); err != nil || len(d.Files) == 0 {
			t.Errorf("%s: %+v, %v", name, d.Files, err)
		}
	}
	cancel()
	for range most {
		if err := <-ended; err == nil {
			t.Error("a diff of the sprite that answers nothing")
		}
	}
}

// TestApartLeft: if a server is killed during a review, the next one removes the review's
// sprite. No more reviews than slots are at work at once.
func TestApartLeft(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	left := store.InstallName + "abcdef01"
	if _, err := b.manager.Client.Create(t.Context(), sprites.CreateRequest{Name: left, Owner: store.InstallOwner + "review:abc123"}); err != nil {
		t.Fatal(err)
	}
	if err := b.manager.installs.clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.manager.Client.Get(t.Context(), left); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
	a := b.manager.jobSprites.differ.apart
	a.packs.held = maxPacks - 1
	for size, want := range map[int]error{freePack: nil, freePack + 2: errNoRoom} {
		room := &share{of: a.packs, free: freePack}
		file, _, err := a.collect(t.Context(), room, func(_ context.Context, w io.Writer) error {
			_, err := w.Write(make([]byte, size))
			return err
		})
		if !errors.Is(err, want) || a.packs.held != maxPacks-1 {
			t.Errorf("%d bytes beside those of others: %v; %d are held", size, err, a.packs.held)
		}
		if err == nil {
			_ = file.Close()
		}
	}
	a.packs.held = 0
	for range apartAtOnce {
		a.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.tell(ctx, cove.JobDiff{}, nil, io.Discard, func(context.Context, io.Writer) error { return nil }); !errors.Is(err, context.Canceled) || !errors.Is(err, errNoRoom) {
		t.Errorf("one more than there are slots: %v", err)
	}
	for i := range maxKept + 1 {
		a.keep(keptDiff{JobDiff: cove.JobDiff{Job: "j", Head: strconv.Itoa(i)}})
	}
	if _, ok := a.again(cove.JobDiff{Job: "j", Head: "0"}); ok || len(a.kept) != maxKept {
		t.Errorf("%d diffs are kept", len(a.kept))
	}
	if d, ok := a.again(cove.JobDiff{Job: "j", Head: "2"}); !ok || d.Head != "2" {
		t.Errorf("got %+v, %v", d, ok)
	}
}

// TestNonsense: an answer that git does not give is an error, and one that is too long is
// bounded. Nothing of either is taken for changes.
func TestNonsense(t *testing.T) {
	id := strings.Repeat("a", 40)
	raw := ":100644 100644 " + id + " " + id + " M\x00a\x00\x00"
	const trees, empty = "\x00\x00\x00", "\n\n\n\x00" // and no log, and no counts:
	const none = "\x00\x00"
	sized := "\n\n" + id + " blob 1\n\n\x00"
	for text, want := range map[string]string{
		"":                                  "not understood",
		"\x00" + trees + empty + none:       "",
		raw + trees + sized + none + "diff": "",
		raw + trees + sized + "\x001\t2\ta\x00\x00":                                   "",
		raw + trees + sized + "\x00-\t-\ta\x00\x00":                                   "",
		raw + trees + sized + "\x001\t-\ta\x00\x00":                                   "not understood",
		raw + trees + sized + "\x00-1\t0\ta\x00\x00":                                  "not understood",
		raw + trees + sized + "\x001\ta\x00\x00":                                      "not understood",
		raw + trees + sized + "\x001\t2\ta":                                           "not understood",
		raw + trees + "\n\n" + id + " blob 4\nx\n\n":                                  "not understood",
		raw + trees + "\n\n" + id + "0 blob 4\n\n":                                    "not understood",
		raw + trees + "\n\n" + id + " blob 4\n" + id:                                  "not understood",
		":1 2 3\x00a\x00\x00":                                                         "not understood",
		":100644 100644 " + id + " x M\x00a\x00\x00":                                  "not understood",
		strings.Repeat("x", maxRecord+9):                                              "longer than",
		strings.Replace(raw, "\x00a\x00", "\x00"+strings.Repeat("a", 5000)+"\x00", 1): "a pull refuses it",
		strings.Replace(raw, "\x00a", "\x00package.json", 1) + trees + id + " blob 4\n\n" + id + " blob 9999999\n": "not understood",
		strings.Replace(raw, "\x00a", "\x00package.json", 1) + trees + id + " blob 4\n\n" + id + " blob 4\n{}":     "not understood",
		strings.Replace(raw, "\x00a", "\x00package.json", 1) + trees + strings.Repeat("b", 40) + " blob 4\n":       "not understood",
	} {
		l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(text))}
		what, err := l.listen(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %+v, %v; want %q", text, what, err, want)
		}
	}
	asks := strings.Replace(raw, "\x00a", "\x00package.json", 1) + trees
	for answer, want := range map[string]error{"\n": errNonsense, id + " blob 2\n\n\n": errNonsense, id + " missing\n\n\n": errMissing} {
		l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(asks + answer + "\n\n\x00" + none))}
		if what, err := l.listen(t.Context()); !errors.Is(err, want) {
			t.Errorf("%q: got %+v, %v; want %v", answer, what, err, want)
		}
	}
	long := strings.Repeat(":000000 100644 "+id+" "+id+" A\x00"+strings.Repeat("n", 400)+"\x00", maxRaw/400) + raw + trees + sized + none
	most := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(long))}
	what, err := most.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := cove.JobDiff{}
	if what.fill(&d); d.Cut != cutChanges || !d.Unnamed || len(d.Files) == 0 || d.Files[0].Risk == "" {
		t.Errorf("more changes than are judged: %q, %+v", d.Cut, d.Files)
	}
	huge := ":000000 100644 " + strings.Repeat("0", 40) + " " + id + " A\x00src/plain.go\x00\x00" + strings.Repeat("100644 blob "+id+"\t"+strings.Repeat("n", 4000)+"\x00", maxTree/4000) + trees + "\n\n" + id + " blob 1\n\n\x00" + none
	l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(huge))}
	what, err = l.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d = cove.JobDiff{}
	if what.fill(&d); len(d.Files) != 1 || d.Files[0].Risk == "" || d.Files[0].Status != cove.DiffAdded {
		t.Errorf("a tree that is too large: got %+v", d.Files)
	}
}

// TestDiffRoom: however much sprites answer, the memory that is kept of it is bounded, for one
// token and for all. There is room for one answer of the greatest length. A diff counts until
// its caller is done with it.
func TestDiffRoom(t *testing.T) {
	id := strings.Repeat("a", 40)
	var answer strings.Builder
	fill := func(most int, format string) {
		for n := 0; n < most; {
			more, _ := fmt.Fprintf(&answer, format, answer.Len())
			n += more
		}
		answer.WriteByte(0)
	}
	fill(maxRaw, ":000000 100644 "+id+" "+id+" A\x00%x\x00")
	fill(keptTree, "120000 blob "+id+"\t%x\x00")
	fill(keptTree, "%x\x00")
	answer.WriteString("\x00" + id + " blob 1\n\n" + id + " blob 1\nx\n\n" + id + " blob 1\n\n\x00\x00\x00")
	for i := range 5 {
		answer.WriteString(textOf(strconv.Itoa(i), strings.Repeat("x", 400<<10)))
	}
	all := &room{all: maxHeard, each: eachHeard}
	var shares []*share
	var heard []*told
	listen := func(by string) error {
		h := &share{of: all, by: by}
		l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(answer.String())), hold: h}
		what, err := l.listen(t.Context())
		if shares = append(shares, h); err == nil {
			heard = append(heard, what)
		} else {
			h.shrink(0)
		}
		return err
	}
	memory := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := memory()
	if err := listen("a"); err != nil {
		t.Fatalf("the longest answer that is kept: %v", err)
	}
	if n := len(heard[0].diff); n < unidiff.MaxBytes/10*9 || all.held > eachHeard/2 {
		t.Errorf("%d bytes of its diff are kept, and count as %d", n, all.held)
	}
	over := error(nil)
	for n := 0; over == nil && n < 4; n++ {
		over = listen("a")
	}
	if !errors.Is(over, errNoRoom) || all.by["a"] > eachHeard {
		t.Errorf("many of a token: %v, which has %d bytes", over, all.by["a"])
	}
	if got := memory() - before; got > all.held {
		t.Errorf("%d bytes count as %d", got, all.held)
	}
	full := error(nil)
	for n := 0; full == nil && n < 6; n++ {
		full = listen("")
	}
	if !errors.Is(full, errNoRoom) || all.held > maxHeard {
		t.Errorf("as many as there may be: %v; they have %d bytes", full, all.held)
	}
	for by, n := range map[string]int64{"a": eachHeard, "b": maxHeard, "": maxHeard} {
		h := &share{of: all, by: by}
		if err := h.add(n); !errors.Is(err, errNoRoom) || h.taken != 0 {
			t.Errorf("%d bytes more of %q: %v", n, by, err)
		}
	}
	for _, h := range shares {
		h.shrink(0)
	}
	if all.held != 0 || len(all.by) != 0 || len(heard) == 0 {
		t.Errorf("%d bytes are held at the end, by %v; %d were heard", all.held, all.by, len(heard))
	}

	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(`echo x >"$said"`)
	d := b.manager.jobSprites.differ
	_, done, err := b.manager.Diff(t.Context(), job.ID, "", "")
	if err != nil || d.heard.held == 0 {
		t.Fatalf("got %v, %d bytes are held", err, d.heard.held)
	}
	if done(); d.heard.held != 0 {
		t.Errorf("%d bytes are held by nobody", d.heard.held)
	}
	d.heard.held = maxHeard
	_, err = cove.Review{Client: b.server.Client()}.Diff(t.Context(), job.ID)
	if e, ok := errors.AsType[*sprites.Error](err); code(err) != "limit" || !ok || e.RetryAfter() != roomRetry {
		t.Errorf("without room: %v", err)
	}
}

// TestHostileCommits: the commits that a sprite tells of are bounded.
func TestHostileCommits(t *testing.T) {
	id := strings.Repeat("a", 40)
	one := id + "\x1fAda\x1f1\x1fsubject"
	for text, want := range map[string]int{
		"": 0, one: 1, "x" + one: 0, id + "\x1fAda": 0, one + "\x00" + one[:44]: 1,
		id + "\x1f\xff\x1f-99999999999999999999\x1f" + strings.Repeat("\xff", 5000): 1,
		strings.Repeat(one+"\x00", maxCommits+9):                                    maxCommits,
	} {
		got := commits(text)
		if len(got) != want {
			t.Errorf("%.60q: %d commits", text, len(got))
		}
		for _, c := range got {
			if len(c.Subject) > 400 || !c.Time.IsZero() && c.Time.Unix() != 1 {
				t.Errorf("got %+v", c)
			}
		}
	}
}

// TestDiffOfRestored: a change that is committed, and undone in the work tree alone, is in the review, as a pull brings
// it. Uncommitted changes are a part of their own, judged like the first.
func TestDiffOfRestored(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(`mkdir -p .github/workflows; echo good >app; git add app; git commit -q -m good
echo evil >app; echo 'on: push' >.github/workflows/ci.yml; git add -A; git commit -q -m tidy
echo good >app; rm -r .github; echo x >.envrc; echo x >"$said"`)
	review := cove.Review{Client: b.server.Client()}
	if d, err := review.Leftover(t.Context(), job.ID); code(err) != "job_running" {
		t.Errorf("at work: %+v, %v", d, err)
	}
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	told := func(d cove.JobDiff, err error) map[string]string {
		t.Helper()
		if err != nil || d.Leftover != job.Leftover || !d.Apart {
			t.Fatalf("got %+v, %v", d, err)
		}
		all := map[string]string{}
		for _, f := range d.Files {
			all[f.Path] = f.Status
			if f.Risk != "" {
				all[f.Path] += ", held"
			}
			for _, h := range f.Hunks {
				for _, l := range h.Lines {
					all[f.Path] += " " + l.Kind + l.Text
				}
			}
		}
		return all
	}
	for range 2 { // the second is of what is kept
		d, err := review.Diff(t.Context(), job.ID)
		got, want := told(d, err), map[string]string{"app": "added +evil", ".github/workflows/ci.yml": "added, held +on: push", "x": "added +x", "y": "added +y"}
		if !maps.Equal(got, want) || d.Head != job.Head || d.Base != job.Base || d.Part != "" {
			t.Errorf("a pull brings %s..%s; got %q of %+v", job.Base, job.Head, got, d)
		}
		d, err = review.Leftover(t.Context(), job.ID)
		got, want = told(d, err), map[string]string{"app": "modified -evil +good", ".github/workflows/ci.yml": "deleted, held -on: push", ".envrc": "added, held +x"}
		if !maps.Equal(got, want) || d.Head != job.Leftover || d.Base != job.Head || d.Part != cove.DiffLeftover {
			t.Errorf("left uncommitted; got %q of %+v", got, d)
		}
	}
}

// TestDiffIncomplete: if root in the job's sprite leaves out or adds objects, the review
// fails: it never lacks a change or a warning. If commits are left out, or the clone is
// shallow, the review names the commit where the history ends. A sprite that lets a review
// wait holds up no other review. A history that goes back behind the base is whole.
func TestDiffIncomplete(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(`echo m >m; git add m; git commit -q -m m; git checkout -q -b side HEAD~2; echo s >s; git add s; git commit -q -m side; git checkout -q -; git merge -q --no-edit side
mkdir real; ln -s real .idea; git add -A; git commit -q -m link
mkdir -p real; echo x >real/run.xml; git add -A; git commit -q -m run; echo x >"$said"`)
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	d := b.manager.jobSprites.differ
	clone := strings.Replace(job.Workdir, boot.Home, b.home, 1)
	whole := cove.JobDiff{Job: job.ID, Base: job.Base, Head: job.Head}
	last := cove.JobDiff{Job: job.ID, Base: strings.TrimSpace(b.git(clone, "rev-parse", job.Head+"~1")), Head: job.Head}
	old := cove.JobDiff{Job: job.ID, Base: strings.TrimSpace(b.git(clone, "rev-parse", job.Head+"~3")), Head: job.Head}
	tell := func(of cove.JobDiff, script, after string) (*told, error) {
		var said head
		what, err := d.apart.tell(t.Context(), of, nil, &said, func(ctx context.Context, w io.Writer) error {
			cmd := d.command(ctx, job, diffPrologue+diffSetup+script+after, of)
			cmd.Stdout, cmd.Stderr = w, &said
			return cmd.Run()
		})
		return what, d.failed(t.Context(), job, err, said.String())
	}
	without := func(part string) string {
		lines := strings.SplitAfter(diffPack, "\n")
		n := len(lines)
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, part) })
		if len(lines) == n {
			t.Fatalf("no line has %q", part)
		}
		return strings.Replace(strings.Join(lines, ""), "&&\n}", "\n}", 1)
	}
	for name, c := range map[string]struct {
		of            cove.JobDiff
		script, after string
		want          string
	}{
		"whole":          {whole, diffPack, "", ""},
		"the last":       {last, diffPack, "", ""},
		"back":           {old, diffPack, "", ""},
		"bytes after it": {last, diffPack, `printf '\n\n'`, "junk"},
		"no links":       {last, without("120000 blob"), "", "missing"},
		"no commits":     {whole, without(`sed 's/^-//' &&`), "", ""},
		"no files":       {whole, without("2,4"), "", "unable to read"},
	} {
		what, err := tell(c.of, c.script, c.after)
		if name == "back" && err == nil && len(commits(what.log)) != 4 {
			t.Errorf("of a merge of what began before the base: %+v", commits(what.log))
		}
		if ends := map[string]string{"no commits": job.Head}[name]; err == nil && what.ends != ends {
			t.Errorf("%s: the history ends at %q, not %q", name, what.ends, ends)
		}
		if (err == nil) != (c.want == "") || err != nil && (code(err) != "not_kept" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, told: %v; want %q", name, err, what != nil, c.want)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	waits, ended := make(chan struct{}, apartAtOnce), make(chan error, apartAtOnce)
	for range apartAtOnce {
		go func() {
			_, err := d.apart.tell(ctx, whole, nil, io.Discard, func(ctx context.Context, _ io.Writer) error {
				waits <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			ended <- err
		}()
	}
	for range apartAtOnce {
		<-waits
	}
	if _, err := tell(whole, diffPack, ""); err != nil {
		t.Errorf("while others wait for their sprites: %v", err)
	}
	cancel()
	for range apartAtOnce {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a review whose sprite says nothing: %v", err)
		}
	}
}
