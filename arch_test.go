package cove_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/cove-dev/cove"

// maxLines is the length from which on a file probably is about two things.
const maxLines = 800

// everything, as the only entry of a row, allows any import.
const everything = "*"

// imports says which of this module's packages each of them may import, tests
// aside. ARCHITECTURE.md gives the reasons. A package without a row is an error.
var imports = map[string][]string{
	".":       nil,
	"sprites": nil,

	"internal/boot":       nil,
	"internal/cgroup":     nil,
	"internal/policy":     nil,
	"internal/layers":     nil,
	"internal/base":       nil,
	"internal/userns":     nil,
	"internal/leakcheck":  nil,
	"internal/registries": nil,
	"internal/modeltest":  nil,
	"internal/safepath":   nil,
	"internal/private":    nil,
	"internal/logfile":    nil,
	"internal/openfiles":  nil,
	"internal/gitignore":  nil,
	"internal/proctree":   nil,
	"internal/fault":      nil,
	"internal/hostnet":    nil,

	"internal/archive":         {"internal/layers", "internal/safepath", "sprites"},
	"internal/connect":         {"sprites"},
	"internal/gateway":         {"internal/connect", "internal/hostnet", "internal/policy"},
	"internal/shim":            {"internal/base", "internal/boot", "internal/cgroup", "internal/connect", "internal/fault", "internal/gateway", "internal/layers", "internal/logfile", "internal/openfiles", "internal/policy", "internal/userns", "sprites"},
	"internal/guest":           {"internal/boot", "sprites"},
	"internal/guest/probe":     {"sprites"},
	"internal/guest/spriteenv": {"sprites"},
	"internal/guest/supervise": {"internal/boot", "internal/proctree", "sprites"},

	"internal/store":               {"internal/fault", "internal/private", "sprites"},
	"internal/sprite":              {"internal/archive", "internal/base", "internal/boot", "internal/cgroup", "internal/connect", "internal/fault", "internal/hostnet", "internal/layers", "internal/policy", "internal/store", "sprites"},
	"internal/runtime/gvisor":      {"internal/archive", "internal/base", "internal/boot", "internal/cgroup", "internal/connect", "internal/fault", "internal/layers", "internal/policy", "internal/shim", "internal/sprite", "sprites"},
	"internal/runtime/runtimetest": {"internal/boot", "internal/sprite", "sprites"},

	"internal/gitwork":   {"internal/safepath", "sprites"},
	"internal/filesync":  {"internal/gitignore", "internal/guestbin", "internal/safepath", "sprites"},
	"internal/guestbin":  {"internal/boot", "sprites"},
	"internal/mcpserver": {"internal/tools", "sprites"},
	"internal/tools":     {"internal/gitignore", "internal/guestbin", "internal/proctree", "sprites"},
	"internal/acp":       {"internal/tools", "sprites"},
	"internal/acpserver": {"internal/acp", "internal/guestbin", "sprites"},
	"internal/agents":    {"sprites"},
	"internal/config":    {"internal/agents", "internal/policy", "internal/safepath", "sprites"},
	"internal/loop":      {"internal/tools"},
	"internal/job":       {"internal/agents", "internal/boot", "internal/connect", "internal/fault", "internal/guestbin", "internal/store", "sprites"},
	"internal/push":      {"internal/gitwork", "sprites"},

	"internal/server": {"internal/boot", "internal/connect", "internal/job", "internal/mcpserver", "internal/private", "internal/sprite", "internal/store", "sprites"},
	"internal/cli":    {"internal/acpserver", "internal/agents", "internal/base", "internal/cgroup", "internal/config", "internal/connect", "internal/filesync", "internal/gitwork", "internal/guestbin", "internal/mcpserver", "internal/openfiles", "internal/policy", "internal/private", "internal/push", "internal/safepath", "internal/tools", "internal/userns", "sprites"},

	"internal/covetest":                {everything},
	"internal/leakcheck/cmd/leakcheck": {"internal/leakcheck"},

	"cmd/cove":       {everything},
	"cmd/cove-guest": {"internal/acp", "internal/boot", "internal/filesync", "internal/guest", "internal/guest/probe", "internal/guest/spriteenv", "internal/guest/supervise", "internal/tools", "sprites"},
	"cmd/cove-loop":  {"internal/loop", "internal/tools", "sprites"},
	"cmd/cove-runsc": {"internal/boot", "internal/cgroup"},
}

