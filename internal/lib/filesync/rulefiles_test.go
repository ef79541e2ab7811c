package filesync

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// secrets are what the rules of newSecrets keep on this machine.
var secrets = []string{".env", "notes/a", "sub/.env", "conf/secret"}

// newSecrets is a pair in step whose folder here has files that do not travel.
func newSecrets(t *testing.T) *world {
	w := newWorld(t)
	w.write(w.local, ".gitignore", ".env\nnotes/\n", "conf/.gitignore", "# mine\nsecret\n", "conf/b", "b", "sub/b", "b", "a", "a", "global", "*.key\n", "x.key", "here")
	for _, name := range secrets {
		w.write(w.local, name, "here")
	}
	w.RuleFiles = []string{filepath.Join(w.local, "global")}
	w.Rules.Git = []Patterns{{Text: []byte("*.key\n")}}
	w.run(Push, "")
	return w
}

func heldPaths(r *Report) (names []string) {
	for _, risk := range r.Held.Paths {
		names = append(names, risk.Path)
	}
	return names
}

// TestRulesOfASpriteAreHeld: a sprite's ignore file does not make a later push send files that
// were ignored here. Nor does it make a later pull delete them, unless the person takes the
// ignore file.
func TestRulesOfASpriteAreHeld(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		held   []string
		fails  string // how the pull that takes it ends
	}{
		"emptied":         {func(w *world) { w.write(w.remote, ".gitignore", "") }, []string{".gitignore"}, ""},
		"a line less":     {func(w *world) { w.write(w.remote, ".gitignore", "notes/\n") }, []string{".gitignore"}, ""},
		"deleted":         {func(w *world) { w.remove(w.remote, ".gitignore") }, []string{".gitignore"}, ""},
		"coveignore":      {func(w *world) { w.write(w.remote, ".coveignore", "!.env\n!notes/\n") }, []string{".coveignore"}, ""},
		"byte order mark": {func(w *world) { w.write(w.remote, ".coveignore", "\ufeff!.env\n") }, []string{".coveignore"}, ""},
		"nested":          {func(w *world) { w.write(w.remote, "sub/.gitignore", "!.env\n") }, []string{"sub/.gitignore"}, ""},
		"a link":          {func(w *world) { w.remove(w.remote, ".gitignore"); w.write(w.remote, ".gitignore", "-> a") }, []string{".gitignore"}, ""},
		"a folder":        {func(w *world) { w.remove(w.remote, ".gitignore"); w.write(w.remote, ".gitignore/x/y", "1") }, []string{".gitignore"}, ""},
		"not readable":    {func(w *world) { w.chmod(filepath.Join(w.remote, ".gitignore"), 0) }, []string{".gitignore"}, ""},
		"too large": {func(w *world) {
			w.write(w.remote, ".gitignore", ".env\nnotes/\n"+strings.Repeat("x\n", maxIgnoreFile))
		}, []string{".gitignore"}, ""},
		"no text":           {func(w *world) { w.write(w.remote, ".gitignore", ".env\nnotes/\n\x00\n") }, []string{".gitignore"}, ""},
		"folder deleted":    {func(w *world) { w.remove(w.remote, "conf") }, []string{"conf/.gitignore"}, ""},
		"folder moved":      {func(w *world) { w.rename("conf", "moved") }, []string{"conf/.gitignore"}, ""},
		"folder to file":    {func(w *world) { w.remove(w.remote, "conf"); w.write(w.remote, "conf", "1") }, []string{"conf", "conf/.gitignore"}, CodeConflict},
		"folder to link":    {func(w *world) { w.remove(w.remote, "conf"); w.write(w.remote, "conf", "-> sub") }, []string{"conf", "conf/.gitignore"}, CodeConflict},
		"file of the user":  {func(w *world) { w.write(w.remote, "global", "\n") }, []string{"global"}, ""},
		"without its rules": {func(w *world) { w.Rules = Rules{}; w.Hold = isSecret; w.write(w.remote, ".gitignore", "") }, []string{".gitignore"}, ""},
		"merged": {func(w *world) {
			w.write(w.local, ".gitignore", "1\n2\n3\n.env\nnotes/\n4\n5\n6\n")
			w.run(Push, "")
			w.write(w.local, ".gitignore", "1\n2\n3\n.env\nnotes/\n4\n5\n6\n7\n")
			w.write(w.remote, ".gitignore", "1\n2\n.env\nnotes/\n4\n5\n6\n")
		}, []string{".gitignore"}, ""},
		"theirs": {func(w *world) {
			w.Policy = Theirs
			w.write(w.remote, ".gitignore", "")
			w.write(w.local, ".gitignore", ".env\nnotes/\nx\n")
		}, []string{".gitignore"}, CodeConflict},
		"a reset": {func(w *world) { w.Reset = true; w.write(w.remote, ".gitignore", "") }, []string{".gitignore"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSecrets(t)
			rules := w.Rules
			c.change(w)
			w.write(w.remote, "comes", "1")
			before := map[string]string{}
			for _, name := range []string{".gitignore", "conf/.gitignore", ".coveignore", "sub/.gitignore", "global"} {
				before[name] = w.read(w.local, name)
			}
			r := w.run(Pull, "")
			if got := heldPaths(r); !slices.Equal(got, c.held) || r.Held.Count != int64(len(c.held)) {
				t.Errorf("held %q, want %q", got, c.held)
			}
			for name, was := range before {
				if got := w.read(w.local, name); got != was {
					t.Errorf("%s says %.50q, and said %.50q", name, got, was)
				}
			}
			if w.read(w.local, "comes") != "1" {
				t.Error("the rest did not come")
			}
			w.Rules, w.Hold, w.Policy, w.Reset = rules, nil, Fail, false
			staysHere := func() {
				t.Helper()
				for _, name := range secrets {
					if got, _ := os.ReadFile(filepath.Join(w.remote, name)); string(got) == "here" {
						t.Errorf("%s was sent", name)
					}
					if got := w.read(w.local, name); got != "here" {
						t.Errorf("%s says %q", name, got)
					}
				}
			}
			w.sync(Push)
			staysHere()
			w.sync(Pull)
			w.sync(Push)
			staysHere()
			w.AcceptRisky = true
			if r := w.run(Pull, c.fails); r.Held.Count > 0 {
				t.Errorf("%q is held all the same", heldPaths(r))
			}
		})
	}
}

