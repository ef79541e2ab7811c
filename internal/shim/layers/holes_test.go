package layers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// sparse makes a file with a hole of some size, and data behind it.
func sparse(t *testing.T, name string, hole int64, data string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte(data), hole)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A hole is not read, however large; zeros that are written in its place are the same
// content, and anything else is not.
func TestListingHoles(t *testing.T) {
	d := Dir{t.TempDir(), true}
	at := func(name string) string { return filepath.Join(d.Path, "root", "upper", name) }
	for _, name := range []string{"empty", "tail", "small"} {
		write(t, at(name), "")
	}
	if err := os.Truncate(at("tail"), 1<<40); err != nil {
		t.Fatal(err)
	}
	const hole, size = 1<<20 + 3*512, 1<<20 + 3*512 + 5 // not at a block's border
	sparse(t, at("small"), hole, "three")
	huge := int64(17592186040320) // as much as ext4 takes
	sparse(t, at("huge"), huge-3, "end")
	if st, err := os.Stat(at("huge")); err != nil || st.Size() != huge {
		t.Fatal(st, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // to read it takes hours
	defer cancel()
	l, err := d.List(ctx, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var read int64
	err = d.Verify(ctx, l, true, func(n int64) { read += n }, func(p Problem) error { return errors.New(p.Path + ": " + p.What) })
	if err != nil || read > 64<<10 {
		t.Errorf("%d bytes read, %v", read, err)
	}

	mode, err := os.Stat(at("small"))
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(b []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(at("small"), b, 0o644), os.Chtimes(at("small"), time.Time{}, mode.ModTime())); err != nil {
			t.Fatal(err)
		}
	}
	filled := append(make([]byte, hole), "three"...)
	rewrite(filled)
	if got := problems(t, d, l, true); got != nil {
		t.Errorf("zeros in place of a hole: %q", got)
	}
	for _, change := range []int{0, 4095, 4096, hole - 1, hole, size - 1} {
		other := bytes.Clone(filled)
		other[change] ^= 1
		rewrite(other)
		if got := problems(t, d, l, true); !slices.Equal(got, []string{"/small: its content is different"}) {
			t.Errorf("a byte at %d: %q", change, got)
		}
	}
	moved := make([]byte, size) // the same data at another place
	copy(moved[digestBlock*3:], filled[hole/digestBlock*digestBlock:])
	rewrite(moved)
	if got := problems(t, d, l, true); !slices.Equal(got, []string{"/small: its content is different"}) {
		t.Errorf("a block at another place: %q", got)
	}
}

// A file of many names is read once.
func TestListingLinks(t *testing.T) {
	d := Dir{t.TempDir(), true}
	at := func(n int) string { return filepath.Join(d.Path, "root", "upper", fmt.Sprint(n)) }
	const size = 1 << 20
	write(t, at(0), strings.Repeat("x", size))
	for n := range 50 {
		if err := os.Link(at(0), at(n+1)); err != nil {
			t.Fatal(err)
		}
	}
	turns := 0
	l, err := d.List(t.Context(), nil, func() error { turns++; return nil })
	if err != nil || turns > 52+size/(256<<10) {
		t.Errorf("%d turns, %v", turns, err)
	}
	var read int64
	err = d.Verify(t.Context(), l, true, func(n int64) { read += n }, func(p Problem) error { return errors.New(p.Path + ": " + p.What) })
	if err != nil || read != size {
		t.Errorf("%d bytes read, %v", read, err)
	}
}

// listFirst writes a list as they were first, and says what it is.
func listFirst(t *testing.T, d Dir, paths ...string) Listing {
	t.Helper()
	var b []byte
	number := func(n uint64) { b = binary.AppendUvarint(b, n) }
	for _, p := range paths {
		b = appendText(b, p)
		tr, err := openTree(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		err = tr.at(p, func(fd int) error {
			st, err := statOf(fd)
			if err != nil {
				return err
			}
			for _, n := range []uint64{uint64(st.Mode), uint64(st.UID), uint64(st.GID), uint64(st.Size), st.Rdev} {
				number(n)
			}
			b = binary.AppendVarint(b, st.ModTime)
			b = appendText(appendText(appendText(b, st.Target), mark(fd, "user.overlay.opaque")), mark(fd, "user.overlay.redirect"))
			attrs, err := attributes(fd)
			number(uint64(len(attrs)))
			for _, name := range slices.Sorted(maps.Keys(attrs)) {
				b = appendText(appendText(b, name), attrs[name])
			}
			if st.Kind() == unix.S_IFREG && st.Size < 1<<30 {
				data, err := os.ReadFile(filepath.Join(d.Path, p))
				sum := sha256.Sum256(data)
				b = append(b, sum[:]...)
				return err
			}
			if st.Kind() == unix.S_IFREG {
				b = append(b, make([]byte, sha256.Size)...)
			}
			return err
		})
		if err := errors.Join(err, tr.close()); err != nil {
			t.Fatal(err)
		}
	}
	number(0)
	number(uint64(len(paths)))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	b = enc.EncodeAll(b, nil)
	if err := os.WriteFile(filepath.Join(d.Path, listName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return Listing{Digest: fmt.Sprintf("%x", sha256.Sum256(b)), Files: int64(len(paths))}
}

// A list of the first form still says what its layer is, also to a merge. Its digests
// are of all that can be read, so a hole is, and that can be ended.
func TestListingFirstForm(t *testing.T) {
	d := Dir{t.TempDir(), true}
	at := func(name string) string { return filepath.Join(d.Path, "root", "upper", name) }
	write(t, at("a/b/one"), "content")
	write(t, at("a/two"), "content")
	write(t, at("a.b"), "after a, and what is in it")
	write(t, filepath.Join(d.Path, "usr", "upper", "tool"), "tool")
	sparse(t, at("z"), 1<<20, "end")
	l := listFirst(t, d, "root/upper", "root/upper/a", "root/upper/a/b", "root/upper/a/b/one", "root/upper/a/two", "root/upper/a.b", "root/upper/z", "usr/upper", "usr/upper/tool")
	if got := problems(t, d, l, true); got != nil {
		t.Errorf("got %q", got)
	}
	known := Known{}
	if err := known.Add(t.Context(), d, l); err != nil || len(known) != 5 {
		t.Fatal(known, err)
	}
	merged := Dir{filepath.Join(t.TempDir(), "merged"), true}
	for _, mount := range []string{"root", "usr"} {
		if err := os.MkdirAll(filepath.Join(merged.Path, mount), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := Merge(filepath.Join(merged.Path, mount, "upper"), []string{filepath.Join(d.Path, mount, "upper")}, true); err != nil {
			t.Fatal(err)
		}
	}
	ml := list(t, merged, known)
	if got := problems(t, merged, ml, true); got != nil {
		t.Errorf("merged: %q", got)
	}
	st, err := os.Stat(at("a/two"))
	if err == nil {
		err = errors.Join(os.WriteFile(at("a/two"), []byte("CONTENT"), 0o644), os.Chtimes(at("a/two"), time.Time{}, st.ModTime()), os.Remove(at("a/b/one")))
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/a/b/one: it is missing", "/a/two: its content is different"}
	if got := problems(t, d, l, true); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := problems(t, merged, ml, true); !slices.Equal(got, want[1:]) {
		t.Errorf("merged: got %q, want %q", got, want[1:])
	}

	sparse(t, at("z"), 8<<40, "end")
	l = listFirst(t, d, "root/upper", "root/upper/z")
	ctx, cancel := context.WithCancel(t.Context())
	var begun, ended time.Time
	err = d.Verify(ctx, l, true, func(int64) {
		if begun.IsZero() {
			begun = time.Now()
			cancel()
		}
	}, func(Problem) error { return nil })
	if ended = time.Now(); !errors.Is(err, context.Canceled) || begun.IsZero() || ended.Sub(begun) > 10*time.Minute {
		t.Errorf("got %v, %v after it was ended", err, ended.Sub(begun))
	}
}

// down makes a folder in an open one, which it closes, and opens it.
func down(t *testing.T, at int, name string) int {
	t.Helper()
	next := -1
	err := unix.Mkdirat(at, name, 0o755)
	if err == nil {
		next, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err = errors.Join(err, unix.Close(at)); err != nil {
		t.Fatal(err)
	}
	return next
}

// deepen makes folders in each other, and files in the last one. They are removed when
// the test ends.
func deepen(t *testing.T, top, name string, times int, files ...string) {
	t.Helper()
	if err := os.MkdirAll(top, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(top); err != nil {
			t.Error(err)
		}
	})
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		at = down(t, at, name)
	}
	for _, file := range files {
		fd, err := unix.Openat(at, file, unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err == nil {
			_, err = unix.Write(fd, []byte(file))
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Close(at); err != nil {
		t.Fatal(err)
	}
}

// Folders may be deeper than the longest path, or than the number of descriptors. All
// of them are listed and compared. The path of a file that is wrong is short enough to
// be shown.
func TestListingDeep(t *testing.T) {
	d := Dir{t.TempDir(), true}
	top := filepath.Join(d.Path, "root", "upper")
	name := strings.Repeat("n", 200)
	const deep = 3000
	deepen(t, top, name, deep, "one", "two")
	write(t, filepath.Join(top, name, "beside"), "beside")
	write(t, filepath.Join(top, "z"), "last")
	most := 0
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(names)
	}
	before := open()
	l, err := d.List(t.Context(), nil, func() error { most = max(most, open()); return nil })
	if err != nil || l.Files != deep+5 {
		t.Fatalf("%+v, %v", l, err)
	}
	if most > before+openAtOnce+10 || open() > before {
		t.Errorf("%d descriptors before, %d at most, %d after", before, most, open())
	}
	if got := problems(t, d, l, true); got != nil {
		t.Errorf("got %.300q", got)
	}
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range deep {
		next := -1
		if err == nil {
			next, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		err = errors.Join(err, unix.Close(at))
		at = next
	}
	if err = errors.Join(err, unix.Unlinkat(at, "one", 0), unix.Mkdirat(at, "three", 0o755), unix.Close(at)); err != nil {
		t.Fatal(err)
	}
	got := problems(t, d, l, true)
	if len(got) != 2 || !strings.HasSuffix(got[0], "n/one: it is missing") || !strings.HasSuffix(got[1], "n/three: it was not there when the layer was sealed") {
		t.Fatalf("got %.5000q", got)
	}
	for _, p := range got {
		if len(p) > unix.PathMax+100 || !strings.Contains(p, "/…/") {
			t.Errorf("%d bytes: %.300q", len(p), p)
		}
	}
}
