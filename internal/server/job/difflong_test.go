package job

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/unidiff"
)

// long is a script of an agent that commits a text of 2.1 MiB first in order, many lines, and files that a pull holds.
const long = `mkdir -p zz/.vscode; echo '{"tasks":1}' >zz/.vscode/tasks.json; printf '[alias]\n' >zz/.gitconfig; echo node_modules >zz/.envrc
head -c 2200000 /dev/zero | tr '\0' A >aa-data.txt; seq 30000 >ab-lines.txt; seq 30000 >.vimrc
yes | head -c 17000000 >ae-huge; head -c 700000 /dev/zero >ac-zeros; : >ad-empty; seq 99 >old; ln -s old turned
for name in '-O' '#x' 'a*' ' b' 'c
d' 'back\slash' 'qu"ote' "it's" ':(top)z' 'tab	x' '%s' "$(printf 'caf\303\251')" "$(printf 'not\377utf')" '\0101'; do echo "$name" >"$name"; done
git add -A; git commit -q -m long
git mv old renamed; rm turned; echo 'a file' >turned; git add -A; git commit -q -m turned
`

// TestDiffLong: a file whose lines are too many is named with its counts, and says that they
// are left out. It keeps away no other file, and no line of one: while the job runs, in its
// commits, and in its uncommitted changes. A pull names the same files.
func TestDiffLong(t *testing.T) {
	for name, far := range map[string]bool{"here": false, "far": true} {
		t.Run(name, func(t *testing.T) {
			b := benchAt(t, far)
			job := b.begin(long + `head -c 2200000 /dev/zero | tr '\0' B >aa-left.txt; echo evil >zz/.envrc; rm aa-data.txt; echo x >"$said"`)
			review := cove.Review{Client: b.server.Client()}
			told := func(d cove.JobDiff, err error) map[string]string {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				all := map[string]string{}
				for _, f := range d.Files {
					lines := 0
					for _, h := range f.Hunks {
						lines += len(h.Lines)
					}
					if f.LeftOut == "" && lines != f.Added+f.Deleted || f.LeftOut != "" && lines != 0 || f.Uncounted != (f.Path == "ae-huge") {
						t.Errorf("of %q there are %d lines, and it says %+v", f.Path, lines, f)
					}
					all[f.Path] += fmt.Sprintf("%s %s +%d -%d %s", f.Status, f.NewMode, f.Added, f.Deleted, f.LeftOut)
					if f.Binary {
						all[f.Path] += "binary"
					}
				}
				if d.Cut != cutTexts || d.Unnamed {
					t.Errorf("it is cut: %q, %v", d.Cut, d.Unnamed)
				}
				if held := []string{".vimrc", "zz/.envrc", "zz/.gitconfig", "zz/.vscode/tasks.json"}; len(d.Files) > 9 {
					var first []string
					for _, f := range d.Files[:len(held)] {
						first = append(first, f.Path)
					}
					if slices.Sort(first); !slices.Equal(first, held) {
						t.Errorf("%q come first", first)
					}
				}
				return all
			}
			const added = "added 100644 +1 -0 "
			want := map[string]string{
				"zz/.vscode/tasks.json": added, "zz/.gitconfig": added, "zz/.envrc": added, "aa-data.txt": added + "too long",
				"ab-lines.txt": "added 100644 +30000 -0 too long", ".vimrc": "added 100644 +30000 -0 too long", "ac-zeros": "added 100644 +0 -0 binary",
				"ae-huge": "added 100644 +0 -0 too long", "ad-empty": "added 100644 +0 -0 ", "renamed": "added 100644 +99 -0 ", "turned": added, "x": added, "y": added,
				"-O": added, "#x": added, "a*": added, string(' ') + "b": added, "c\nd": "added 100644 +2 -0 ", `back\slash`: added, `qu"ote`: added, "it's": added, ":(top)z": added,
				"tab\tx": added, "%s": added, "café": added, "not\uFFFDutf": added, `\0101`: added,
			}
			live := maps.Clone(want)
			delete(live, "aa-data.txt")
			live["aa-left.txt"] = added + "too long"
			if got := told(review.Diff(t.Context(), job.ID)); !maps.Equal(got, live) {
				t.Errorf("at work it is\n%q, want\n%q", got, live)
			}
			if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
				t.Fatal(err)
			}
			job = b.await(job.ID)
			d, err := review.Diff(t.Context(), job.ID)
			if got := told(d, err); !maps.Equal(got, want) || !d.Apart {
				t.Errorf("ended it is (apart: %v)\n%q, want\n%q", d.Apart, got, want)
			}
			left := map[string]string{"aa-left.txt": added + "too long", "aa-data.txt": "deleted  +0 -1 too long", "zz/.envrc": "modified  +1 -1 "}
			if got := told(review.Leftover(t.Context(), job.ID)); !maps.Equal(got, left) {
				t.Errorf("left is\n%q, want\n%q", got, left)
			}
			if !far {
				alsoPulled(t, b, job, d)
			}
		})
	}
}

