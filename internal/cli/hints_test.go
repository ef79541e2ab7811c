package cli

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/push"
)

// A command in a hint names the sprite and the server of this run. If it does so already, it
// is not changed.
func TestHintsAreCompleted(t *testing.T) {
	inv := newInvocation(Streams{})
	newRootCommand(inv)
	inv.hints.about, *inv.global = "small", globals{url: "http://h:1", backend: "far", data: "/d d"}
	const far = " --url http://h:1 --backend far --data '/d d'"
	for text, want := range map[string]string{
		"allow it: cove policy allow api.example.org":              "allow it: cove policy allow -s small" + far + " api.example.org",
		"cove policy allow -s other api.example.org":               "cove policy allow" + far + " -s other api.example.org",
		"cove policy show; cove policy allow a:1/udp":              "cove policy show -s small" + far + "; cove policy allow -s small" + far + " a:1/udp",
		"raise it: cove update NAME --disk 2G; or wait":            "raise it: cove update" + far + " small --disk 2G; or wait",
		"cove update other --disk 2G":                              "cove update" + far + " other --disk 2G",
		"cove update --disk 2G":                                    "cove update -s small" + far + " --disk 2G",
		"restart it: cove suspend, cove wake":                      "restart it: cove suspend -s small" + far + ", cove wake -s small" + far,
		"cove exec -s NAME --user root -- ls":                      "cove exec" + far + " -s small --user root -- ls",
		"cove exec --user root -- sh -c 'ls; cove policy show -s'": "cove exec -s small" + far + " --user root -- sh -c 'ls; cove policy show -s'",
		"see: cove job list":                                       "see: cove job list" + far,
		"let one sleep: cove list, cove rm NAME":                   "let one sleep: cove list" + far + ", cove rm" + far + " NAME",
		"cove service put NAME CMD":                                "cove service put -s small" + far + " NAME CMD",
		"start it: cove server start":                              "start it: cove server start --data '/d d'",
		"see: cove doctor --data /e":                               "see: cove doctor --data /e",
		"cove help policy; cove policy --help; cove config show":   "cove help policy; cove policy --help; cove config show",
		"see them: cove agent list; cove agent add x.toml":         "see them: cove agent list" + far + "; cove agent add x.toml",
		"cove exec --help":                                         "cove exec --help",
		"on the host: cove secret set x; cove connector list":      "on the host: cove secret set x; cove connector list",
		"cove works, with less; ~/cove list; cove-guest, cove":     "cove works, with less; ~/cove list; cove-guest, cove",
		"  no cove here":                                           "  no cove here",
	} {
		got := inv.hints.full(text)
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
		if again := inv.hints.full(got); strings.Count(again, " --url ") != strings.Count(want, " --url ") || strings.Count(again, "-s ") != strings.Count(want, "-s ") {
			t.Errorf("completed twice: %s", again)
		}
	}
	inv.hints.syncs = syncHint{local: "/my site", remote: "site", exclude: []string{"/a b", "*.o"}, noIgnore: true}
	for text, want := range map[string]string{
		"see: cove sync status":                "see: cove sync status -s small --exclude '/a b' --exclude '*.o' --no-ignore '/my site' site" + far,
		"cove sync pull --exclude '*.o' x y":   "cove sync pull -s small --exclude '/a b' --no-ignore" + far + " --exclude '*.o' x y",
		"cove sync pull --on-conflict theirs;": "cove sync pull -s small --exclude '/a b' --exclude '*.o' --no-ignore site '/my site'" + far + " --on-conflict theirs;",
		"cove sync undo --id 3":                "cove sync undo -s small '/my site' site" + far + " --id 3",
	} {
		got := inv.hints.full(text)
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
		if again := inv.hints.full(got); strings.Count(again, "--exclude") != strings.Count(want, "--exclude") || strings.Count(again, "site") != strings.Count(want, "site") {
			t.Errorf("completed twice: %s", again)
		}
	}
	none := newInvocation(Streams{})
	newRootCommand(none)
	for _, text := range []string{"cove policy allow x", "cove update NAME --disk 2G", "cove job list"} {
		if got := none.hints.full(text); got != text {
			t.Errorf("with no sprite and no server: %s", got)
		}
	}
}

