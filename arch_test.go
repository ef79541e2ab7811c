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
// aside. docs/packages.md gives the reasons. A package without a row is an error.
var imports = map[string][]string{
	".":       {"sprites"},
	"sprites": nil,

	"internal/lib/acp":            {"internal/lib/fail", "internal/lib/printable", "internal/lib/tools", "sprites"},
	"internal/lib/atomicfile":     nil,
	"internal/lib/boot":           nil,
	"internal/lib/buildstep":      nil,
	"internal/lib/changerisk":     {"internal/lib/gitignore", "internal/lib/printable", "internal/lib/riskypath", "internal/lib/safepath"},
	"internal/lib/checkpointtree": {"sprites"},
	"internal/lib/children":       nil,
	"internal/lib/datafolder":     {"internal/lib/fail", "internal/lib/loopback", "internal/lib/private", "sprites"},
	"internal/lib/dockerignore":   nil,
	"internal/lib/duplex":         nil,
	"internal/lib/editdistance":   nil,
	"internal/lib/fail":           nil,
	"internal/lib/fault":          nil,
	"internal/lib/filesync":       {"internal/lib/atomicfile", "internal/lib/fail", "internal/lib/gitignore", "internal/lib/guestbin", "internal/lib/safepath", "sprites"},
	"internal/lib/gitignore":      nil,
	"internal/lib/guestbin":       {"internal/lib/boot", "internal/lib/fail", "sprites"},
	"internal/lib/jsonbody":       nil,
	"internal/lib/keylock":        nil,
	"internal/lib/logfile":        nil,
	"internal/lib/loopback":       nil,
	"internal/lib/mask":           nil,
	"internal/lib/openfiles":      nil,
	"internal/lib/printable":      nil,
	"internal/lib/private":        nil,
	"internal/lib/proctree":       nil,
	"internal/lib/registries":     nil,
	"internal/lib/riskypath":      {"internal/lib/safepath"},
	"internal/lib/safepath":       nil,
	"internal/lib/tomldoc":        {"internal/lib/editdistance"}, // a name that is misspelt
	"internal/lib/tools":          {"internal/lib/fail", "internal/lib/gitignore", "internal/lib/guestbin", "internal/lib/proctree", "sprites"},

	"internal/guest":           {"internal/guest/files", "internal/guest/ports", "internal/guest/services", "internal/guest/signals", "internal/guest/smallfile", "internal/guest/users", "internal/guest/wire", "internal/lib/atomicfile", "internal/lib/boot", "internal/lib/fail", "sprites"},
	"internal/guest/files":     {"internal/guest/users", "internal/guest/wire", "internal/lib/fail", "sprites"},
	"internal/guest/loop":      {"internal/lib/fail", "internal/lib/printable", "internal/lib/tools"},
	"internal/guest/nest":      {"internal/guest/ports"},
	"internal/guest/ports":     {"internal/guest/wire", "internal/lib/fail", "sprites"},
	"internal/guest/probe":     {"."},
	"internal/guest/services":  {"internal/guest/signals", "internal/guest/smallfile", "internal/guest/wire", "internal/lib/atomicfile", "internal/lib/fail", "internal/lib/printable", "sprites"},
	"internal/guest/signals":   nil,
	"internal/guest/smallfile": {"internal/lib/atomicfile"},
	"internal/guest/spriteenv": {"sprites"},
	"internal/guest/step":      {"internal/guest/users", "internal/lib/boot", "internal/lib/buildstep"},
	"internal/guest/supervise": {".", "internal/lib/atomicfile", "internal/lib/boot", "internal/lib/editdistance", "internal/lib/mask", "internal/lib/printable", "internal/lib/proctree", "sprites"},
	"internal/guest/users":     {"internal/guest/smallfile", "internal/lib/boot"},
	"internal/guest/wire":      {"internal/lib/fail", "internal/lib/jsonbody", "sprites"},

	"internal/shim":         {".", "internal/lib/atomicfile", "internal/lib/boot", "internal/lib/fault", "internal/lib/logfile", "internal/lib/openfiles", "internal/lib/private", "internal/shim/base", "internal/shim/cgroup", "internal/shim/connect", "internal/shim/gateway", "internal/shim/kernel", "internal/shim/layers", "internal/shim/policy", "internal/shim/userns", "sprites"},
	"internal/shim/base":    {"internal/lib/atomicfile", "internal/lib/boot", "internal/shim/layers"},
	"internal/shim/cgroup":  nil,
	"internal/shim/connect": {".", "internal/shim/policy"}, // one table says which addresses the internet has not
	"internal/shim/gateway": {"internal/lib/duplex", "internal/shim/connect", "internal/shim/hostnet", "internal/shim/policy"},
	"internal/shim/hostnet": {"internal/shim/policy"},
	"internal/shim/kernel":  nil,
	"internal/shim/layers":  {"internal/lib/atomicfile"},
	"internal/shim/policy":  nil,
	"internal/shim/userns":  {"internal/lib/private"},

	"internal/server":                             {".", "internal/lib/atomicfile", "internal/lib/boot", "internal/lib/datafolder", "internal/lib/duplex", "internal/lib/fail", "internal/lib/jsonbody", "internal/lib/printable", "internal/lib/private", "internal/server/agents", "internal/server/build", "internal/server/harness", "internal/server/image", "internal/server/job", "internal/server/mcpserver", "internal/server/profile", "internal/server/sprite", "internal/server/stephint", "internal/server/store", "internal/server/web", "internal/server/webhook", "internal/shim/connect", "internal/shim/userns", "sprites"},
	"internal/server/agents":                      {".", "internal/lib/fail", "internal/lib/printable"},
	"internal/server/archive":                     {"internal/lib/safepath", "internal/server/extract", "internal/shim/layers", "sprites"},
	"internal/server/build":                       {".", "internal/lib/boot", "internal/lib/buildstep", "internal/lib/fail", "internal/lib/fault", "internal/server/dockerfile", "internal/server/dockerfile/source", "internal/server/image", "internal/server/sprite", "internal/server/store", "internal/shim/layers", "sprites"},
	"internal/server/dockerfile":                  {"internal/lib/fail"},
	"internal/server/dockerfile/source":           {"internal/lib/fail", "internal/server/dockerfile", "internal/shim/layers"},
	"internal/server/environment":                 {".", "internal/lib/fail", "internal/lib/keylock", "internal/server/store", "sprites"},
	"internal/server/environment/environmenttest": {".", "internal/server/environment", "internal/server/store", "sprites"},
	"internal/server/extract":                     nil,
	"internal/server/forge":                       {"internal/shim/connect"},
	"internal/server/harness":                     {".", "internal/lib/fail", "internal/lib/guestbin", "internal/lib/printable", "internal/server/agents", "internal/server/environment", "internal/server/profile", "internal/server/script", "internal/server/stephint", "internal/server/store", "internal/shim/connect", "internal/shim/policy", "sprites"},
	"internal/server/image":                       {"internal/lib/atomicfile", "internal/lib/fail", "internal/lib/fault", "internal/server/extract", "internal/server/store", "internal/shim/layers"},
	"internal/server/job":                         {".", "internal/lib/boot", "internal/lib/changerisk", "internal/lib/fail", "internal/lib/fault", "internal/lib/guestbin", "internal/lib/keylock", "internal/lib/printable", "internal/server/agents", "internal/server/environment", "internal/server/forge", "internal/server/script", "internal/server/stephint", "internal/server/store", "internal/server/unidiff", "internal/shim/connect", "sprites"},
	"internal/server/mcpserver":                   {".", "internal/lib/fail", "internal/lib/printable", "internal/lib/tools", "sprites"},
	"internal/server/netrules":                    {"internal/lib/fail", "internal/shim/connect", "internal/shim/policy", "sprites"},
	"internal/server/profile":                     {".", "internal/shim/connect", "internal/shim/policy", "sprites"},
	"internal/server/runtime/gvisor":              {"internal/lib/atomicfile", "internal/lib/boot", "internal/lib/fail", "internal/lib/fault", "internal/lib/private", "internal/server/archive", "internal/server/sprite", "internal/shim", "internal/shim/base", "internal/shim/cgroup", "internal/shim/connect", "internal/shim/kernel", "internal/shim/layers", "internal/shim/policy"},
	"internal/server/runtime/runtimetest":         {".", "internal/lib/boot", "internal/server/sprite", "sprites"},
	"internal/server/script":                      {"internal/lib/mask", "sprites"},
	"internal/server/sprite":                      {".", "internal/lib/boot", "internal/lib/fail", "internal/lib/fault", "internal/server/archive", "internal/server/store", "internal/shim/base", "internal/shim/cgroup", "internal/shim/connect", "internal/shim/hostnet", "internal/shim/layers", "internal/shim/policy", "sprites"},
	"internal/server/stephint":                    {".", "internal/shim/policy"},
	"internal/server/store":                       {".", "internal/lib/atomicfile", "internal/lib/fault", "internal/lib/private", "internal/shim/connect", "sprites"},
	"internal/server/unidiff":                     {"."},
	"internal/server/web":                         {".", "internal/lib/checkpointtree", "internal/lib/fail", "internal/lib/printable", "internal/lib/tomldoc", "internal/server/agents", "internal/server/netrules", "internal/shim/connect", "internal/shim/policy", "sprites"},
	"internal/server/webhook":                     {".", "internal/server/store", "internal/shim/policy"},

	"internal/cli":              {".", "internal/cli/acpserver", "internal/cli/buildcontext", "internal/cli/config", "internal/cli/gitwork", "internal/cli/push", "internal/cli/tree", "internal/lib/atomicfile", "internal/lib/checkpointtree", "internal/lib/children", "internal/lib/datafolder", "internal/lib/dockerignore", "internal/lib/fail", "internal/lib/filesync", "internal/lib/guestbin", "internal/lib/loopback", "internal/lib/openfiles", "internal/lib/printable", "internal/lib/private", "internal/lib/riskypath", "internal/lib/safepath", "internal/lib/tomldoc", "internal/lib/tools", "internal/server/agents", "internal/server/harness", "internal/server/mcpserver", "internal/server/netrules", "internal/shim/base", "internal/shim/cgroup", "internal/shim/connect", "internal/shim/kernel", "internal/shim/policy", "internal/shim/userns", "sprites"},
	"internal/cli/acpserver":    {"internal/lib/acp", "internal/lib/fail", "internal/lib/guestbin", "sprites"},
	"internal/cli/buildcontext": {"internal/lib/dockerignore", "internal/lib/fail"},
	"internal/cli/config":       {".", "internal/lib/atomicfile", "internal/lib/editdistance", "internal/lib/safepath", "internal/server/agents", "internal/shim/connect", "internal/shim/policy"},
	"internal/cli/gitwork":      {".", "internal/lib/atomicfile", "internal/lib/changerisk", "internal/lib/children", "internal/lib/fail", "internal/lib/printable", "internal/lib/riskypath", "internal/lib/safepath"},
	"internal/cli/push":         {".", "internal/cli/gitwork", "internal/lib/fail", "internal/lib/printable", "internal/lib/riskypath", "internal/server/netrules", "sprites"}, // push and page open the same for a repository's URL
	"internal/cli/tree":         {"internal/lib/fail", "internal/lib/filesync", "internal/lib/printable", "internal/lib/safepath"},

	"internal/test/covetest":                {everything},
	"internal/test/duplextest":              nil,
	"internal/test/e2e":                     {everything},
	"internal/test/executable":              nil,
	"internal/test/fakeprovider":            nil,
	"internal/test/gitserver":               nil,
	"internal/test/jobtest":                 {everything},
	"internal/test/leakcheck":               nil,
	"internal/test/leakcheck/cmd/leakcheck": {"internal/test/leakcheck"},
	"internal/test/modeltest":               nil,
	"internal/test/need":                    nil,
	"internal/test/webtest":                 {".", "internal/test/need"},
	"internal/test/openapi":                 nil,

	"cmd/cove":       {everything},
	"cmd/cove-guest": {".", "internal/cli/gitwork", "internal/guest", "internal/guest/nest", "internal/guest/probe", "internal/guest/spriteenv", "internal/guest/step", "internal/guest/supervise", "internal/lib/acp", "internal/lib/boot", "internal/lib/filesync", "internal/lib/tools", "sprites"},
	"cmd/cove-loop":  {"internal/guest/loop", "internal/lib/tools", "sprites"},
	"cmd/cove-runsc": {"internal/lib/boot", "internal/shim/cgroup", "internal/shim/kernel"},

	"examples/job": {".", "sprites"},
}