// alsoPulled: a pull counts as many files as a review names, and holds the same.
func alsoPulled(t *testing.T, b *bench, job cove.Job, d cove.JobDiff) {
	t.Helper()
	sum := b.summary(job, d)
	var holds, held []string
	for _, r := range sum.Risky {
		holds = append(holds, r.Path)
	}
	for _, f := range d.Files {
		if f.Risk != "" {
			held = append(held, f.Path)
		}
	}
	slices.Sort(holds)
	if slices.Sort(held); !slices.Equal(slices.Compact(holds), held) || len(sum.Files) != len(d.Files) {
		t.Errorf("a pull holds %q of %d files; the review has %q of %d", holds, len(sum.Files), held, len(d.Files))
	}
}

// textOf is git's diff of an added file of one line.
func textOf(path, line string) string {
	return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/%[1]s\n@@ -0,0 +1 @@\n+%[2]s\n", path, line)
}

// answerOf is an answer of added files with these diffs.
func answerOf(paths []string, counts, diff string) string {
	zeros, id := strings.Repeat("0", 40), strings.Repeat("a", 40)
	var b strings.Builder
	for _, p := range paths {
		b.WriteString(":000000 100644 " + zeros + " " + id + " A\x00" + p + "\x00")
	}
	return b.String() + "\x00\x00\x00\x00\n\n" + id + " blob 1\n\n\x00\x00" + counts + "\x00" + diff
}

