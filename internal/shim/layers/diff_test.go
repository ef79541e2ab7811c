package layers

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// seen describes all that a view shows, as view does of a mount.
func seen(t *testing.T, v *View, at string, n Node) (all map[string]string) {
	t.Helper()
	what := fmt.Sprintf("%o %d:%d", n.Mode, n.UID, n.GID)
	if !n.IsDir() {
		what += fmt.Sprintf(" %d %d", n.Size, n.ModTime)
	}
	what += " note " + n.Attrs["user.note"] + " -> " + n.Target
	if n.Kind() == unix.S_IFREG {
		f, err := v.Open(n)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, n.Size)
		if _, err := f.Read(data); err != nil && n.Size > 0 {
			t.Error(err)
		}
		what += fmt.Sprintf(" content %q", data)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	all = map[string]string{at: what}
	if !n.IsDir() {
		return all
	}
	names, err := v.Names(n, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		below, found, err := v.Lookup(n, name)
		if err != nil {
			t.Fatal(err)
		}
		if found {
			maps.Copy(all, seen(t, v, filepath.Join(at, name), below))
		}
	}
	return all
}

// shown describes the same of a mount, by a view of nothing over it.
func shown(t *testing.T, root string) map[string]string {
	t.Helper()
	v := openView(t, root, nil, false)
	return seen(t, v, ".", v.Root())
}

func openView(t *testing.T, base string, chain []string, user bool) *View {
	t.Helper()
	v, err := OpenView([]string{base}, chain, user)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// sameMaps says where two descriptions differ.
func sameMaps(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%s: %s is %s, want %s", what, p, got[p], w)
		}
	}
	for p, g := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%s: %s is %s, and should not be", what, p, g)
		}
	}
}

// After any changes, a view shows the same as the kernel, of merged layers too. A
// diff of any two states of a disk is the difference of their mounts.
func TestViewAndDiff(t *testing.T) {
	inMountNamespace(t, func() {
		seeds := uint64(8)
		if os.Getenv("COVE_SOAK") == "1" {
			seeds = 1000
		}
		for seed := range seeds {
			user := seed%4 == 3
			r := rand.New(rand.NewPCG(seed, 2))
			dir := t.TempDir()
			base := filepath.Join(dir, "base")
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Error(err)
				return
			}
			scramble(t, r, base, 60)
			var chain, log []string
			states := []map[string]string{shown(t, base)}
			for n := range 5 {
				at := filepath.Join(dir, fmt.Sprint("layer", n))
				over(t, at, user, append([]string{base}, chain...), func(root string) {
					log = append(log, fmt.Sprint("layer ", n, ": ", strings.Join(scramble(t, r, root, 25), "; ")))
					states = append(states, shown(t, root))
				})
				chain = append(chain, filepath.Join(at, "upper"))
			}
			merged := filepath.Join(dir, "merged")
			if err := Merge(merged, chain[1:4], user); err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return
			}
			views := make([]*View, len(states))
			for n := range states {
				views[n] = openView(t, base, chain[:n], user)
				sameMaps(t, fmt.Sprintf("seed %d, %d layers", seed, n), seen(t, views[n], ".", views[n].Root()), states[n])
			}
			views = append(views, openView(t, base, []string{chain[0], merged, chain[4]}, user))
			states = append(states, states[5])
			for range 6 {
				a, b := r.IntN(len(states)), r.IntN(len(states))
				checkDiff(t, fmt.Sprintf("seed %d, %d to %d", seed, a, b), [2]*View{views[a], views[b]}, [2]map[string]string{states[a], states[b]})
			}
			if t.Failed() {
				t.Log(strings.Join(log, "\n"))
				return
			}
		}
	})
}

func checkDiff(t *testing.T, what string, views [2]*View, states [2]map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := Diff(t.Context(), views[0], views[1], func(c Change) error {
		switch {
		case c.Old == nil && got[c.Path] == "removed": // a folder that became a file
			got[c.Path] = "changed"
		case c.Old == nil:
			got[c.Path] = "added"
		case c.New == nil:
			got[c.Path] = "removed"
		default:
			got[c.Path] = "changed"
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	want := map[string]string{}
	for p, w := range states[1] {
		old, ok := states[0][p]
		old, _, _ = strings.Cut(old, " content ") // two files of one size may be of one tick of the clock
		w, _, _ = strings.Cut(w, " content ")
		switch {
		case !ok:
			want[p] = "added"
		case old != w:
			want[p] = "changed"
		}
	}
	for p := range states[0] {
		if _, ok := states[1][p]; !ok {
			want[p] = "removed"
		}
	}
	sameMaps(t, what, got, want)
}

// Folders that both views have of the same layers are not even listed. A file that a
// merge has linked is the same file.
func TestDiffLooksAtLittle(t *testing.T) {
	dir := t.TempDir()
	for n := range 3 {
		write(t, filepath.Join(dir, "base", "d", fmt.Sprint(n)), "base")
		write(t, filepath.Join(dir, "one", "o", fmt.Sprint(n)), "one")
	}
	write(t, filepath.Join(dir, "two", "d", "1"), "longer")
	a := openView(t, filepath.Join(dir, "base"), []string{filepath.Join(dir, "one")}, false)
	b := openView(t, filepath.Join(dir, "base"), []string{filepath.Join(dir, "one"), filepath.Join(dir, "two")}, false)
	if err := os.RemoveAll(filepath.Join(dir, "one", "o")); err != nil { // nobody misses it
		t.Fatal(err)
	}
	var all []string
	err := Diff(t.Context(), a, b, func(c Change) error {
		all = append(all, fmt.Sprint(c.Path, c.What[:1], c.Old.Size, c.New.Size))
		return nil
	})
	if want := []string{"d/1[size] 4 6"}; err != nil || !slices.Equal(all, want) {
		t.Errorf("got %q, %v, want %q", all, err, want)
	}
}

// A folder that is replaced by a link while it is looked at leads nowhere, and a mark
// that no kernel writes is refused.
func TestViewOfHostileLayer(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret", "key"), "key")
	write(t, filepath.Join(dir, "base", "x"), "base")
	write(t, filepath.Join(dir, "upper", "d", "key"), "mine")
	v := openView(t, filepath.Join(dir, "base"), []string{filepath.Join(dir, "upper")}, true)
	d, found, err := v.Lookup(v.Root(), "d")
	if err != nil || !found {
		t.Fatal(found, err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "upper", "d")), os.Symlink("../secret", filepath.Join(dir, "upper", "d"))); err != nil {
		t.Fatal(err)
	}
	names, err := v.Names(d, true)
	if err != nil || len(names) != 0 {
		t.Errorf("the link was followed: %q, %v", names, err)
	}
	if n, found, err := v.Lookup(d, "key"); found || err != nil {
		t.Errorf("the link was followed: %+v, %v", n, err)
	}
	for n, to := range []string{"../secret", "/../secret", "a/b", "/a//b", "."} {
		at := filepath.Join(dir, "upper", fmt.Sprint("r", n))
		if err := errors.Join(os.Mkdir(at, 0o700), unix.Setxattr(at, "user.overlay.redirect", []byte(to), 0)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := v.Lookup(v.Root(), filepath.Base(at)); err == nil || !strings.Contains(err.Error(), "impossible redirect") {
			t.Errorf("a redirect to %q: %v", to, err)
		}
	}
}
