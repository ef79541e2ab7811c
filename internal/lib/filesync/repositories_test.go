package filesync

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A pull brings nothing at all if it would make a folder that git takes for a repository. This
// does not depend on what lay there before, or on the spelling of the names. The person's own
// repositories are not held as long as they do not change.
func TestRepositoriesAreHeld(t *testing.T) {
	for name, c := range map[string]struct {
		local, remote []string
		held          []string // folders; none: it comes
	}{
		"whole":             {remote: []string{"docs/HEAD", "x", "docs/objects/.keep", "x", "docs/refs/.keep", "x", "docs/config", "x"}, held: []string{"docs"}},
		"folders alone":     {remote: []string{"d/HEAD", "x", "d/objects/", "", "d/refs/", ""}, held: []string{"d"}},
		"at the root":       {remote: []string{"HEAD", "x", "objects/x", "x", "refs/x", "x"}, held: []string{"."}},
		"a work tree":       {remote: []string{"a/b/HEAD", "x", "a/b/commondir", "../x"}, held: []string{"a/b"}},
		"the last piece":    {local: []string{"d/HEAD", "x", "d/objects/x", "x", "d/config", "x"}, remote: []string{"d/refs/x", "x"}, held: []string{"d"}},
		"its configuration": {local: []string{"d/HEAD", "x", "d/objects/x", "x", "d/refs/x", "x"}, remote: []string{"d/config", "x"}, held: []string{"d"}},
		"its hooks":         {local: []string{"d/HEAD", "x", "d/objects/x", "x", "d/refs/x", "x"}, remote: []string{"d/hooks/a/b", "x"}, held: []string{"d"}},
		"links":             {remote: []string{"e/x", "x", "d/HEAD", "x", "d/objects", "-> ../e", "d/refs", "-> ../e"}, held: []string{"d"}},
		"other names":       {remote: []string{"d/head", "x", "d/OBJECTS/x", "x", "d/re\u200cfs./x", "x"}, held: []string{"d"}},
		"two":               {remote: []string{"a/HEAD", "x", "a/commondir", "x", "b/c/HEAD", "x", "b/c/commondir", "x"}, held: []string{"a", "b/c"}},
		"unchanged":         {local: []string{"d/HEAD", "x", "d/objects/x", "x", "d/refs/x", "x"}, remote: []string{"d/HEAD", "x", "e/x", "x"}},
		"not all":           {local: []string{"d/HEAD", "x"}, remote: []string{"d/objects/x", "x", "refs/x", "x", "objects/x", "x", "commondir", "x"}},
		"the person's tree": {local: []string{"p/HEAD", "x", "p/objects/x", "x", "p/refs/x", "x", "p/main/.git", "gitdir: ../worktrees/main"}, remote: []string{"p/main/src/a", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mkdir(w.remote)
			w.write(w.local, c.local...)
			w.write(w.remote, c.remote...)
			before := dump(t, w.local)
			w.Verb = Pull
			_, err := w.Run(t.Context())
			if len(c.held) == 0 {
				w.wants(err, "")
				return
			}
			w.wants(err, CodeRisky)
			if e := err.(*fail.Error); !slices.Equal(e.Paths, c.held) || e.ExitCode() != 4 {
				t.Errorf("%+v, want %q", e, c.held)
			}
			w.differ(before, dump(t, w.local))
			w.AcceptRisky = true
			w.run(Pull, "")
			w.AcceptRisky = false
			w.run(Pull, "") // nothing changes now
			w.write(w.remote, "elsewhere", "x")
			if c.held[0] != "." {
				w.run(Pull, "")
			}
			w.run(Push, "")
		})
	}

	// The report lists the risky files that came.
	w := newWorld(t)
	w.write(w.remote, "a", "x", "b/rc", "x", "rc", "-> a")
	w.Risky = func(name string) string {
		if filepath.Base(name) == "rc" {
			return "why"
		}
		return ""
	}
	if r := w.run(Pull, ""); !slices.Equal(r.Risky, []Risk{{"b/rc", "why"}, {"rc", "why"}}) {
		t.Errorf("risky: %v", r.Risky)
	}
	if r := w.run(Pull, ""); len(r.Risky) > 0 {
		t.Errorf("risky, again: %v", r.Risky)
	}

	// The folder that is pulled into may itself be a piece.
	w = newWorld(t)
	w.Local = filepath.Join(w.local, "docs/refs")
	w.write(w.local, "docs/HEAD", "x", "docs/objects/x", "x")
	w.write(w.remote, "x", "x")
	w.run(Pull, CodeRisky)
	if _, err := os.Lstat(filepath.Join(w.Local, "x")); err == nil {
		t.Error("it came all the same")
	}
}

// TestHeldFoldersStayAway: if everything in a folder is held, not even the folder comes. A
// folder that is empty in the sprite comes, and one that is here stays.
func TestHeldFoldersStayAway(t *testing.T) {
	w := newWorld(t)
	w.Hold = func(name string) bool { return filepath.Base(name) == "held" }
	w.write(w.remote, "all/held", "x", "deep/er/held", "x", "deep/est/more/held", "x")
	if r := w.run(Pull, ""); r.Changes() != 0 {
		t.Errorf("got %+v", r)
	}
	if _, err := os.Lstat(w.local); err == nil {
		if names := dump(t, w.local); len(names) > 0 {
			t.Errorf("there is %v", names)
		}
	}
	w.write(w.remote, "some/held", "x", "some/in/file", "x", "some/void/", "", "none/", "", "z/held", "x", "z/a/file", "x")
	w.run(Pull, "")
	for name, want := range map[string]bool{
		"all": false, "deep": false, "some/in/file": true, "some/held": false, "some/void": true, "none": true, "z/a/file": true, "z/held": false,
	} {
		if _, err := os.Lstat(filepath.Join(w.local, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it here: %v", name, err, want)
		}
	}
	// A file that came, and is held by now, stays; and so does its folder.
	w.Hold = nil
	w.run(Pull, "")
	w.same(w.local, w.remote)
	w.write(w.local, "all/mine", "x")
	w.Hold = func(name string) bool { return filepath.Base(name) == "held" }
	w.run(Pull, "")
	if _, err := os.Lstat(filepath.Join(w.local, "all/mine")); err != nil {
		t.Error(err)
	}
}

// TestHeldStaysHere: a file that came earlier, and is held now, stays as it is here, whether
// it has changed in the sprite or not. If it is deleted there, it is deleted here, too.
func TestHeldStaysHere(t *testing.T) {
	w := newWorld(t)
	held := func(name string) bool { return filepath.Base(name) == "held" }
	w.write(w.remote, "a/held", "1", "b/held", "1", "c/held", "1", "a/other", "1")
	w.run(Pull, "")
	w.same(w.local, w.remote)
	w.Hold = held
	w.write(w.remote, "b/held", "22", "a/other", "22")
	if err := os.Remove(filepath.Join(w.remote, "c/held")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.run(Pull, "")
		for name, want := range map[string]string{"a/held": "1", "b/held": "1", "c/held": "", "a/other": "22"} {
			text, err := os.ReadFile(filepath.Join(w.local, name))
			if string(text) != want || (err == nil) != (want != "") {
				t.Errorf("%s: got %q, %v, want %q", name, text, err, want)
			}
		}
	}
	w.Hold = nil
	w.run(Pull, "") // from where it was
	w.same(w.local, w.remote)
}