// onlyImporter names the one package that may import what lies below a path of
// someone else's: runsc is started as a program and linked by nothing else; nor do
// the vendors' SDKs, which are large, get into any program but the loop's.
var onlyImporter = map[string]string{
	"gvisor.dev/gvisor/runsc":                "cmd/cove-runsc",
	"github.com/anthropics/anthropic-sdk-go": "internal/loop",
	"github.com/openai/openai-go":            "internal/loop",
	"google.golang.org/genai":                "internal/loop",
}

// vagueNames are package names that say nothing of what is in the package.
var vagueNames = []string{"util", "utils", "common", "shared", "types", "models", "helpers", "misc"}

// A tree is what the checks need to know of a module's Go files.
type tree struct {
	packages map[string]*pkg // by folder, slash-separated, "." for the root
	long     []string        // files of more than maxLines lines
}

type pkg struct {
	name       string
	documented bool
	imports    map[string]string // import path to a file that has it; not those of tests
}

// readTree parses every Go file of the module in root: for its imports, and test
// files too, so that one which is no Go is an error. It reads the files in this
// process, where the test cache sees it, and whatever their build constraints.
func readTree(root string) (*tree, error) {
	t := &tree{packages: map[string]*pkg{}}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, file, d.Name())
		}
		if !strings.HasSuffix(d.Name(), ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return t.add(filepath.ToSlash(rel), file)
	})
	return t, err
}

// skipFolder leaves out what the go command leaves out, and other modules.
func skipFolder(root, dir, name string) error {
	if dir == root {
		return nil
	}
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return filepath.SkipDir
	}
	switch _, err := os.Stat(filepath.Join(dir, "go.mod")); {
	case err == nil:
		return filepath.SkipDir
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

func (t *tree) add(rel, file string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(src), "\n"); n > maxLines {
		t.long = append(t.long, fmt.Sprintf("%s: %d lines", rel, n))
	}
	test := strings.HasSuffix(rel, "_test.go")
	mode := parser.ImportsOnly | parser.ParseComments
	if test {
		mode = parser.SkipObjectResolution
	}
	f, err := parser.ParseFile(token.NewFileSet(), rel, src, mode)
	if err != nil || test {
		return err
	}
	return t.addFile(rel, f)
}

func (t *tree) addFile(rel string, f *ast.File) error {
	dir := path.Dir(rel)
	p := t.packages[dir]
	if p == nil {
		p = &pkg{imports: map[string]string{}}
		t.packages[dir] = p
	}
	p.name = f.Name.Name
	p.documented = p.documented || f.Doc != nil
	for _, spec := range f.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", rel, spec.Path.Value, err)
		}
		p.imports[imported] = rel
	}
	return nil
}

// problems returns what in the tree breaks the rules, sorted.
func (t *tree) problems(table map[string][]string) []string {
	var out []string
	for dir, p := range t.packages {
		allowed, listed := table[dir]
		if !listed {
			out = append(out, fmt.Sprintf("package %s has no row in the import table of arch_test.go", dir))
		}
		if !p.documented {
			out = append(out, fmt.Sprintf("package %s has no doc comment", dir))
		}
		if slices.Contains(vagueNames, p.name) || slices.Contains(vagueNames, path.Base(dir)) {
			out = append(out, fmt.Sprintf("package %s: the name %s says nothing; name it after what it does", dir, p.name))
		}
		for imported, file := range p.imports {
			if why := refused(dir, imported, allowed); why != "" {
				out = append(out, fmt.Sprintf("%s: %s", file, why))
			}
		}
	}
	slices.Sort(out)
	return out
}

