package cove_test

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/conformance.md, docs/hostile.md and docs/packages.md anew")

// statement is one testable line about a server or a client of the protocol.
type statement struct {
	number     int
	area, text string
	why        string   // it is not shown
	tests      []string // that show it
}

// TestConformance compares docs/conformance.md with the tests. Every statement of the
// protocol has a test that names it, or a reason for having none. A Go test names it by a
// line "// Statement N: …" in its comment. A test with the JavaScript SDK has a name "N …",
// and a script a line "# Statement N: …".
func TestConformance(t *testing.T) {
	all, err := readStatements("docs/statements.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if err := findTests(".", all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if len(s.tests) == 0 && s.why == "" {
			t.Errorf("statement %d has neither a test nor a reason: %s", s.number, s.text)
		}
		if len(s.tests) > 0 && s.why != "" {
			t.Errorf("statement %d has a test, %s, and a reason for having none", s.number, s.tests[0])
		}
	}
	for _, s := range all {
		slices.Sort(s.tests)
	}
	page := conformancePage(all)
	if *update {
		if err := os.WriteFile("docs/conformance.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("docs/conformance.md")
	if err != nil || string(got) != page {
		t.Errorf("docs/conformance.md is not what the tests say (%v); write it anew: go test . -run Conformance -update", err)
	}
}

func readStatements(name string) ([]*statement, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []*statement
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("%s: %d fields, not 4: %q", name, len(f), line)
		}
		n, err := strconv.Atoi(f[0])
		if err != nil || n != len(all)+1 {
			return nil, fmt.Errorf("%s: %q does not follow %d", name, f[0], len(all))
		}
		all = append(all, &statement{number: n, area: f[1], text: f[2], why: f[3]})
	}
	return all, nil
}

var (
	inComment = regexp.MustCompile(`(?m)^Statement (\d+): `)
	inScript  = regexp.MustCompile(`(?m)^# Statement (\d+): `)
	inNode    = regexp.MustCompile(`(?m)^\s*test\(\s*['"` + "`" + `](\d+(?:, \d+)*) `)
)

// findTests notes which tests name which statements.
func findTests(root string, all []*statement) error {
	note := func(number, test string) error {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(all) {
			return fmt.Errorf("%s: there is no statement %s", test, number)
		}
		if s := all[n-1]; !slices.Contains(s.tests, test) {
			s.tests = append(s.tests, test)
		}
		return nil
	}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, file, d.Name())
		}
		if strings.HasSuffix(file, "_test.go") {
			return goStatements(file, note)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := scriptStatements(filepath.Join(root, filepath.FromSlash(scripts), "*.txtar"), inScript, note); err != nil {
		return err
	}
	return scriptStatements(filepath.Join(root, "internal", "e2e", "sprite", "testdata", "jssdk", "*.mjs"), inNode, note)
}

// scriptStatements are those of the scripts, which lie in testdata.
func scriptStatements(pattern string, re *regexp.Regexp, note func(number, test string) error) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := textStatements(file, re, note); err != nil {
			return err
		}
	}
	return nil
}

func goStatements(file string, note func(number, test string) error) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Doc == nil {
			continue
		}
		for _, m := range inComment.FindAllStringSubmatch(f.Doc.Text(), -1) {
			if !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				return fmt.Errorf("%s: %s names a statement and is no test", file, f.Name.Name)
			}
			if err := note(m[1], "`"+f.Name.Name+"` ("+filepath.ToSlash(filepath.Dir(file))+")"); err != nil {
				return err
			}
		}
	}
	return nil
}

func textStatements(file string, re *regexp.Regexp, note func(number, test string) error) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, m := range re.FindAllStringSubmatch(string(data), -1) {
		for number := range strings.SplitSeq(m[1], ", ") {
			if err := note(number, "`"+filepath.Base(file)+"` ("+filepath.ToSlash(filepath.Dir(file))+")"); err != nil {
				return err
			}
		}
	}
	return nil
}

func conformancePage(all []*statement) string {
	var b strings.Builder
	w := bufio.NewWriter(&b)
	shown := 0
	for _, s := range all {
		if len(s.tests) > 0 {
			shown++
		}
	}
	fmt.Fprintf(w, `# How cove keeps to the Sprites protocol

This page has %d statements about servers (S) and clients (C) of the protocol. Each has the test that shows it, or the reason why
there is none and what cove does instead. %d are shown. The page is written by `+"`go test . -run Conformance -update`"+` from the tests themselves.
`, len(all), shown)
	area := ""
	for _, s := range all {
		if s.area != area {
			area = s.area
			fmt.Fprintf(w, "\n## %s\n\n| # | Statement | Shown by |\n|---|---|---|\n", area)
		}
		by := strings.Join(s.tests, ", ")
		if by == "" {
			by = "— " + s.why
		}
		fmt.Fprintf(w, "| %d | %s | %s |\n", s.number, strings.ReplaceAll(s.text, "|", `\|`), by)
	}
	_ = w.Flush() // of memory
	return b.String()
}