// TestHostileDiffTexts: however a diff is made, what is kept of it is in bounds. The lines of
// each file are there once, or the file says why they are left out.
func TestHostileDiffTexts(t *testing.T) {
	big := strings.Repeat("x", maxFileText)
	half := strings.Repeat("x", maxFileText/2)
	lines := strings.Replace(textOf("a", "+"), "+1 @@\n", fmt.Sprintf("+1,%d @@\n", maxFileLines+1), 1) + strings.Repeat("+\n", maxFileLines)
	many := func(of string) (all string) {
		for i := range 6 {
			all += textOf(fmt.Sprint("many", i), of)
		}
		return all
	}
	manyNames := []string{"many0", "many1", "many2", "many3", "many4", "many5"}
	ab := []string{"a", "b"}
	const counts = "7\t0\ta\x009\t0\tb\x00"
	for name, c := range map[string]struct {
		paths        []string
		counts, diff string
		cut          string
		left         map[string]string
	}{
		"all":                 {ab, counts, textOf("a", "1") + textOf("b", "2"), "", nil},
		"a long line":         {ab, counts, textOf("a", big) + textOf("b", "2"), cutTexts, map[string]string{"a": leftLong}},
		"many lines":          {ab, counts, lines + textOf("b", "2"), cutTexts, map[string]string{"a": leftLong}},
		"a header in a line":  {ab, counts, textOf("a", big+"\n+diff --git a/b b/b") + textOf("b", "2"), cutTexts, map[string]string{"a": leftLong}},
		"long together":       {manyNames, "", many(half + half[:len(half)/2]), cutTexts, map[string]string{"many5": leftTogether}},
		"one is not there":    {ab, counts, textOf("b", "2"), cutTexts, map[string]string{"a": leftUntold}},
		"nothing is there":    {ab, "", "", cutTexts, map[string]string{"a": leftUntold, "b": leftUntold}},
		"another one":         {ab, counts, textOf("a", "1") + textOf("b", "2") + textOf("c", "3"), unidiff.CutOdd, nil},
		"one twice":           {ab, counts, textOf("a", "1") + textOf("a", "1") + textOf("b", "2"), unidiff.CutOdd, nil},
		"a part of one":       {ab, counts, textOf("b", "2") + strings.Replace(textOf("a", "1"), "+1 @@", "+1,3 @@", 1), unidiff.CutOdd, map[string]string{"a": leftUntold}},
		"a rename of nothing": {ab, counts, "diff --git a/c b/a\nsimilarity index 90%\nrename from c\nrename to a\n" + textOf("b", "2"), unidiff.CutOdd, map[string]string{"a": leftUntold}},
		"a rename of itself":  {ab, counts, "diff --git a/a b/a\nsimilarity index 90%\nrename from a\nrename to a\n" + textOf("b", "2"), unidiff.CutOdd, map[string]string{"a": leftUntold}},
		"nonsense":            {ab, counts, "x" + textOf("a", "1") + textOf("b", "2"), unidiff.CutOdd, map[string]string{"a": leftUntold}},
		"endless":             {ab, counts, textOf("b", "2") + textOf("a", strings.Repeat(big, maxReadText/maxFileText+1)), cutTexts, map[string]string{"a": leftLong, "b": ""}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			all := &room{all: maxHeard, each: eachHeard}
			l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(answerOf(c.paths, c.counts, c.diff))), hold: &share{of: all, by: "a"}}
			what, err := l.listen(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := what.namedWeight() + diffWeight*int64(len(what.diff)); all.held != want || len(what.diff) > unidiff.MaxBytes {
				t.Errorf("%d bytes are held, want %d", all.held, want)
			}
			var d cove.JobDiff
			if what.fill(&d); d.Cut != c.cut || d.Unnamed || len(d.Files) != len(c.paths) {
				t.Errorf("got %q, %v, %d files", d.Cut, d.Unnamed, len(d.Files))
			}
			for _, f := range d.Files {
				if f.LeftOut != c.left[f.Path] || (f.LeftOut == "") != (len(f.Hunks) == 1) || f.Status != cove.DiffAdded {
					t.Errorf("got %.300q", fmt.Sprintf("%+v", f))
				}
				if want := map[string]int{"a": 7, "b": 9}[f.Path]; f.LeftOut != "" && (f.Uncounted != (c.counts == "") || c.counts != "" && f.Added != want) {
					t.Errorf("%q: +%d, counted: %v", f.Path, f.Added, !f.Uncounted)
				}
			}
		})
	}
	full := &room{all: 64 << 10, each: eachHeard}
	l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(answerOf(ab, counts, textOf("a", half)))), hold: &share{of: full}}
	if _, err := l.listen(t.Context()); !errors.Is(err, errNoRoom) {
		t.Errorf("without room: %v", err)
	}
}

// TestManyNamed: if there are more files than a review names, it names those that a pull
// holds, and says that there are more. If there are more files than it shows with their lines,
// the others are named.
func TestManyNamed(t *testing.T) {
	for _, n := range []int{unidiff.MaxFiles + 5, maxNamed + 5} {
		var paths []string
		var diff, counts strings.Builder
		for i := range n {
			paths = append(paths, fmt.Sprintf("a%05d", i))
			counts.WriteString("1\t0\t" + paths[i] + "\x00")
		}
		paths = append(paths, "zz/.envrc")
		counts.WriteString("1\t0\tzz/.envrc\x00")
		diff.WriteString(textOf("zz/.envrc", "evil"))
		for _, p := range paths[:unidiff.MaxFiles-1] {
			diff.WriteString(textOf(p, "x"))
		}
		l := listener{in: io.Discard, out: bufio.NewReader(strings.NewReader(answerOf(paths, counts.String(), diff.String())))}
		what, err := l.listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var d cove.JobDiff
		what.fill(&d)
		if len(d.Files) != min(n+1, maxNamed) || d.Files[0].Path != "zz/.envrc" || d.Files[0].Risk == "" || len(d.Files[0].Hunks) != 1 {
			t.Errorf("%d files: %d are named, the first is %+v", n, len(d.Files), d.Files[0])
		}
		if d.Unnamed != (n > maxNamed) || d.Cut != map[bool]string{false: cutTexts, true: cutNamed}[d.Unnamed] {
			t.Errorf("%d files: it is cut: %q, %v", n, d.Cut, d.Unnamed)
		}
		if last := d.Files[len(d.Files)-1]; last.LeftOut != leftMany || last.Added != 1 || last.Uncounted {
			t.Errorf("%d files: the last is %+v", n, last)
		}
	}
}
