package layers

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// view describes all that is below a folder.
func view(t *testing.T, root string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		what := fmt.Sprintf("%s %o %d:%d %d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Nano())
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %q", data)
		case unix.S_IFLNK:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			what += " -> " + to
		}
		attrs, err := xattrs(name)
		if err != nil {
			return err
		}
		if v, ok := attrs["user.note"]; ok {
			what += " note " + v
		}
		all = append(all, what)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// scramble changes what is below a folder at random, and says how. What can't be
// done where it is tried is left.
func scramble(r *rand.Rand, root string, times int) (log []string) {
	pick := func() string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = string("abcd"[r.IntN(4)])
		}
		return filepath.Join(parts...)
	}
	for n := range times {
		p, q := pick(), pick()
		full, other := filepath.Join(root, p), filepath.Join(root, q)
		var what string
		var err error
		switch r.IntN(13) {
		case 0, 1:
			what, err = "write "+p, os.WriteFile(full, fmt.Appendf(nil, "%s %d", p, n), 0o644)
		case 2, 3:
			what, err = "mkdir "+p, os.Mkdir(full, 0o755)
		case 4:
			what, err = "remove "+p, os.RemoveAll(full)
		case 5, 6, 7:
			what, err = "rename "+p+" "+q, os.Rename(full, other)
		case 8:
			if err = os.RemoveAll(full); err == nil { // what was there must not shine through
				what, err = "renew "+p, os.Mkdir(full, 0o700)
			}
		case 9:
			what, err = "link "+p+" "+q, os.Link(full, other)
		case 10:
			what, err = "symlink "+p, os.Symlink(q, full)
		case 11:
			what, err = "chmod "+p, os.Chmod(full, fs.FileMode(0o700+r.IntN(64)))
		case 12:
			what, err = "note "+p, unix.Setxattr(full, "user.note", []byte(q), 0)
		}
		if err == nil {
			log = append(log, what)
		}
	}
	return log
}

// over mounts layers, the lowest first, with another folder to be written, and calls
// f with where that is.
func over(t *testing.T, dir string, user bool, layers []string, f func(root string)) {
	t.Helper()
	o := Overlay{UserXattr: user, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	for _, l := range slices.Backward(layers) {
		o.Lowers = append(o.Lowers, l)
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := o.Create(); err != nil {
		t.Fatal(err)
	}
	if err := o.Mount(root); err != nil {
		t.Fatal(err)
	}
	f(root)
	if err := Unmount(root); err != nil {
		t.Fatal(err)
	}
}

// Whatever was done, layers that are merged are what they were on top of each other,
// in the middle of a chain too.
func TestMerge(t *testing.T) {
	inMountNamespace(t, func() {
		seeds := uint64(16)
		if os.Getenv("COVE_SOAK") == "1" {
			seeds = 1000
		}
		for seed := range seeds {
			user := seed%4 == 3 // as an ordinary user's, whose folders can't be renamed
			r := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			base := filepath.Join(dir, "base")
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Error(err)
				return
			}
			scramble(r, base, 60)
			var layers, log []string
			for n := range 6 {
				at := filepath.Join(dir, fmt.Sprint("layer", n))
				over(t, at, user, append([]string{base}, layers...), func(root string) {
					log = append(log, fmt.Sprint("layer ", n, ": ", strings.Join(scramble(r, root, 25), "; ")))
				})
				layers = append(layers, filepath.Join(at, "upper"))
			}
			var want string
			over(t, filepath.Join(dir, "all"), user, append([]string{base}, layers...), func(root string) { want = view(t, root) })
			for range 4 {
				from := r.IntN(len(layers))
				to := from + 1 + r.IntN(len(layers)-from)
				merged := filepath.Join(dir, fmt.Sprint("merged", from, to, r.Uint32()))
				if err := Merge(merged, layers[from:to], user); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				chain := slices.Concat(layers[:from], []string{merged}, layers[to:])
				over(t, merged+"-mount", user, append([]string{base}, chain...), func(root string) {
					if got := view(t, root); got != want {
						t.Errorf("seed %d: layers %d to %d merged are not what they were:\n%s\nwant\n%s\nafter\n%s", seed, from, to-1, got, want, strings.Join(log, "\n"))
					}
				})
				if t.Failed() {
					return
				}
				if r.IntN(2) == 0 { // and merged ones can be merged
					layers = chain
				}
			}
		}
	})
}