// Arguments that are refused before anything is done leave the sprite of -s known.
func TestUsageNamesItsSprite(t *testing.T) {
	var errs bytes.Buffer
	args := []string{"checkpoint", "create", "-s", "paint", "--memory", "always"}
	if exit := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &errs, Err: &errs}); exit != exitUsage || !strings.Contains(errs.String(), "cove checkpoint create -s paint --memory=always") {
		t.Errorf("exit code %d: %s", exit, errs.String())
	}
}

// A pull says completely, in its document and in its text, which commands to type.
func TestPullNamesItsServer(t *testing.T) {
	for _, asJSON := range []bool{true, false} {
		var out bytes.Buffer
		inv := newInvocation(Streams{Out: &out, Err: &out})
		newRootCommand(inv)
		inv.global.url, inv.global.json = "http://h:1", asJSON
		p := pulled{Pulled: push.Pulled{Result: push.NoChanges, Job: "a3f7b2", Messages: []string{"see why: cove job logs a3f7b2"}, Next: []string{"cove job merge a3f7b2"}}}
		if err := showPulled(inv, p, nil, ""); err != nil {
			t.Fatal(err)
		}
		want := []string{"cove job logs --url http://h:1 a3f7b2"}
		if asJSON {
			want = append(want, "cove job merge --url http://h:1 a3f7b2")
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("JSON %v: want %q in:\n%s", asJSON, w, out.String())
			}
		}
	}
}

