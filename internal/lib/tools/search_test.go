package tools

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGlob: F6.
func TestGlob(t *testing.T) {
	s := serve(t, ReadOnly)
	s.put("src/a.go", "", "src/x/b.go", "", "src/p/x/c.go", "", "src/p/q/x/d.go", "", "src/p/q/x/y/e.go", "", "src.go", "", "web/i.ts", "", "web/i.js", "",
		".github/w.yml", "", ".git/config", "", ".gitignore", "*.log\n/out/\n", "a.log", "", "out/o.go", "", "web/out/o.ts", "", "web/.gitignore", "!keep.log\n", "web/keep.log", "",
		"a b/$(c)'.go", "", "Src/A.GO", "")
	if err := os.Symlink("src", s.path("link")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		in   GlobInput
		want []string
	}{
		{GlobInput{Pattern: "src/**/x/*.go"}, []string{"src/p/q/x/d.go", "src/p/x/c.go", "src/x/b.go"}},
		{GlobInput{Pattern: "*.go"}, []string{"src.go"}},
		{GlobInput{Pattern: "**/*.go"}, []string{"a b/$(c)'.go", "src.go", "src/a.go", "src/p/q/x/d.go", "src/p/q/x/y/e.go", "src/p/x/c.go", "src/x/b.go"}},
		{GlobInput{Pattern: "web/*.{ts,js}"}, []string{"web/i.js", "web/i.ts"}},
		{GlobInput{Pattern: "**/*.log"}, []string{"web/keep.log"}},
		{GlobInput{Pattern: "**/*.log", IncludeIgnored: true}, []string{"a.log", "web/keep.log"}},
		{GlobInput{Pattern: "**/o.*"}, []string{"web/out/o.ts"}},
		{GlobInput{Pattern: "out/*.go"}, []string{"out/o.go"}}, // named, so meant
		{GlobInput{Pattern: "**/*.yml"}, []string{".github/w.yml"}},
		{GlobInput{Pattern: "**/config"}, []string{}},
		{GlobInput{Pattern: "*.go", Path: "src"}, []string{"src/a.go"}},
		{GlobInput{Pattern: "../*.go", Path: "src"}, []string{"src.go"}},
		{GlobInput{Pattern: s.dir + "/src/*.go"}, []string{"src/a.go"}},
		{GlobInput{Pattern: "nowhere/**/*.go"}, []string{}},
		{GlobInput{Pattern: "src/**/x/"}, []string{"src/p/q/x", "src/p/x", "src/x"}},
		{GlobInput{Pattern: "li*"}, []string{"link"}},
		{GlobInput{Pattern: "link/*"}, []string{"link/a.go"}}, // through a link that is named
		{GlobInput{Pattern: "**/[ab].go", Limit: 1}, []string{"src/a.go"}},
	} {
		r := call1[GlobResult](s, "Glob", test.in)
		if !slices.Equal(r.Files, test.want) || r.More != (test.in.Limit > 0) {
			t.Errorf("%+v: got %q, more %v, want %q", test.in, r.Files, r.More, test.want)
		}
	}
	s.fails(CodeBadPattern, "Glob", GlobInput{Pattern: "[a"})
	s.fails(CodeNotFound, "Glob", GlobInput{Pattern: "*", Path: "none"})
	s.fails(CodeNotDirectory, "Glob", GlobInput{Pattern: "*", Path: "src.go"})
	s.fails(CodeBadInput, "Glob", GlobInput{Pattern: "*", Limit: -1})
}

// found is content as FileMatches say it: path:line:text, and - for context.
func found(r GrepResult) []string {
	list := []string{}
	for _, f := range r.Files {
		for _, l := range f.Lines {
			mark := ":"
			if !l.Match {
				mark = "-"
			}
			list = append(list, fmt.Sprintf("%s%s%d%s%s", f.Path, mark, l.Number, mark, l.Text))
		}
	}
	return list
}

