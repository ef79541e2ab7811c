package job

import (
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
			for ev, err := range b.server.Client().JobEvents(t.Context(), job.ID, 1, true) { // it works before the server has heard that it does
				if err != nil {
					t.Fatal(err)
				}
				if ev.Type == "state" && ev.State == cove.JobRunning {
					break
				}
			}
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