// isSecret reports whether a path is one of secrets: a sync without rules would bring it.
func isSecret(name string) bool { return slices.Contains(secrets, name) }

// sync syncs, unless a path has changed at both ends.
func (w *world) sync(verb Verb) {
	w.t.Helper()
	w.Verb = verb
	if _, err := w.Run(w.t.Context()); err != nil {
		w.wants(err, CodeConflict)
	}
}

func (w *world) chmod(name string, mode os.FileMode) {
	w.t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		w.t.Fatal(err)
	}
}

// rename renames a path in the sprite.
func (w *world) rename(from, to string) {
	w.t.Helper()
	if err := os.Rename(filepath.Join(w.remote, from), filepath.Join(w.remote, to)); err != nil {
		w.t.Fatal(err)
	}
}

// TestHarmlessRulesCome: ignore files that ignore more come, and so do all if there is
// nothing here yet.
func TestHarmlessRulesCome(t *testing.T) {
	w := newSecrets(t)
	w.write(w.remote, ".gitignore", "first\n.env\r\n\n# a comment\nnotes/\nlast\n", "conf/.gitignore", "secret", "new/.gitignore", "x\n", ".coveignore", "y\n")
	if r := w.run(Pull, ""); r.Held.Count > 0 || r.Modified.Count != 2 {
		t.Errorf("got %+v", r)
	}
	w.same(filepath.Join(w.local, "new"), filepath.Join(w.remote, "new"))
	w.write(w.local, ".gitignore", "notes/\n") // the person's own change
	if r := w.run(Push, ""); !slices.Equal(r.Unignored.Paths, []string{".env", "sub/.env"}) || r.Unignored.Count != 2 {
		t.Errorf("were ignored: %+v", r.Unignored)
	}
	if r := w.run(Push, ""); r.Unignored.Count > 0 {
		t.Errorf("were ignored: %+v", r.Unignored)
	}

	w = newWorld(t)
	w.write(w.remote, ".gitignore", ".vscode/*\n!.vscode/x\n", "a", "1")
	w.write(w.local, ".sprite", "paint\n")
	if r := w.run(Pull, ""); r.Held.Count > 0 {
		t.Errorf("held in an empty folder: %q", heldPaths(r))
	}
	w.same(filepath.Join(w.local, ".gitignore"), filepath.Join(w.remote, ".gitignore"))
}

// TestAcceptedRulesAreTold: after the person took the rules, a push names the files that they
// let through. This holds even if a pull was in between.
func TestAcceptedRulesAreTold(t *testing.T) {
	w := newSecrets(t)
	w.write(w.remote, ".gitignore", "")
	w.AcceptRisky = true
	w.run(Pull, "")
	w.write(w.local, "late", "1")
	w.run(Pull, "")
	want := []string{".env", "notes/a", "sub/.env"}
	w.DryRun = true
	for range 2 {
		if r := w.run(Push, ""); !slices.Equal(r.Unignored.Paths, want) {
			t.Errorf("were ignored: %q, want %q", r.Unignored.Paths, want)
		}
		w.DryRun = false
	}
}

// TestJudgedRulesAreWhatComes: if the sprite swaps an ignore file between its judgement and
// its transfer, the file does not come. This holds even if its size and times are the same.
func TestJudgedRulesAreWhatComes(t *testing.T) {
	w := newSecrets(t)
	name := filepath.Join(w.remote, ".gitignore")
	w.write(w.remote, ".gitignore", ".env\nnotes/\nxxxxx\n")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	swapped := false
	w.cut = forge(func(f frame) []frame {
		if f.kind == kindLast && !swapped {
			swapped = true
			err := os.WriteFile(name, bytes.Repeat([]byte("y"), int(info.Size())), 0o644)
			if err = errors.Join(err, os.Chtimes(name, info.ModTime(), info.ModTime())); err != nil {
				t.Error(err)
			}
		}
		return []frame{f}
	})
	w.run(Pull, CodeChanged)
	if got := w.read(w.local, ".gitignore"); !swapped || got != ".env\nnotes/\n" {
		t.Errorf("swapped: %v, and it says %q", swapped, got)
	}
	w.cut = nil
	if r := w.run(Pull, ""); r.Held.Count != 1 {
		t.Errorf("got %+v", r.Held)
	}
}