// wings has, for each folder of internal, the others that it may import from. The folders
// are named by where their code runs. Code that runs inside a sandbox has nothing of the
// host's, and code that looks after one sandbox has nothing of the server's.
var wings = map[string][]string{
	"lib":    nil, // no place of its own: small packages that several wings use
	"guest":  {"lib"},
	"shim":   {"lib"},
	"server": {"lib", "shim"},
	"cli":    {"lib", "server", "shim"},
	"test":   {"cli", "guest", "lib", "server", "shim"},
}

// wingOf is the wing of a package; empty: it is in none.
func wingOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "internal/")
	wing, _, _ := strings.Cut(rest, "/")
	if !ok {
		return ""
	}
	return wing
}

// onlyImporter has import paths of other modules, and for each the one package of ours that
// may import from below it. Runsc is a program of its own, and nothing else links it. The
// vendors' SDKs are large, so only the loop's program has them.
var onlyImporter = map[string]string{
	"gvisor.dev/gvisor/runsc":                "cmd/cove-runsc",
	"github.com/anthropics/anthropic-sdk-go": "internal/guest/loop",
	"github.com/openai/openai-go":            "internal/guest/loop",
	"google.golang.org/genai":                "internal/guest/loop",
}

// vagueNames are package names that say nothing about a package's content.
var vagueNames = []string{"util", "utils", "common", "shared", "types", "models", "helpers", "misc"}