// refused says why the package in dir may not import a path, or nothing.
func refused(dir, imported string, allowed []string) string {
	for prefix, only := range onlyImporter {
		if below(imported, prefix) && dir != only {
			return fmt.Sprintf("%s may be imported by %s alone", prefix, only)
		}
	}
	if !below(imported, module) {
		return ""
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
	if slices.Contains(allowed, everything) || slices.Contains(allowed, rel) {
		return ""
	}
	return fmt.Sprintf("%s may not import %s", dir, rel)
}

func below(imported, prefix string) bool {
	return imported == prefix || strings.HasPrefix(imported, prefix+"/")
}

func TestArchitecture(t *testing.T) {
	tree, err := readTree(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.packages) < 10 {
		t.Fatalf("found %d packages only; is the test run in the module's root?", len(tree.packages))
	}
	for _, p := range tree.problems(imports) {
		t.Error(p)
	}
	for _, file := range tree.long {
		t.Logf("%s, more than %d: is it about one thing?", file, maxLines)
	}
}

// TestImportTable checks the table against itself: a name spelled wrong in it
// would allow nothing and look as if it did.
func TestImportTable(t *testing.T) {
	for dir, allowed := range imports {
		for _, name := range allowed {
			if _, ok := imports[name]; !ok && name != everything {
				t.Errorf("the row of %s allows %s, which has no row", dir, name)
			}
			if name == dir {
				t.Errorf("the row of %s allows itself", dir)
			}
		}
		if !slices.IsSorted(allowed) {
			t.Errorf("the row of %s is not sorted: %v", dir, allowed)
		}
	}
}

func TestArchitectureFindsProblems(t *testing.T) {
	table := map[string][]string{
		"a":              nil,
		"b":              {"a"},
		"all":            {everything},
		"cmd/cove-runsc": nil,
	}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"clean", map[string]string{
			"a/a.go":                 "// Package a is a.\npackage a\n\nimport \"fmt\"\n",
			"b/b.go":                 "// Package b is b.\npackage b\n\nimport \"" + module + "/a\"\n",
			"all/all.go":             "// Package all is all.\npackage all\n\nimport (\n_ \"" + module + "/a\"\n_ \"" + module + "/b\"\n)\n",
			"cmd/cove-runsc/main.go": "// Command cove-runsc is runsc.\npackage main\n\nimport \"gvisor.dev/gvisor/runsc/cli/maincli\"\n",
		}, nil},
		{"tests may import what they like", map[string]string{
			"a/a.go":      "// Package a is a.\npackage a\n",
			"a/a_test.go": "package a\n\nimport \"" + module + "/b\"\n",
		}, nil},
		{"other modules, testdata and hidden folders are not looked at", map[string]string{
			"a/a.go":            "// Package a is a.\npackage a\n",
			"tools/go.mod":      "module tools\n",
			"tools/x/x.go":      "package x\n\nimport \"" + module + "/a\"\n",
			"a/testdata/bad.go": "no Go\n",
			".git/x.go":         "no Go\n",
		}, nil},
		{"import not allowed", map[string]string{
			"a/a.go": "// Package a is a.\npackage a\n\nimport \"" + module + "/b\"\n",
		}, []string{"a/a.go: a may not import b"}},
		{"import of the root", map[string]string{
			"a/a.go": "// Package a is a.\npackage a\n\nimport \"" + module + "\"\n",
		}, []string{"a/a.go: a may not import "}},
		{"import behind a build constraint", map[string]string{
			"a/a.go":     "// Package a is a.\npackage a\n",
			"a/other.go": "//go:build plan9\n\npackage a\n\nimport \"" + module + "/b\"\n",
		}, []string{"a/other.go: a may not import b"}},
		{"unlisted package", map[string]string{
			"c/c.go": "// Package c is c.\npackage c\n",
		}, []string{"package c has no row in the import table of arch_test.go"}},
		{"no doc comment", map[string]string{
			"a/a.go": "//go:build linux\n\npackage a\n",
		}, []string{"package a has no doc comment"}},
		{"vague name", map[string]string{
			"b/util/u.go": "// Package util is anything.\npackage util\n",
		}, []string{
			"package b/util has no row in the import table of arch_test.go",
			"package b/util: the name util says nothing; name it after what it does",
		}},
		{"runsc linked", map[string]string{
			"all/all.go": "// Package all is all.\npackage all\n\nimport \"gvisor.dev/gvisor/runsc/boot\"\n",
		}, []string{"all/all.go: gvisor.dev/gvisor/runsc may be imported by cmd/cove-runsc alone"}},
		{"runsc's neighbour may be linked", map[string]string{
			"all/all.go": "// Package all is all.\npackage all\n\nimport \"gvisor.dev/gvisor/runscx\"\n",
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree, err := readTree(writeTree(t, test.files))
			if err != nil {
				t.Fatal(err)
			}
			if got := tree.problems(table); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestArchitectureReadsTestFiles(t *testing.T) {
	root := writeTree(t, map[string]string{
		"a/a.go":      "// Package a is a.\npackage a\n",
		"a/a_test.go": "package a\n\nfunc broken( {\n",
	})
	if _, err := readTree(root); err == nil || !strings.Contains(err.Error(), "a/a_test.go") {
		t.Errorf("got error %v, want one that names a/a_test.go", err)
	}
}

func TestArchitectureCountsLines(t *testing.T) {
	root := writeTree(t, map[string]string{
		"a/short.go": "// Package a is a.\npackage a\n",
		"a/long.go":  "package a\n" + strings.Repeat("\n", maxLines),
	})
	tree, err := readTree(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a/long.go: 801 lines"}; !slices.Equal(tree.long, want) {
		t.Errorf("got %q, want %q", tree.long, want)
	}
}

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
