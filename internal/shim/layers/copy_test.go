package layers

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/need"
)

// MergeCopies makes what Merge makes, and changes nothing of the layers: not the time of a file's
// last change, nor its number of links. Names of one file stay names of one file.
func TestMergeCopies(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	low, high := filepath.Join(dir, "low"), filepath.Join(dir, "high")
	in := func(layer, name string) string { return filepath.Join(layer, name) }
	write(t, in(low, "a/one"), "linked")
	write(t, in(low, "a/owned"), "owned")
	write(t, in(low, "both"), "low")
	write(t, in(low, "gone"), "low")
	write(t, in(high, "both"), "high")
	sparse(t, in(low, "sparse"), 1<<30, "end")
	mark := []unix.Timespec{{Sec: 1234567890}, {Sec: 1234567890}}
	zeroTime := time.Unix(0, 0)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(in(low, "b/c"), 0o750), os.Link(in(low, "a/one"), in(low, "b/c/two")), os.Link(in(low, "a/one"), in(low, "three")),
		os.Symlink("a/one", in(low, "link")), unix.Lchown(in(low, "link"), 5, 6), unix.Mkfifo(in(low, "fifo"), 0o640),
		unix.Mknod(in(high, "gone"), unix.S_IFCHR, 0), unix.Lchown(in(low, "a/owned"), 7, 8), os.Chmod(in(low, "a/owned"), 0o751|os.ModeSetuid),
		unix.Setxattr(in(low, "a/owned"), "user.note", []byte("note"), 0),
		unix.UtimesNanoAt(unix.AT_FDCWD, in(low, "link"), mark, unix.AT_SYMLINK_NOFOLLOW), unix.UtimesNanoAt(unix.AT_FDCWD, in(low, "a/owned"), mark, 0))
	stats := func(layer string) (all []string, of map[string]unix.Stat_t) {
		of = map[string]unix.Stat_t{}
		must(filepath.WalkDir(layer, func(name string, _ os.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(name, &st)
			}
			st.Atim = unix.Timespec{}
			name = strings.TrimPrefix(name, layer)
			of[name] = st
			all = append(all, name)
			return err
		}))
		return all, of
	}
	names, before := stats(low)
	made := filepath.Join(dir, "made")
	var claimed int64
	must(MergeCopies(made, []string{low, high}, false, func(n int64) error { claimed += n; return nil }))
	_, after := stats(low)
	for _, name := range names {
		if before[name] != after[name] {
			t.Errorf("%s was changed: %+v, then %+v", name, before[name], after[name])
		}
	}
	if claimed == 0 || claimed >= 1<<20 {
		t.Errorf("%d bytes were claimed", claimed)
	}
	_, copies := stats(made)
	one := copies["/a/one"]
	for _, name := range []string{"/b/c/two", "/three"} {
		if st := copies[name]; st.Ino != one.Ino || st.Nlink != 3 {
			t.Errorf("%s is %d of %d names, and not %d", name, st.Ino, st.Nlink, one.Ino)
		}
	}
	if st := copies["/sparse"]; st.Size != 1<<30+3 || st.Blocks*512 > 1<<20 {
		t.Errorf("a hole was filled: %d bytes take %d blocks", st.Size, st.Blocks)
	}
	must(os.Remove(in(made, "sparse")), os.Remove(in(low, "sparse"))) // which view would read
	linked := filepath.Join(dir, "linked")
	must(os.Chtimes(in(made, "."), zeroTime, zeroTime), os.Chtimes(low, zeroTime, zeroTime), os.Chtimes(high, zeroTime, zeroTime), Merge(linked, []string{low, high}, false))
	if got, want := view(t, made), view(t, linked); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// A copy that is ended leaves nothing.
	refused := errors.New("refused")
	if err := MergeCopies(made+"2", []string{low, high}, false, func(int64) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want %v", err, refused)
	}
	entries, err := os.ReadDir(dir)
	must(err)
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".links") || e.Name() == "made2" }) {
		t.Errorf("left %v", entries)
	}
}