// TestGrep: F7.
func TestGrep(t *testing.T) {
	s := serve(t, ReadOnly)
	s.put("a.go", "package a\n\nfunc A() {\n\treturn\n}\n", "b.py", "def a():\n    return 'x y;z'\n", "c.txt", "-e foo\nFOO bar\nlast", "crlf.txt", "one\r\ntwo\r\n",
		"bin", "re\x00turn", ".gitignore", "ignored\n", "ignored", "return\n", "empty", "", "latin", "caf\xe9 return\n", "sub/d.go", "package d // return\n")
	for _, test := range []struct {
		in   GrepInput
		want []string
	}{
		{GrepInput{Pattern: "return"}, []string{"a.go:4:\treturn", "b.py:2:    return 'x y;z'", "latin:1:caf\uFFFD return", "sub/d.go:1:package d // return"}},
		{GrepInput{Pattern: "return", IncludeIgnored: true, Path: "ignored"}, []string{"ignored:1:return"}},
		{GrepInput{Pattern: "'x y;z'"}, []string{"b.py:2:    return 'x y;z'"}},
		{GrepInput{Pattern: "-e foo"}, []string{"c.txt:1:-e foo"}},
		{GrepInput{Pattern: "-e foo", Literal: true, CaseInsensitive: true}, []string{"c.txt:1:-e foo"}},
		{GrepInput{Pattern: "foo", CaseInsensitive: true}, []string{"c.txt:1:-e foo", "c.txt:2:FOO bar"}},
		{GrepInput{Pattern: "a()", Literal: true}, []string{"b.py:1:def a():"}},
		{GrepInput{Pattern: `^\w+$`, Glob: "*.txt"}, []string{"c.txt:3:last", "crlf.txt:1:one", "crlf.txt:2:two"}},
		{GrepInput{Pattern: "return", Type: "go"}, []string{"a.go:4:\treturn", "sub/d.go:1:package d // return"}},
		{GrepInput{Pattern: "return", Glob: "sub/**"}, []string{"sub/d.go:1:package d // return"}},
		{GrepInput{Pattern: "return", Path: "sub"}, []string{"sub/d.go:1:package d // return"}},
		{GrepInput{Pattern: "FOO", Context: 1}, []string{"c.txt-1--e foo", "c.txt:2:FOO bar", "c.txt-3-last"}},
		{GrepInput{Pattern: "func|}", Before: 1, Glob: "a.go"}, []string{"a.go-2-", "a.go:3:func A() {", "a.go-4-\treturn", "a.go:5:}"}},
		{GrepInput{Pattern: "package", After: 2, Type: "go"}, []string{"a.go:1:package a", "a.go-2-", "a.go-3-func A() {", "sub/d.go:1:package d // return"}},
		{GrepInput{Pattern: `A\(\) \{.*\}`, Multiline: true}, []string{"a.go:3:func A() {", "a.go:4:\treturn", "a.go:5:}"}},
		{GrepInput{Pattern: `\{\s+return`}, []string{}},
		{GrepInput{Pattern: `[^x]return`, Glob: "a.go"}, []string{"a.go:4:\treturn"}},
		{GrepInput{Pattern: "none at all"}, []string{}},
		{GrepInput{Pattern: "a|b|c|d|e", Glob: "a.go", Limit: 2}, []string{"a.go:1:package a", "a.go:3:func A() {"}},
	} {
		test.in.OutputMode = ModeContent
		r := call1[GrepResult](s, "Grep", test.in)
		if got := found(r); !slices.Equal(got, test.want) {
			t.Errorf("%+v: got %q, want %q", test.in, got, test.want)
		}
	}
	files := call1[GrepResult](s, "Grep", GrepInput{Pattern: "a"})
	counts := call1[GrepResult](s, "Grep", GrepInput{Pattern: "a", OutputMode: ModeCount})
	if len(files.Files) != 5 || len(counts.Files) != 5 || counts.Files[0].Count != 1 || counts.Matches != 6 {
		t.Errorf("got %+v and %+v", files, counts)
	}
	for pattern, code := range map[string]string{"(": CodeBadPattern, "": CodeBadPattern, `(?=x)`: CodeBadPattern, `a{9999}`: CodeBadPattern} {
		s.fails(code, "Grep", GrepInput{Pattern: pattern})
	}
	s.fails(CodeBadInput, "Grep", GrepInput{Pattern: "a", OutputMode: "lines"})
	s.fails(CodeBadInput, "Grep", GrepInput{Pattern: "a", Type: "none"})
	s.fails(CodeNotFound, "Grep", GrepInput{Pattern: "a", Path: "none"})
	text, err := s.try("Grep", GrepInput{Pattern: "nothing"})
	if err != nil || text.Text() != "[no match]" {
		t.Errorf("no match: %v %v", text, err)
	}
}

