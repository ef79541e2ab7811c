package filesync

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// travels lists the files of a tree that rules let through.
func travels(t *testing.T, root string, rules Rules) []string {
	t.Helper()
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	var list []string
	if _, err := tr.scan(t.Context(), rules, func(e *Entry) error {
		if e.Type != Dir {
			list = append(list, e.Path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

// gitLists is what git itself would take.
func gitLists(t *testing.T, root string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "core.quotePath=false", "ls-files", "-z", "--exclude-standard"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	slices.Sort(list)
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

func gitInit(t *testing.T, root string) {
	t.Helper()
	if out, err := exec.Command("git", "-c", "init.defaultBranch=main", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestIgnoreAsGit compares with git's own list, for patterns of every kind, and
// for random ones.
func TestIgnoreAsGit(t *testing.T) {
	w := newWorld(t)
	root := w.local
	gitInit(t, root)
	names := []string{"a", "b", "ab", "build", "x.o", "a.b.c", "!x", "#x", "sp ", "br[x]", "{a,b}", "back\\s", "é"}
	for _, a := range names {
		w.write(root, a+".f", "1")
		for _, b := range names {
			w.write(root, a+"/"+b+".f", "1", a+"/sub/"+b, "1")
		}
	}
	fixed := []string{"build", "/build", "build/", "/a/*.f", "a/**/b", "**/b", "a/**", "**", "*", "*.f\n!a.f\n", "/*\n!/a\n", "/*\n!/a/\n/a/*\n!/a/sub/", "[ab]", "[!a]", "[^a]/x.o.f",
		"a?", "\\!x*", "\\#x*", "#x*", "sp ", "sp\\ ", "sp\\ /", "br[[]x]", "br\\[x\\]", "{a,b}", "back\\\\s", "back\\\\s*", "[[:alpha:]]", "[a-b]*", "x.[o]", "a**b", "a/**b", "**a", "****/[ab]", "a/***/b", "sub/", "/sub", "a/sub/", "!a",
		"é", "?.f", "[]]", "[", "a\\", "*/sub", "*/sub/*\n!*/sub/a", "a/*/b", "\r\nbuild\r\n", "   ", "/", "//", "a//b", "*.F", "[a\\-z]", "[]-a]*"}
	check := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, ".gitignore"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		want := gitLists(t, root, "-co")
		if got := travels(t, root, Rules{Read: true}); !slices.Equal(got, want) {
			for _, name := range got {
				if !slices.Contains(want, name) {
					t.Errorf("with %q, %q travels", text, name)
				}
			}
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Errorf("with %q, %q does not travel", text, name)
				}
			}
		}
	}
	for _, text := range fixed {
		check(text)
	}
	seed := uint64(1)
	if os.Getenv("COVE_SOAK") == "1" {
		seed = uint64(time.Now().UnixNano())
	}
	r := rand.New(rand.NewPCG(seed, 2))
	parts := []string{"a", "b", "*", "**", "/", "/", "!", "?", "[ab]", "sub", "x", ".", "f", "o", "\\", " ", "[!x]", "build", "\n", "\n", "{", "}", ","}
	for range 150 {
		var b strings.Builder
		for range 1 + r.IntN(9) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		if unclear.MatchString(b.String()) {
			continue
		}
		check(b.String())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// unclear are patterns with a ** that is two asterisks by git's manual. Git itself treats them
// differently from one time to the next, because it compares addresses of two strings.
var unclear = regexp.MustCompile(`[^/\n*]\*{2,}(\\?/|\n|$)`)

// TestIgnoreTracked: tracked files travel although they are ignored. Nested ignore files
// count, and so do those above the root.
func TestIgnoreTracked(t *testing.T) {
	w := newWorld(t)
	root := w.local
	gitInit(t, root)
	w.write(root, ".gitignore", "*.log\ndist/\n", "a.log", "1", "dist/kept", "2", "dist/not", "3", "sub/.gitignore", "!b.log\n/only\n", "sub/b.log", "4", "sub/only", "5", "sub/d/only", "6", "sub/c.log", "7")
	if out, err := exec.Command("git", "-C", root, "add", "-f", "a.log", "dist/kept").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tracked := strings.Join(gitLists(t, root, "-ci"), "\x00") + "\x00"
	got, want := travels(t, root, Rules{Read: true, Tracked: []byte(tracked)}), gitLists(t, root, "-co")
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	sub := filepath.Join(root, "sub")
	rules := Rules{Read: true, Git: []Patterns{{Dir: []byte("sub"), Text: []byte("*.log\ndist/\n/sub/d\n")}}}
	if got := travels(t, sub, rules); !slices.Equal(got, []string{".gitignore", "b.log"}) {
		t.Errorf("got %q", got)
	}
}

// FuzzIgnore: no text makes the matcher fail, and its answer does not depend on
// what was asked before.
func FuzzIgnore(f *testing.F) {
	f.Add("*.log\n!a/**/b[0-9]\n", "a/x/b1")
	f.Add("[[:alpha:]]\\", "\xff/[")
	f.Fuzz(func(t *testing.T, text, name string) {
		if len(text) > 1000 || len(name) > 200 || name == "" || strings.Contains(name, "//") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") {
			return
		}
		rules := Rules{Exclude: strings.Split(text, "\n")}
		read := func(string, string) string { return "" }
		fresh := newMatcher(rules, read)
		fresh.enter("")
		a := fresh.skip(name, false)
		m := newMatcher(rules, read)
		m.enter("")
		m.skip(name+"/below", true)
		if b := m.skip(name, false); a != b {
			t.Fatalf("%q, and then %q", a, b)
		}
	})
}

// TestSpriteFileStays: the file .sprite, which names a sprite, does not travel. A folder of that
// name travels like any other.
func TestSpriteFileStays(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{".sprite", "sub/.sprite", "game/.sprite/hero", "a"} {
		w.write(w.local, name, "1")
	}
	if got, want := travels(t, w.local, Rules{}), []string{"a", "game/.sprite/hero"}; !slices.Equal(got, want) {
		t.Errorf("%q travel, want %q", got, want)
	}
}
