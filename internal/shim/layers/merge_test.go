package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// view describes all that is below a folder, however deep.
func view(t *testing.T, root string) string {
	t.Helper()
	var all []string
	if err := viewIn(filepath.Dir(root), filepath.Base(root), ".", &all); err != nil {
		t.Error(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func viewIn(dir, file, rel string, all *[]string) error {
	name := filepath.Join(dir, file)
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return err
	}
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
	note := make([]byte, 100)
	if n, err := unix.Lgetxattr(name, "user.note", note); err == nil {
		what += " note " + string(note[:n])
	}
	*all = append(*all, what)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	for _, below := range names {
		if err == nil {
			err = viewIn(FDPath(int(f.Fd())), below, path.Join(rel, strings.TrimPrefix(below, deepName[1:])), all)
		}
	}
	return err
}

// deepName is that of folders in each other whose path is too long for the kernel.
var deepName = strings.Repeat("s", 120)

// spine opens those of them that there are below a folder.
func spine(t *testing.T, root string) (all []string, end func()) {
	t.Helper()
	var open []*os.File
	for {
		f, err := os.Open(root)
		if err != nil {
			t.Error(err)
		}
		open = append(open, f)
		all = append(all, FDPath(int(f.Fd())))
		root = deepIn(t, all[len(all)-1])
		if root == "" {
			return all, func() {
				for _, f := range open {
					_ = f.Close()
				}
			}
		}
	}
}

func deepIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if len(e.Name()) >= len(deepName) {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

// scramble changes what is below a folder at random, and says how. A change that can't
// be made is left out.
func scramble(t *testing.T, r *rand.Rand, root string, times int) (log []string) {
	t.Helper()
	roots, end := spine(t, root)
	defer end()
	pick := func() (string, string) {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = string("abcd"[r.IntN(4)])
		}
		p := filepath.Join(parts...)
		level := 0
		if len(roots) > 1 && r.IntN(2) == 0 {
			level = []int{1, 2, len(roots) / 2, len(roots) - 1}[r.IntN(4)] % len(roots)
		}
		return fmt.Sprint(level, ":", p), filepath.Join(roots[level], p)
	}
	for n := range times {
		p, full := pick()
		q, other := pick()
		var what string
		var err error
		switch r.IntN(14) {
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
		case 13: // one of the deep folders, at times a level up
			from := r.IntN(min(len(roots), 4))
			if r.IntN(2) == 0 {
				from = r.IntN(len(roots))
			}
			if at := deepIn(t, roots[from]); at != "" {
				to := max(0, from-r.IntN(2))
				name := deepName + strconv.Itoa(r.IntN(3))
				what, err = fmt.Sprint("deep ", from, " ", to, name[len(deepName):]), os.Rename(at, filepath.Join(roots[to], name))
			}
		}
		if err == nil && what != "" {
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

// After any changes, merged layers show the same as the layers on top of each other, in
// the middle of a chain too.
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
			if seed%3 == 2 {
				deepen(t, base, deepName, 45)
			}
			scramble(t, r, base, 60)
			var layers, log []string
			for n := range 6 {
				at := filepath.Join(dir, fmt.Sprint("layer", n))
				over(t, at, user, append([]string{base}, layers...), func(root string) {
					log = append(log, fmt.Sprint("layer ", n, ": ", strings.Join(scramble(t, r, root, 25), "; ")))
				})
				layers = append(layers, filepath.Join(at, "upper"))
			}
			var want string
			over(t, filepath.Join(dir, "all"), user, append([]string{base}, layers...), func(root string) { want = view(t, root) })
			for range 4 {
				from := r.IntN(len(layers))
				to := from + 1 + r.IntN(len(layers)-from)
				merged := filepath.Join(dir, fmt.Sprint("merged", from, to, r.Uint32()))
				var err error
				if seed%2 == 0 {
					err = Merge(merged, layers[from:to], user)
				} else {
					err = MergeCopies(merged, layers[from:to], user, func(int64) error { return nil })
				}
				if err != nil {
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

// sealed is the topmost folder of a layer, with folders in each other, and more of
// them in another.
func sealed(t *testing.T, deep int, also string, alsoDeep int, files ...string) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "upper")
	deepen(t, top, deepName, deep, files...)
	if also != "" {
		deepen(t, filepath.Join(top, also), deepName, alsoDeep, files...)
	}
	return top
}

// Folders may be deeper than the longest path, or than the number of descriptors, and at
// another place in each layer. The files in the deepest folder are merged, and those
// beside the way to it.
func TestMergeDeep(t *testing.T) {
	const deep, half = 1500, 100
	low := sealed(t, deep, "other", deep, "low", "both")
	high := sealed(t, half, "", 0)
	// From half the way down, a folder has the content of another folder of the lower
	// layer.
	at, err := unix.Open(high, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range half {
		next := -1
		if err == nil {
			next, err = unix.Openat(at, deepName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		err = errors.Join(err, unix.Close(at))
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	in := FDPath(at)
	deepen(t, filepath.Join(in, "moved"), deepName, deep, "high", "both")
	err = errors.Join(unix.Setxattr(filepath.Join(in, "moved"), "trusted.overlay.redirect", []byte("/other"), 0),
		unix.Mknod(filepath.Join(in, "whiteout"), unix.S_IFCHR, 0), unix.Mknod(filepath.Join(high, "other"), unix.S_IFCHR, 0))
	want := map[string]string{"/other": "whiteout"}
	way := strings.Repeat("/s", half)
	want[way+"/whiteout"] = "whiteout"
	want[way+"/moved"] = "from /other"
	for _, file := range []string{"low", "both"} {
		want[strings.Repeat("/s", deep)+"/"+file] = file
	}
	for _, file := range []string{"low", "high", "both"} {
		want[way+"/moved"+strings.Repeat("/s", deep)+"/"+file] = file
	}
	for n := range 20 { // which are reached before the deep ones, and after
		file := fmt.Sprint("beside", n, "/file")
		write(t, filepath.Join(in, file), "")
		want[way+"/"+file] = ""
	}
	if err != nil {
		t.Fatal(err)
	}
	made := Dir{Path: t.TempDir()}
	t.Cleanup(func() { _ = Remove(filepath.Join(made.Path, "root")) })
	if err := os.Mkdir(filepath.Join(made.Path, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	fds, err := os.ReadDir("/proc/self/fd")
	if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = uint64(len(fds) + openAtOnce + 20)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = Merge(filepath.Join(made.Path, "root", "upper"), []string{low, high}, false)
	if err := errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), unix.Close(at)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) >= len(fds) { // in is closed
		t.Errorf("%d descriptors before, %d after, %v", len(fds), len(after), err)
	}
	got := map[string]string{}
	var way2 trail
	err = made.walk(t.Context(), func(m *met) error {
		way2.to(&m.record)
		var what string
		switch {
		case m.whiteout():
			what = "whiteout"
		case m.redirect != "":
			what = "from " + m.redirect
		case m.IsDir():
			return nil
		case m.Size > 0:
			fd, err := openIn(m.dir, m.file, unix.O_RDONLY)
			if err != nil {
				return err
			}
			data := make([]byte, m.Size)
			_, err = unix.Read(fd, data)
			what = string(data)
			if err := errors.Join(err, unix.Close(fd)); err != nil {
				return err
			}
		}
		got["/"+strings.ReplaceAll(strings.Join(way2[1:], "/"), deepName, "s")] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for p, what := range got {
		if w, ok := want[p]; !ok || w != what {
			t.Errorf("…%s (%d bytes) is %q, want %q", p[max(0, len(p)-50):], len(p), what, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d files, want %d", len(got), len(want))
	}
}

// BenchmarkMerge merges eight layers. The lowest has many files, and each of the others
// has a tenth of them anew.
func BenchmarkMerge(b *testing.B) {
	dir := b.TempDir()
	var layers []string
	for n := range 8 {
		layer := filepath.Join(dir, fmt.Sprint("layer", n))
		layers = append(layers, layer)
		for folder := range 300 {
			at := filepath.Join(layer, fmt.Sprint("folder", folder/30), fmt.Sprint("in", folder))
			if n > 0 && folder%10 != n {
				continue
			}
			if err := os.MkdirAll(at, 0o755); err != nil {
				b.Fatal(err)
			}
			for file := range 100 {
				if err := os.WriteFile(filepath.Join(at, fmt.Sprint("file", file)), nil, 0o644); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ResetTimer()
	for n := range b.N {
		into := filepath.Join(dir, fmt.Sprint("merged", n))
		err := Merge(into, layers, false)
		b.StopTimer()
		if err = errors.Join(err, Remove(into)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