// newHintingServer is a server that refuses everything with one hint.
func newHintingServer(t *testing.T, hint string) string {
	text := `{"error":{"code":"invalid","message":"no","hint":` + strconv.Quote(hint) + `}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, http.StatusBadRequest) }))
	t.Cleanup(s.Close)
	return s.URL
}

// Hints of errors, of remarks and of documents are complete: whatever the way to the
// sprite's name, a server's hint is shown with it.
func TestErrorsNameTheirSprite(t *testing.T) {
	server := newHintingServer(t, "allow it: cove policy allow api.example.org")
	noted := t.TempDir()
	if _, err := writeSpriteFile(noted, "noted"); err != nil {
		t.Fatal(err)
	}
	t.Chdir(noted)
	t.Setenv("COVE_SPRITE", "")
	for line, name := range map[string]string{
		"exec -- true": "noted", "policy show -s flag": "flag", "update arg --idle 1m": "arg", "wake": "noted", "export -s flag": "flag",
		"suspend arg": "arg", "setup arg": "arg", "create made": "made", "cp flag:x -": "flag", "fork arg new": "arg", "rm arg": "arg", "diagnose -s flag": "flag",
	} {
		for _, mode := range []string{"", "--json"} {
			args, rest, _ := strings.Cut(line, " -- ")
			all := append(strings.Fields(args), "--url", server, "--token", "x")
			if mode != "" {
				all = append(all, mode)
			}
			if rest != "" {
				all = append(append(all, "--"), strings.Fields(rest)...)
			}
			if mode != "" && slices.Contains([]string{"exec", "export", "cp"}, all[0]) {
				continue // their output is another one's
			}
			var out, errs bytes.Buffer
			if Main(t.Context(), all, Streams{In: strings.NewReader(""), Out: &out, Err: &errs}) == exitOK {
				t.Errorf("%s: no error", line)
			}
			want := "cove policy allow -s " + name + " --url " + server + " api.example.org"
			if said := out.String() + errs.String(); !strings.Contains(said, want) {
				t.Errorf("%s %s: want %q in:\n%s", line, mode, want, said)
			}
		}
	}
}

// prose are literals that speak of a command and do not say to type it, or that quote it
// for a program: by their beginning.
var prose = []string{
	"cove session of ", "cove config, cove use, cove sync", "cove sync base 1", "cove secret v1", "Made by cove doctor.",
	"it speaks version %d of ACP, and cove version %d", "cove version %s", "cove serve --data %s",
}

// Every literal of the repository that says to type a command names an existing command and
// flags that it has. No punctuation follows the command that a reader would copy with it. In
// the command line, every such literal goes through hinter.full, which names the sprite.
// Elsewhere, a literal is a part of an error or of an answer, which goes through hinter.full,
// too. If its own package prints or logs the literal, it must be complete as it is.
func TestHintsAreCommands(t *testing.T) {
	root := newRootCommand(newInvocation(Streams{}))
	root.AddCommand(readServe(t))
	found := 0
	for _, top := range []string{"../../internal", "../../cmd", "../../sprites"} {
		err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			n, err := checkHints(t, root, name)
			found += n
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 150 {
		t.Errorf("%d hints were found: the test does not see them", found)
	}
}

// readServe is the command serve, which another package has, with its flags.
func readServe(t *testing.T) *cobra.Command {
	text, err := os.ReadFile("../../cmd/cove/serve.go")
	if err != nil {
		t.Fatal(err)
	}
	serve := &cobra.Command{Use: "serve", Run: func(*cobra.Command, []string) {}}
	for _, m := range regexp.MustCompile(`\.(\w+)Var\(&o\.\w+, "([a-z-]+)"`).FindAllSubmatch(text, -1) {
		serve.Flags().String(string(m[2]), "", "")
		if string(m[1]) == "Bool" {
			serve.Flags().Lookup(string(m[2])).NoOptDefVal = "true"
		}
	}
	return serve
}

// printing are functions that write their arguments as they are.
var printing = []string{"Fprint", "Fprintf", "Fprintln", "Print", "Printf", "Println", "WriteString", "Info", "Warn", "Error", "Debug"}

// checkHints looks at all literals of a file and says how many commands they have.
func checkHints(t *testing.T, root *cobra.Command, name string) (found int, err error) {
	if _, err := os.Stat(name); err != nil {
		return 0, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	var stack []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || slices.ContainsFunc(prose, func(p string) bool { return strings.HasPrefix(text, p) }) {
			return true
		}
		at := files.Position(lit.Pos())
		help := inHelp(stack)
		text = joined(stack, lit, text)
		for {
			i := commandAt(text)
			if i < 0 {
				return true
			}
			text = text[i:]
			checkHint(t, root, at, text, help, stack)
			if _, ok := readHint(root, text); ok {
				found++
			}
			text = text[len(program):]
		}
	})
	return found, nil
}

// checkHint looks at the command that a text begins with.
func checkHint(t *testing.T, root *cobra.Command, at token.Position, text string, help bool, stack []ast.Node) {
	words, _ := hintWords(text)
	h, ok := readHint(root, text)
	if !ok {
		// A text may name a group by itself, but not with a subcommand that does not exist.
		if c := subcommand(root, words[min(1, len(words)-1)].text); c != nil && len(words) > 2 && !c.HasAvailableSubCommands() {
			t.Errorf("%s: %q is no command", at, text)
		}
		return
	}
	if goesOn := strings.HasSuffix(text[:h.end], " "); !help && !goesOn && !isWhole(h) {
		t.Errorf("%s: %q lacks what %q needs", at, text[:h.end], h.cmd.Use)
	}
	if rest := text[h.end:]; !help && rest != "" && (strings.IndexByte(".:?", rest[0]) >= 0 || strings.HasPrefix(rest, ", cove ") || strings.HasPrefix(rest, ", then cove ")) {
		t.Errorf("%s: %q goes on with %.10q, which is copied with it", at, text[:h.end], rest)
	}
	unknown := slices.DeleteFunc(h.unknown, func(flag string) bool { return flag == "--X" }) // fmt puts it in
	if len(unknown) > 0 {
		t.Errorf("%s: %s has no %q: %.80q", at, h.cmd.CommandPath(), unknown, text)
	}
	use := usesSprite(h.cmd)
	needs := (use == byName || use == byFlag) && !h.sprite && !h.help
	if call := printingCall(stack); call != "" && !help && !completedBy(stack) && (needs || strings.HasSuffix(filepath.Dir(at.Filename), "internal/cli")) {
		t.Errorf("%s: %s prints %.80q past hinter.full", at, call, text)
	}
}

// isWhole reports whether a command in a hint has the arguments, and the flags, that one of
// the forms in its usage needs.
func isWhole(h hint) bool {
	if h.help {
		return true
	}
	return slices.ContainsFunc(strings.Split(h.cmd.Use, " | "), func(form string) bool {
		args, whole := 0, true
		words := strings.Fields(strings.TrimPrefix(form, h.cmd.Name()+" "))
		for i := 0; i < len(words) && words[i] != h.cmd.Name() && words[i] != ">" && words[i] != "<"; i++ {
			if flag, ok := strings.CutPrefix(words[i], "-"); ok {
				long, ok := strings.CutPrefix(flag, "-")
				if !ok {
					long = h.cmd.Flags().ShorthandLookup(flag).Name
				}
				whole = whole && h.given[long]
				i++ // its value
			} else if !strings.HasPrefix(words[i], "[") {
				args++
			}
		}
		return whole && len(h.args) >= args
	})
}

// wordsForVerbs puts a word in place of what fmt puts in.
var wordsForVerbs = strings.NewReplacer("%s", "X", "%d", "1", "%q", "X", "%v", "X", "%[1]s", "X", "%[2]s", "X")

// joined is a literal with the expressions that are added to it. X takes the place of those
// that are not literals.
func joined(stack []ast.Node, lit *ast.BasicLit, text string) string {
	from := len(stack) - 1
	for from > 0 {
		if b, ok := stack[from-1].(*ast.BinaryExpr); !ok || b.Op != token.ADD {
			break
		}
		from--
	}
	if from == len(stack)-1 {
		return wordsForVerbs.Replace(text)
	}
	var parts strings.Builder
	after := false
	var walk func(e ast.Expr)
	walk = func(e ast.Expr) {
		if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
			walk(b.X)
			walk(b.Y)
			return
		}
		after = after || e == ast.Expr(lit)
		if !after {
			return // literals before it are checked by themselves
		}
		s := "X"
		if l, ok := e.(*ast.BasicLit); ok {
			if v, err := strconv.Unquote(l.Value); err == nil {
				if s = v; e != ast.Expr(lit) && commandAt(s) >= 0 {
					s = s[:commandAt(s)]
				}
			}
		}
		parts.WriteString(s)
	}
	walk(stack[from].(ast.Expr))
	return wordsForVerbs.Replace(parts.String())
}

// inHelp reports whether a literal is a part of a command's help, or of a flag's.
func inHelp(stack []ast.Node) bool {
	for i, n := range stack {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && slices.Contains([]string{"Use", "Short", "Long", "Example", "Annotations"}, key.Name) {
				return true
			}
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if ok && (strings.HasSuffix(sel.Sel.Name, "Var") || strings.HasSuffix(sel.Sel.Name, "VarP")) && i < len(stack)-1 {
				return true
			}
		}
	}
	return false
}

// called is the name of a call's function.
func called(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

// printingCall is the function that writes a literal, or empty. A call within another one, such
// as of fmt.Errorf, is not looked past.
func printingCall(stack []ast.Node) string {
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.CallExpr:
			if name := called(n); slices.Contains(printing, name) {
				return name
			} else if name != "Sprintf" && name != "Quote" && name != "Text" && name != "Line" {
				return ""
			}
		case *ast.FuncLit, ast.Stmt:
			return ""
		}
	}
	return ""
}

// completedBy reports whether a literal goes through hinter.full.
func completedBy(stack []ast.Node) bool {
	return slices.ContainsFunc(stack, func(n ast.Node) bool { return called(n) == "full" })
}

// A literal that is not as it should be is found.
func TestHintCheckFinds(t *testing.T) {
	root := newRootCommand(newInvocation(Streams{}))
	for text, want := range map[string]string{"cove list --no-such": "--no-such", "cove update x --disk 1G": "", "cove exec -s x -- ls --no-such": "", "cove job logs -f x": ""} {
		h, ok := readHint(root, text)
		if !ok || strings.Join(h.unknown, " ") != want {
			t.Errorf("%s: %v, unknown %q, want %q", text, ok, h.unknown, want)
		}
	}
	for text, want := range map[string]bool{
		"cove token create": false, "cove token create x": true, "cove exec --user root": false, "cove exec -s x -- ls": true, "cove push --memory 2G": false,
		"cove push -p x": true, "cove push x": true, "cove connector grant x": false, "cove connector grant x --label y": true, "cove rm --help": true, "cove update --disk 1G": true,
	} {
		if h, _ := readHint(root, text); isWhole(h) != want {
			t.Errorf("%s is complete: %v, want %v", text, !want, want)
		}
	}
	var expr ast.Expr
	for text, want := range map[string]string{
		`fmt.Fprintf(w, "cove list")`: "Fprintf", `fmt.Fprintln(w, printable.Text("cove list"+x))`: "Fprintln", `a.tell(w, "cove list")`: "", `hinted(err, "cove list")`: "",
	} {
		var err error
		if expr, err = parser.ParseExpr(text); err != nil {
			t.Fatal(err)
		}
		var stack, at []ast.Node
		ast.Inspect(expr, func(n ast.Node) bool {
			if n == nil {
				stack = stack[:len(stack)-1]
				return true
			}
			stack = append(stack, n)
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				at = slices.Clone(stack)
			}
			return true
		})
		if got := printingCall(at); got != want {
			t.Errorf("%s is printed by %q, want %q", text, got, want)
		}
	}
}
