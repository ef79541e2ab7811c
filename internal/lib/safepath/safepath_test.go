package safepath

import (
	"path"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, ok := range []string{"a", "a/b", "-rf", "a b/\n", "...", "a\\b", "\xff\xfe", strings.Repeat("x", MaxName), ".gitignore"} {
		if err := Check(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "/a", "a/", "a//b", "a/../b", "./a", "a/.", "a\x00", strings.Repeat("x", MaxName+1), strings.Repeat("x/", MaxPath/2) + "x"} {
		if Check(bad) == nil {
			t.Errorf("%.40q is allowed", bad)
		}
	}
}

func TestLinkLeaves(t *testing.T) {
	for _, c := range []struct {
		dir, target string
		leaves      bool
	}{
		{".", "a", false}, {"a", "../b", false}, {"a/b", "../../c", false}, {"a", ".", false}, {"a", "..", false},
		{".", "..", true}, {"a", "../..", true}, {".", "/etc/passwd", true}, {".", "a/..", true}, {"a/b", "c/../../d", true}, {"a", "../../a", true},
	} {
		if got := LinkLeaves(c.dir, c.target); got != c.leaves {
			t.Errorf("a link in %s to %s: %v", c.dir, c.target, got)
		}
	}
}

func TestIsDotGit(t *testing.T) {
	for _, name := range []string{".git", ".GIT", ".Git.", ".git ", "git~1", "GIT~12", ".git::$INDEX_ALLOCATION", ".g\u200cit", ".git. . ", ".g\u00adit", ".gİt"} {
		if !IsDotGit(name) || !HasDotGit("a/"+name+"/b") {
			t.Errorf("%q passes", name)
		}
	}
	for _, name := range []string{".gitignore", "git", "git~", "git~x", ".gi", "x.git", ".github"} {
		if IsDotGit(name) {
			t.Errorf("%q is refused", name)
		}
	}
}

func TestFold(t *testing.T) {
	for name, want := range map[string]string{
		".vscode": ".vscode", ".VSCode": ".vscode", ".v\u017fcode": ".vscode", ".claude.": ".claude", ".claude..": ".claude", ".cla\u200cude": ".claude",
		".mcp.json::$DATA": ".mcp.json", "Jen\u212ainsfile": "jenkinsfile", "Make\ufb01le": "makefile", "re\ufb00s": "reffs", "\u00ad.env": ".env", ".env\ufe0f": ".env",
		"straße": "strasse", "É": "é", "a\xff": "a\ufffd", "...": "",
	} {
		if got := Fold(name); got != want || Fold(got) != got {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

func TestGitParts(t *testing.T) {
	for names, want := range map[string]bool{
		"HEAD objects refs": true, "head OBJECTS re\u200cfs.": true, "HEAD commondir": true, "HEAD objects": false, "objects refs config": false,
		"commondir objects refs": false, "HEADS objects refs": false, "": false,
	} {
		var parts GitParts
		for name := range strings.FieldsSeq(names) {
			parts |= GitPart(name)
		}
		if parts.Repository() != want {
			t.Errorf("%q: %v", names, parts.Repository())
		}
	}
}

// FuzzCheck: a path that passes stays below the root, and is its own clean form.
func FuzzCheck(f *testing.F) {
	f.Add("a/b", "../c")
	f.Add("a/../b", "..")
	f.Fuzz(func(t *testing.T, name, target string) {
		if Check(name) != nil {
			return
		}
		if path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(path.Join("r", name), "..") {
			t.Fatalf("%q passes", name)
		}
		if !LinkLeaves(path.Dir(name), target) {
			if end := path.Join("r", path.Dir(name), target); end != "r" && !strings.HasPrefix(end, "r/") {
				t.Fatalf("a link at %q to %q ends at %q", name, target, end)
			}
		}
	})
}
