package cove_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packagesPage has a row for each package, with the reason for its imports.
const packagesPage = "docs/packages.md"

// packageRow is a row of packagesPage: the package, its imports, and why.
var packageRow = regexp.MustCompile("^\\| `([^`]+)` \\| ([^|]*) \\| (.*) \\|$")

// TestPackagesPage holds docs/packages.md to the import table: a row for each package,
// sorted, with its imports and a reason. With -update it writes the imports; a reason is
// for people to write.
func TestPackagesPage(t *testing.T) {
	got, err := os.ReadFile(packagesPage)
	if err != nil {
		t.Fatal(err)
	}
	page, unexplained := explain(string(got), imports)
	if *update {
		if err := os.WriteFile(packagesPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != string(got) {
		t.Errorf("%s is not what arch_test.go says; write its imports anew: go test . -run PackagesPage -update", packagesPage)
	}
	for _, dir := range unexplained {
		t.Errorf("%s has no reason for the row of %s", packagesPage, dir)
	}
}

// explain returns the page with the rows of a table, and the packages that have no reason
// in it.
func explain(page string, table map[string][]string) (out string, unexplained []string) {
	head, rows, _ := strings.Cut(page, "| Package |")
	title, rows, _ := strings.Cut(rows, "\n")
	divider, rows, _ := strings.Cut(rows, "\n")
	reasons := map[string]string{}
	for line := range strings.Lines(rows) {
		if m := packageRow.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			reasons[m[1]] = strings.TrimSpace(m[3])
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s| Package |%s\n%s\n", head, title, divider)
	for _, dir := range slices.Sorted(maps.Keys(table)) {
		if reasons[dir] == "" {
			unexplained = append(unexplained, dir)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", dir, importCell(table[dir]), reasons[dir])
	}
	return b.String(), unexplained
}

// importCell names a package's imports as people do.
func importCell(allowed []string) string {
	if slices.Contains(allowed, everything) {
		return "everything"
	}
	if len(allowed) == 0 {
		return "nothing"
	}
	var names []string
	for _, dir := range allowed {
		if dir == "." {
			dir = "cove"
		}
		names = append(names, path.Base(dir))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func TestPackagesPageFindsProblems(t *testing.T) {
	const top = "# Packages\n\n| Package | May import (ours) | Because |\n|---|---|---|\n"
	table := map[string][]string{"b": {"z/c", "a"}, "a": nil, "all": {everything}}
	whole := top + "| `a` | nothing | it is a |\n| `all` | everything | it wires |\n| `b` | a, c | it is b |\n"
	for name, test := range map[string]struct {
		page        string
		same        bool
		unexplained []string
	}{
		"whole":                  {whole, true, nil},
		"a row is missing":       {strings.Replace(whole, "| `a` | nothing | it is a |\n", "", 1), false, []string{"a"}},
		"a reason is missing":    {strings.Replace(whole, "it is b", "", 1), true, []string{"b"}},
		"an import is missing":   {strings.Replace(whole, "a, c", "a", 1), false, nil},
		"a package is not there": {whole + "| `c` | nothing | it was c |\n", false, nil},
		"not sorted":             {top + "| `b` | a, c | it is b |\n| `a` | nothing | it is a |\n| `all` | everything | it wires |\n", false, nil},
	} {
		page, unexplained := explain(test.page, table)
		if (page == test.page) != test.same || !slices.Equal(unexplained, test.unexplained) {
			t.Errorf("%s: same %v, without a reason %v; got:\n%s", name, page == test.page, unexplained, page)
		}
	}
}

// A source is what documents may name of the module: files, and tests.
type source struct {
	files []string        // slash-separated, below the root
	tests map[string]bool // and fuzz tests and benchmarks, by name; also as "name (folder)"
}

// readSource lists the module's files, testdata's among them, and its tests.
func readSource(root string) (*source, error) {
	s := &source{tests: map[string]bool{}}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && file != root || d.Name() == "node_modules" || file == filepath.Join(root, "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		s.files = append(s.files, filepath.ToSlash(rel))
		if !strings.HasSuffix(rel, "_test.go") || strings.Contains(rel, "testdata") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				s.tests[f.Name.Name] = true
				s.tests[f.Name.Name+" ("+path.Dir(filepath.ToSlash(rel))+")"] = true
			}
		}
		return nil
	})
	return s, err
}

var (
	fence    = regexp.MustCompile("(?ms)^\\s*(`{3,})[^`]*?^\\s*`{3,}$")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	goFile   = regexp.MustCompile(`^[\w./-]+\.(go|txtar)$|^(?:cmd|docs|internal|scripts)/[\w./-]+$`)
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)(?:/[^`]*)?`")
	fuzzIn   = regexp.MustCompile("((?:`Fuzz\\w+`(?:, | and )?)+) (?:\\(|in )([\\w/]+)")
)

// problems lists the names in a document that lead nowhere: linked pages and headings,
// source files, tests.
func (s *source) problems(name string, read func(string) (string, error)) (out []string) {
	text, err := read(name)
	if err != nil {
		return []string{err.Error()}
	}
	text = fence.ReplaceAllString(text, "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		page, anchor, _ := strings.Cut(m[1], "#")
		target := name
		if page != "" {
			target = path.Join(path.Dir(name), page)
		}
		linked, err := read(target)
		if err != nil || anchor != "" && !slices.Contains(anchors(linked), anchor) {
			out = append(out, fmt.Sprintf("%s links to %s, which is not there", name, m[1]))
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		if goFile.MatchString(m[1]) && !s.has(strings.TrimSuffix(m[1], "/")) {
			out = append(out, fmt.Sprintf("%s names the file %s, which is not there", name, m[1]))
		}
	}
	for _, m := range testName.FindAllStringSubmatch(text, -1) {
		if !s.tests[m[1]] {
			out = append(out, fmt.Sprintf("%s names the test %s, which is not there", name, m[1]))
		}
	}
	for _, m := range fuzzIn.FindAllStringSubmatch(text, -1) {
		for _, fuzz := range quoted.FindAllStringSubmatch(m[1], -1) {
			if !s.tests[fuzz[1]+" ("+m[2]+")"] {
				out = append(out, fmt.Sprintf("%s names %s in %s, where it is not", name, fuzz[1], m[2]))
			}
		}
	}
	return out
}

// has reports whether there is a file, by its path or the end of it, or a folder.
func (s *source) has(name string) bool {
	return slices.ContainsFunc(s.files, func(f string) bool {
		return f == name || strings.HasSuffix(f, "/"+name) || strings.HasPrefix(f, name+"/")
	})
}

// anchors are the names that links to a page's headings use.
func anchors(page string) (names []string) {
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127 && r != '…':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		names = append(names, name)
	}
	return names
}

func readPage(name string) (string, error) {
	text, err := os.ReadFile(filepath.FromSlash(name))
	return string(text), err
}

// TestDocuments: the links of each document lead to pages and headings that are there, and so
// do the names of source files and tests.
func TestDocuments(t *testing.T) {
	s, err := readSource(".")
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, file := range s.files {
		if strings.HasSuffix(file, ".md") && (path.Dir(file) == "." || strings.HasPrefix(file, "docs/")) {
			pages++
			for _, p := range s.problems(file, readPage) {
				t.Error(p)
			}
		}
	}
	if pages < 15 {
		t.Fatalf("found %d pages only; is the test run in the module's root?", pages)
	}
}

func TestDocumentsFindsProblems(t *testing.T) {
	s := &source{files: []string{"a/a.go"}, tests: map[string]bool{"TestA": true, "FuzzA": true, "FuzzA (a)": true}}
	pages := map[string]string{"docs/b.md": "# B page\n\n## What's `here`, then?\n"}
	read := func(name string) (string, error) {
		if text, ok := pages[name]; ok {
			return text, nil
		}
		return "", fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	for text, want := range map[string]int{
		"[b](b.md), [b](b.md#whats-here-then), [x](https://example.org/x.md), `a/a.go`, `a.go`, `TestA/x`, `FuzzA` (a)": 0,
		"```\n[b](c.md)\n```\n":  0,
		"[b](c.md)":              1,
		"[b](b.md#what)":         1,
		"`b/a.go`":               1,
		"`internal/b`":           1,
		"`TestB`":                1,
		"`FuzzB`, `FuzzA` (a)":   2, // by name, and by folder
		"`FuzzA` (internal/lib)": 1,
	} {
		pages["docs/page.md"] = text
		if got := s.problems("docs/page.md", read); len(got) != want {
			t.Errorf("%q: got %q, want %d problems", text, got, want)
		}
	}
}
