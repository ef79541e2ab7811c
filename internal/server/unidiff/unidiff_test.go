package unidiff

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-dev/cove"
)

const sample = `diff --git a/main.go b/main.go
index 1..2 100644
--- a/main.go
+++ b/main.go
@@ -1,3 +1,4 @@ func main() {
 a
-b
+B
+--- no header
 c
\ No newline at end of file
@@ -20 +21,0 @@
-gone
diff --git a/old name b/new name
similarity index 90%
rename from old name
rename to new name
diff --git "a/t\303\244b\tx" "b/t\303\244b\tx"
new file mode 100755
index 0..1
--- /dev/null
+++ "b/t\303\244b\tx"
@@ -0,0 +1 @@
+diff --git a/x b/x
diff --git a/.github/workflows/ci.yml b/.github/workflows/ci.yml
deleted file mode 100644
--- a/.github/workflows/ci.yml
+++ /dev/null
@@ -1 +0,0 @@
-on: push
diff --git a/x.png b/x.png
index 1..2
Binary files a/x.png and b/x.png differ
diff --git a/run b/run
old mode 100644
new mode 100755
`

func TestParse(t *testing.T) {
	files, cut := Parse(sample)
	if cut != "" || len(files) != 6 {
		t.Fatalf("got %d files, %q: %+v", len(files), cut, files)
	}
	for i := range files {
		switch files[i].Path {
		case ".github/workflows/ci.yml":
			files[i].Risk = "runs in CI"
		case "main.go":
			files[i].Listed = "runs when you build or test"
		}
	}
	RiskyFirst(files)
	type brief struct {
		path, old, status, modes string
		binary                   bool
		added, deleted, hunks    int
	}
	want := []brief{
		{".github/workflows/ci.yml", "", cove.DiffDeleted, "100644 ", false, 0, 1, 1},
		{"main.go", "", cove.DiffModified, " ", false, 2, 2, 2},
		{"new name", "old name", cove.DiffRenamed, " ", false, 0, 0, 0},
		{"täb\tx", "", cove.DiffAdded, " 100755", false, 1, 0, 1},
		{"x.png", "", cove.DiffModified, " ", true, 0, 0, 0},
		{"run", "", cove.DiffModified, "100644 100755", false, 0, 0, 0},
	}
	for i, f := range files {
		if got := (brief{f.Path, f.OldPath, f.Status, f.OldMode + " " + f.NewMode, f.Binary, f.Added, f.Deleted, len(f.Hunks)}); got != want[i] {
			t.Errorf("got %+v, want %+v", got, want[i])
		}
	}
	main := files[1].Hunks[0]
	lines := []cove.JobDiffLine{{Kind: " ", Old: 1, New: 1, Text: "a"}, {Kind: "-", Old: 2, Text: "b"}, {Kind: "+", New: 2, Text: "B"}, {Kind: "+", New: 3, Text: "--- no header"}, {Kind: " ", Old: 3, New: 4, Text: "c", NoNL: true}}
	if !reflect.DeepEqual(main.Lines, lines) || main.Section != "func main() {" || files[1].Hunks[1].OldStart != 20 {
		t.Errorf("got %+v", files[1].Hunks)
	}
}

// TestBounds: parts beyond the bounds are left out, and the result says so.
func TestBounds(t *testing.T) {
	file := func(name, body string) string {
		return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\n--- a/%[1]s\n+++ b/%[1]s\n%s", name, body)
	}
	var many strings.Builder
	for i := range MaxFiles + 1 {
		many.WriteString(file(fmt.Sprint(i), "@@ -1 +1 @@\n-a\n+b\n"))
	}
	long := strings.Repeat("ä", MaxLine)
	for name, test := range map[string]struct {
		text, cut string
		files     int
	}{
		"many files":       {many.String(), CutFiles, MaxFiles},
		"many bytes":       {file("x", "@@ -1,9 +1,9 @@\n"+strings.Repeat(" "+strings.Repeat("x", 1<<20)+"\n", 3)), CutBytes, 1},
		"many lines":       {file("x", fmt.Sprintf("@@ -0,0 +1,%d @@\n", MaxLines+1)+strings.Repeat("+\n", MaxLines+1)), CutLines, 1},
		"a long line":      {file("x", "@@ -0,0 +1 @@\n+"+long+"\n"), "", 1},
		"no diff":          {"fatal: bad object\n", CutOdd, 0},
		"a wrong count":    {file("x", "@@ -1,9 +1,9 @@\n a\n"), CutOdd, 1},
		"a huge number":    {file("x", "@@ -99999999999999999999 +1 @@\n a\n"), CutOdd, 1},
		"a negative one":   {file("x", "@@ --1 +1 @@\n a\n"), CutOdd, 1},
		"an unknown line":  {file("x", "@@ -1 +1 @@\n?\n"), CutOdd, 1},
		"no name":          {"diff --git a/x b/y\nindex 1..2\n", CutOdd, 0},
		"nothing":          {"", "", 0},
		"an open name":     {"diff --git \"a/x\n", CutOdd, 0},
		"invalid UTF-8":    {file("\xff", "@@ -0,0 +1 @@ \xff\n+\xff\n"), "", 1},
		"a broken section": {file("x", "@@ -0,0 +1\n+a\n"), CutOdd, 1},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			files, cut := Parse(test.text)
			if cut != test.cut || len(files) != test.files {
				t.Errorf("got %d files, %q", len(files), cut)
			}
			check(t, files)
		})
	}
	if files, _ := Parse(file("x", "@@ -0,0 +1 @@\n+"+long+"\n")); !files[0].Hunks[0].Lines[0].Cut || !strings.HasPrefix(long, files[0].Hunks[0].Lines[0].Text) {
		t.Error("a long line is not cut at a character")
	}
}

func check(t *testing.T, files []cove.JobDiffFile) {
	if len(files) > MaxFiles {
		t.Errorf("%d files", len(files))
	}
	for _, f := range files {
		added, deleted := 0, 0
		if f.Path == "" || !utf8.ValidString(f.Path+f.OldPath) {
			t.Errorf("the path is %q", f.Path)
		}
		for _, h := range f.Hunks {
			for _, l := range h.Lines {
				if len(l.Text) > MaxLine || !utf8.ValidString(l.Text+h.Section) {
					t.Errorf("a line of %d bytes", len(l.Text))
				}
				switch {
				case l.Kind == "+" && l.New > 0 && l.Old == 0 || l.Kind == "+" && h.NewStart == 0:
					added++
				case l.Kind == "-" && l.Old > 0 && l.New == 0 || l.Kind == "-" && h.OldStart == 0:
					deleted++
				case l.Kind == " ":
				default:
					t.Errorf("the line %+v", l)
				}
			}
		}
		if added != f.Added || deleted != f.Deleted {
			t.Errorf("%d and %d lines, and it says %d and %d", added, deleted, f.Added, f.Deleted)
		}
	}
}

// FuzzParse: whatever a sprite prints, the result is within bounds, and its counts add up.
func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("diff --git a/x b/x\n@@ -1 +1 @@\n-\xff\n+\x00\n\\ No")
	f.Add("diff --git \"a/\\377\" \"b/\\377\"\nold mode 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		files, _ := Parse(text)
		check(t, files)
		RiskyFirst(files)
	})
}