// TestGrepAsGrep compares with grep, over a tree with files larger and lines longer than a
// searcher's buffer.
func TestGrepAsGrep(t *testing.T) {
	s := serve(t, ReadOnly)
	var big strings.Builder
	for i := range 180_000 {
		fmt.Fprintf(&big, "line %d of some text that fills the buffer\n", i)
	}
	s.put("big", big.String(), "long", strings.Repeat("x", 5<<20)+"needle 77\nbehind 77\n", "end", "no newline 77")
	for i := range 300 {
		s.put(fmt.Sprintf("d%d/f%d", i%7, i), strings.Repeat(fmt.Sprintf("file %d\nother\n", i), i%50))
	}
	for _, pattern := range []string{"77777", "9{5}", "[^x]ine [0-9]*8888 ", "^file 29", "7777 of .*r$", "x*needle", "needle 77$", " 77$"} {
		for _, context := range []int{0, 3} {
			out, err := exec.Command("grep", "-rnE", "-C", fmt.Sprint(context), "--no-group-separator", "-e", pattern, s.dir).Output()
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Split(strings.ReplaceAll(strings.TrimSuffix(string(out), "\n"), s.dir+"/", ""), "\n")
			for i, line := range want {
				want[i] = line[:min(len(line), 20)]
			}
			slices.Sort(want)
			var got []string
			for _, name := range []string{"big", "long", "end", "d0", "d1", "d2", "d3", "d4", "d5", "d6"} {
				r := call1[GrepResult](s, "Grep", GrepInput{Pattern: pattern, Path: name, OutputMode: ModeContent, Context: context, Limit: maxMatches})
				if r.More {
					t.Fatalf("%s has more in %s than an answer holds", pattern, name)
				}
				for _, line := range found(r) {
					got = append(got, line[:min(len(line), 20)])
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s with %d lines of context: %d lines, want %d", pattern, context, len(got), len(want))
			}
		}
	}
	r := call1[GrepResult](s, "Grep", GrepInput{Pattern: "needle", OutputMode: ModeContent})
	if l := r.Files[0].Lines[0]; !l.Cut || len(l.Text) > maxShown || !strings.Contains(l.Text, "needle") {
		t.Errorf("a long line: %d bytes", len(l.Text))
	}
	if r = call1[GrepResult](s, "Grep", GrepInput{Pattern: "line", OutputMode: ModeContent, Limit: maxMatches}); !r.More {
		t.Error("a bounded answer does not say that there is more")
	}
}

// TestGrepMany: the answer is the same each time, however many look.
func TestGrepMany(t *testing.T) {
	s := serve(t, ReadOnly)
	for i := range 800 {
		s.put(fmt.Sprintf("d%02d/f%d.txt", i%20, i), fmt.Sprintf("needle %d\n", i))
	}
	first := call1[GrepResult](s, "Grep", GrepInput{Pattern: "needle", Limit: 100})
	paths := func(r GrepResult) (list []string) {
		for _, f := range r.Files {
			list = append(list, f.Path)
		}
		return list
	}
	if !first.More || len(first.Files) != 100 || !slices.IsSorted(paths(first)) {
		t.Fatalf("got %d files, more %v", len(first.Files), first.More)
	}
	for range 10 {
		if again := call1[GrepResult](s, "Grep", GrepInput{Pattern: "needle", Limit: 100}); !slices.Equal(paths(again), paths(first)) {
			t.Fatal("another answer")
		}
	}
	if all := call1[GrepResult](s, "Grep", GrepInput{Pattern: "needle", Limit: 1000}); len(all.Files) != 800 || all.More || !slices.IsSorted(paths(all)) {
		t.Errorf("got %d files", len(all.Files))
	}
}

func TestCut(t *testing.T) {
	for _, text := range []string{"aé世🦊", "\xff\xff\xff\xff\xff", "a\x80\x80\x80\x80\x80", ""} {
		for n := range len(text) + 1 {
			front, back := cut(text, n), cutFront(text, n)
			if len(front) > n || len(back) > n || !strings.HasPrefix(text, front) || !strings.HasSuffix(text, back) {
				t.Errorf("%q to %d: %q and %q", text, n, front, back)
			}
			if utf8.ValidString(text) && (!utf8.ValidString(front) || !utf8.ValidString(back) || n-len(front) > 3 || n-len(back) > 3) {
				t.Errorf("%q to %d: %q and %q", text, n, front, back)
			}
		}
	}
}