// A tree has the facts about a module's Go files that the checks need.
type tree struct {
	packages map[string]*pkg // by folder, slash-separated, "." for the root
	long     []string        // files of more than maxLines lines
}

type pkg struct {
	name       string
	documented bool
	imports    map[string]string // import path to a file that has it; not those of tests
}

// readTree parses every Go file of the module in root, for its imports. It parses test
// files too, so that invalid Go in one is an error. It reads the files in this process,
// where the test cache sees it, and whatever their build constraints.
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

// skipFolder skips the folders that the go command leaves out, and other modules.
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
	rel := path.Clean(strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")) // of the root: "."
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

// The most methods of a type, and fields of a struct, that need no entry in large. A type
// that has more is usually several.
const (
	maxMethods = 30
	maxFields  = 25
)

// large has the types with more, their numbers, and the reason why each is one type
// nevertheless. A number only goes down: if you lower it in the code, lower it here.
var large = map[string]struct {
	methods, fields int
	why             string
}{
	"cove.Client":                   {methods: 35, why: "a method for each call of the API: a client's user looks for it there"},
	"internal/cli/gitwork.Repo":     {methods: 84, why: "a method for each run of git; it keeps the folder and git's version only"},
	"internal/lib/filesync.session": {methods: 41, why: "the stages of one sync, which share its two ends and its spools; it ends with them"},
	"internal/server/sprite.Host":   {methods: 47, why: "a method for each verb on a sprite, all by one lock per sprite; disk, layers and pool are types of their own"},
	"internal/server/store.Sprite":  {fields: 27, why: "a row: a field for each column"},
	"internal/server/store.Sprites": {methods: 34, why: "a method for each statement on one table; it keeps the database only"},
	"internal/shim.State":           {fields: 27, why: "a file: a field for each line of sandbox.json"},
	"internal/shim/gateway.Gateway": {methods: 55, fields: 40, why: "TCP, UDP and DNS of one sandbox by one policy that changes under all three at once"},
	"sprites.Sprite":                {methods: 66, why: "a method for each call on a sprite, named as in the official SDKs"},
}

// shape counts the methods of each type and the fields of each struct, tests aside.
func shape(root string) (methods, fields map[string]int, err error) {
	methods, fields = map[string]int{}, map[string]int{}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, file, d.Name())
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		count(parsed, filepath.ToSlash(rel), methods, fields)
		return nil
	})
	return methods, fields, err
}

