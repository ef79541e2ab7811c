package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/sprites"
)

// TestOpenFiles: what is open for writing is found, by its name, once, without its
// holes; and so is what has no name any more, but neither what is only read nor what is
// in memory alone.
func TestOpenFiles(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var in unix.Statfs_t
	if err := unix.Statfs(dir, &in); err != nil || in.Type == unix.TMPFS_MAGIC {
		t.Skip("files for tests are in memory here")
	}
	open := func(name string, flags int, size int64) *os.File {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), flags|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if _, err := f.Write(make([]byte, size)); err != nil && size > 0 {
			t.Fatal(err)
		}
		return f
	}
	open("writable", os.O_RDWR, 1<<20)
	open("writable", os.O_WRONLY, 0)
	open("read", os.O_RDONLY, 0)
	if err := open("holes", os.O_WRONLY, 0).Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	gone := open("gone", os.O_RDWR, 3<<20)
	if err := os.Remove(gone.Name()); err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC); err != nil {
		t.Fatal(err)
	} else {
		defer unix.Close(fd)
	}

	pids := []int{os.Getpid()}
	all := openFiles(pids, time.Now().Add(time.Minute))
	ours := func(list []sprites.OpenFile) (named []sprites.OpenFile) {
		for _, f := range list {
			if filepath.Dir(f.Path) == dir {
				named = append(named, sprites.OpenFile{Path: filepath.Base(f.Path), Bytes: f.Bytes})
			}
		}
		return named
	}
	if got, want := ours(all.Writable), []sprites.OpenFile{{Path: "writable", Bytes: 1 << 20}, {Path: "holes"}}; !slices.Equal(got, want) {
		t.Errorf("open for writing are %+v, want %+v", got, want)
	}
	if got, want := ours(all.Unlinked), []sprites.OpenFile{{Path: "gone", Bytes: 3 << 20}}; !slices.Equal(got, want) || all.UnlinkedBytes != 3<<20 {
		t.Errorf("without a name are %+v of %d bytes, want %+v", got, all.UnlinkedBytes, want)
	}

	for n := range 30 {
		open(fmt.Sprint("more", n), os.O_WRONLY, 1<<10)
	}
	if all := openFiles(pids, time.Now().Add(time.Minute)); len(all.Writable) != maxOpenNamed || all.WritableBytes < 1<<20+30<<10 {
		t.Errorf("of many %d are named, %d bytes in all", len(all.Writable), all.WritableBytes)
	}
	if all := openFiles(pids, time.Now()); len(all.Writable) > 1 {
		t.Errorf("without time, it looks at %d", len(all.Writable))
	}
}
