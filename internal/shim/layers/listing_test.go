package layers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// problems are what a verification finds.
func problems(t *testing.T, d Dir, l Listing, read bool) (all []string) {
	t.Helper()
	err := d.Verify(t.Context(), l, read, func(int64) {}, func(p Problem) error {
		all = append(all, p.Path+": "+p.What)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

func list(t *testing.T, d Dir, known Known) Listing {
	t.Helper()
	l, err := d.List(t.Context(), known, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A layer is what its list says, whatever was done in it. So is a layer that was
// merged of others: its list is made of their lists. Every change is found.
func TestListing(t *testing.T) {
	inMountNamespace(t, func() {
		for seed := range uint64(6) {
			user := seed%3 == 2
			r := rand.New(rand.NewPCG(seed, 3))
			dir := t.TempDir()
			base := filepath.Join(dir, "base")
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Error(err)
				return
			}
			scramble(t, r, base, 40)
			chain := []string{}
			known := Known{}
			for n := range 4 {
				d := Dir{filepath.Join(dir, fmt.Sprint("layer", n)), user}
				over(t, filepath.Join(d.Path, "root"), user, append([]string{base}, chain...), func(root string) { scramble(t, r, root, 40) })
				chain = append(chain, filepath.Join(d.Path, "root", "upper"))
				l := list(t, d, nil)
				if got := problems(t, d, l, true); got != nil {
					t.Errorf("seed %d: %q", seed, got)
				}
				if err := known.Add(t.Context(), d, l); err != nil {
					t.Error(err)
				}
			}
			d := Dir{filepath.Join(dir, "merged"), user}
			if err := os.MkdirAll(filepath.Join(d.Path, "root"), 0o755); err != nil {
				t.Error(err)
				return
			}
			if err := Merge(filepath.Join(d.Path, "root", "upper"), chain, user); err != nil {
				t.Error(err)
				return
			}
			l := list(t, d, known)
			if got := problems(t, d, l, true); got != nil {
				t.Errorf("seed %d, merged: %q", seed, got)
			}
			if again := list(t, d, nil); again != l {
				t.Errorf("seed %d: the list of a merged layer is %+v, want %+v", seed, l, again)
			}
		}
	})
}

func TestVerifyFindsDamage(t *testing.T) {
	d := Dir{t.TempDir(), true}
	at := func(name string) string { return filepath.Join(d.Path, "root", "upper", name) }
	for _, name := range []string{"a", "b", "d/one", "d/two", "e", "z"} {
		write(t, at(name), "content")
	}
	write(t, filepath.Join(d.Path, "usr", "upper", "local", "tool"), "tool")
	write(t, filepath.Join(d.Path, "root", "work", "kernels"), "not listed")
	write(t, filepath.Join(d.Path, "base.json"), "{}")
	l := list(t, d, nil)
	if got := problems(t, d, l, true); got != nil || l.Files != 11 || l.Size != 6*7+4 || l.Disk < 7*512 {
		t.Fatalf("%q, %+v", got, l)
	}
	st, err := os.Stat(at("b"))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.WriteFile(at("b"), []byte("CONTENT"), 0o644), os.Chtimes(at("b"), time.Time{}, st.ModTime()), // behind everyone's back
		os.Remove(at("d/one")), os.WriteFile(at("d/three"), nil, 0o644),
		os.Chmod(at("e"), 0o600), os.Truncate(at("z"), 3), unix.Setxattr(at("a"), "user.x", []byte("y"), 0),
		unix.Setxattr(filepath.Join(d.Path, "usr", "upper", "local"), "user.overlay.opaque", []byte("y"), 0))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/a: it differs in attributes", "/b: its content is different", "/d/one: it is missing", "/d/three: it was not there when the layer was sealed",
		"/e: it differs in mode", "/usr/local: it differs in overlay marks", "/z: it differs in size, time"}
	got := problems(t, d, l, true)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = problems(t, d, l, false)
	slices.Sort(got)
	if want := slices.Delete(slices.Clone(want), 1, 2); !slices.Equal(got, want) {
		t.Errorf("without reading: got %q, want %q", got, want)
	}

	// The list itself is compared with what the store has of it.
	file := filepath.Join(d.Path, listName)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := problems(t, d, l, false); len(got) != 1 || !strings.Contains(got[0], "list of its files is damaged") {
		t.Errorf("a damaged list: %q", got)
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	if got := problems(t, d, l, false); len(got) != 1 || !strings.Contains(got[0], "missing") {
		t.Errorf("no layer: %q", got)
	}
}

// BenchmarkVerify has the costs of a look and of a whole verification beside that of
// listing the same files by a walk.
func BenchmarkVerify(b *testing.B) {
	d := Dir{b.TempDir(), true}
	const files = 20_000
	for n := range files {
		name := filepath.Join(d.Path, "root", "upper", fmt.Sprint(n%100), fmt.Sprint(n))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(name), 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	l, err := d.List(b.Context(), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"floor": func() error {
			return filepath.WalkDir(d.Path, func(_ string, e os.DirEntry, err error) error {
				if err == nil {
					_, err = e.Info()
				}
				return err
			})
		},
		"list": func() error { _, err := d.List(b.Context(), nil, nil); return err },
		"look": func() error {
			return d.Verify(b.Context(), l, false, func(int64) {}, func(p Problem) error { return errors.New(p.Path) })
		},
		"read": func() error {
			return d.Verify(b.Context(), l, true, func(int64) {}, func(p Problem) error { return errors.New(p.Path) })
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