func count(file *ast.File, dir string, methods, fields map[string]int) {
	if dir == "." {
		dir = "cove"
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				methods[dir+"."+receiver(n.Recv.List[0].Type)]++
			}
		case *ast.TypeSpec:
			switch t := n.Type.(type) {
			case *ast.StructType:
				for _, f := range t.Fields.List {
					fields[dir+"."+n.Name.Name] += max(len(f.Names), 1)
				}
			case *ast.InterfaceType:
				methods[dir+"."+n.Name.Name] += len(t.Methods.List)
			}
		}
		return true
	})
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

// TestShape: no type has more methods or fields than the maximum, and the types in large
// get no further ones.
func TestShape(t *testing.T) {
	methods, fields, err := shape(".")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, counts map[string]int, most int, noted func(string) int) {
		for name, n := range counts {
			switch allowed := noted(name); {
			case n > max(allowed, most):
				t.Errorf("%s has %d %s; %d are allowed: is it one thing?", name, n, what, max(allowed, most))
			case n < allowed && allowed > most:
				t.Errorf("%s has %d %s by now, and %d are noted: note that", name, n, what, allowed)
			}
		}
	}
	check("methods", methods, maxMethods, func(name string) int { return large[name].methods })
	check("fields", fields, maxFields, func(name string) int { return large[name].fields })
	for name, l := range large {
		if methods[name] == 0 && fields[name] == 0 || l.methods <= maxMethods && l.fields <= maxFields {
			t.Errorf("%s is noted, and is not there or not large", name)
		}
		if l.why == "" {
			t.Errorf("%s is noted without a reason", name)
		}
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

// TestWings: each package of internal is in a wing, and the table lets none import from a
// wing that its own may not see.
func TestWings(t *testing.T) {
	for dir, allowed := range imports {
		wing := wingOf(dir)
		if wing == "" {
			continue
		}
		sees, ok := wings[wing]
		if !ok {
			t.Errorf("%s is in no wing", dir)
		}
		for _, name := range allowed {
			if other := wingOf(name); other != "" && other != wing && !slices.Contains(sees, other) {
				t.Errorf("the row of %s allows %s, and the wing %s does not see %s", dir, name, wing, other)
			}
		}
	}
	for wing := range wings {
		if info, err := os.Stat(filepath.Join("internal", wing)); err != nil || !info.IsDir() {
			t.Errorf("there is no wing %s: %v", wing, err)
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
		}, []string{"a/a.go: a may not import ."}},
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
