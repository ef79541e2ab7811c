package job

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// changes is a script by which an agent changes a lot.
const changes = `mkdir -p .github/workflows sub; echo 'on: push' >.github/workflows/ci.yml; printf 'a\nb\n' >sub/two; git add .; git commit -q -m "second
with more"; echo z >untracked; git config core.fsmonitor "touch $HOME/ran"; git config diff.external false; git config color.diff always; git config diff.noprefix true
echo x >"$said"`

// heard returns once the server has heard that a job works, which it may do before.
func (b *bench) heard(id string) {
	b.t.Helper()
	for ev, err := range b.server.Client().JobEvents(b.t.Context(), id, 1, true) {
		if err != nil {
			b.t.Fatal(err)
		}
		if ev.Type == "state" && ev.State == cove.JobRunning {
			return
		}
	}
}

// TestDiff: what a job has changed is told while it runs, by its files, also those that git does not know
// yet, and once it has ended by its commits; here and at a backend. Settings that the agent has
// made of git change nothing.
func TestDiff(t *testing.T) {
	for name, far := range map[string]bool{"here": false, "far": true} {
		t.Run(name, func(t *testing.T) {
			var b *bench
			if far {
				far, s := newFarBench(t)
				b = far
				s.work(b)
			} else {
				b = newBench(t)
				b.serve(0, 0)
			}
			job := b.begin(changes)
			b.heard(job.ID)
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
				if got := paths(d); !slices.Equal(got, want) || d.Cut != "" || d.Base != job.Base || (d.Head != "") != ended {
					t.Errorf("ended %v: got %q, %q, %q of %q", ended, got, d.Cut, d.Head, d.Base)
				}
				if d.Files[0].Risk == "" || d.Files[1].Risk != "" || d.Files[1].Added != 2 || d.Files[1].Hunks[0].Lines[1].Text != "b" {
					t.Errorf("ended %v: got %+v", ended, d.Files)
				}
				subjects := []string{"second with more", "work"}
				if ended {
					subjects = slices.Insert(subjects, 0, d.Commits[0].Subject) // of what was left uncommitted
				}
				var got []string
				for _, c := range d.Commits {
					got = append(got, c.Subject)
				}
				if !slices.Equal(got, subjects) || d.Commits[len(d.Commits)-1].Time.IsZero() {
					t.Errorf("ended %v: the commits are %+v", ended, d.Commits)
				}
			}
			if err := b.server.Client().At(job.Backend).Delete(t.Context(), job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := review.Diff(t.Context(), job.ID); code(err) != "sprite_gone" || !strings.Contains(err.Error(), "not there any more") {
				t.Errorf("without its sprite: %v", err)
			}
		})
	}
}

// TestDiffOfHostile: what a job has changed is told by what a pull takes. The agent hides none of it by settings of
// its repository, or by a program in place of git; and of a bundle that is another one than was collected
// nothing is told.
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
		if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "git"), []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	b.heard(job.ID)
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
	check("ended", job)
	if err := os.WriteFile(filepath.Join(b.home, ".cove", "jobs", job.ID, "out.bundle"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d, err := (cove.Review{Client: b.server.Client()}).Diff(t.Context(), job.ID); code(err) != "not_kept" || !strings.Contains(err.Error(), "not as it was collected") {
		t.Errorf("another bundle: %+v, %v", d, err)
	}
}

// TestDiffsOfToken: a sprite that lets diffs wait holds up those of its job and token, and nobody else's.
func TestDiffsOfToken(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	stuck := b.begin(`rm .git/index; mkfifo .git/index; echo x >"$said"`)
	b.heard(stuck.ID)
	free := b.begin(`echo x >"$said"`)
	b.heard(free.ID)
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

// TestHostileCommits: what a sprite says of commits is bounded.
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
