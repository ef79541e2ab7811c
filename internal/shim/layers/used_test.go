package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUsed measures what a layer takes: blocks, not sizes, each file once, in all of
// its mounts, and in what the kernel works with.
func TestUsed(t *testing.T) {
	dir := t.TempDir()
	measure := func() int64 {
		t.Helper()
		n, err := Used(t.Context(), Dir{Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	write := func(name string, n int) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, n), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if got, err := Used(t.Context(), Dir{Path: filepath.Join(dir, "none")}); got != 0 || err != nil {
		t.Errorf("of a layer that is not there: %d, %v", got, err)
	}
	write("base.json", 1<<20) // the server's own
	write("root/upper/etc/motd", 1)
	write("usr/work/work/#1", 1)
	const room = 64 << 10 // for folders
	before := measure()
	if before == 0 || before > room {
		t.Errorf("two small files take %d bytes", before)
	}
	big := write("root/upper/home/big", 1<<20)
	write("usr/upper/lib/big", 1<<20)
	write("usr/work/work/#2", 1<<20)
	if got := measure() - before; got < 3<<20 || got > 3<<20+room {
		t.Errorf("three files of a MiB take %d bytes", got)
	}
	before = measure()
	if err := os.Link(big, filepath.Join(dir, "root/upper/again")); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "root/upper/sparse"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = sparse.WriteAt([]byte("end"), 1<<30)
	if err := errors.Join(err, sparse.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "root/upper/away")); err != nil {
		t.Fatal(err)
	}
	if got := measure() - before; got > room {
		t.Errorf("another name, a hole and a symbolic link take %d bytes", got)
	}
	// As a merge makes it: two layers that have the same file.
	other := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(other, "root/upper"), 0o755), os.Link(big, filepath.Join(other, "root/upper/big"))); err != nil {
		t.Fatal(err)
	}
	if got, err := Used(t.Context(), Dir{Path: dir}, Dir{Path: other}); err != nil || got-measure() > room {
		t.Errorf("a layer of another's file takes %d bytes, %v", got-measure(), err)
	}
}

// TestUsedDeep: Used measures folders that are deeper than the longest path. It refuses
// folders that it would need too many descriptors for.
func TestUsedDeep(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "root", "upper")
	if err := os.MkdirAll(top, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 700 {
		at = down(t, at, "folder")
	}
	before, err := Used(t.Context(), Dir{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<20))
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Used(t.Context(), Dir{Path: dir}); err != nil || got < before+1<<20 {
		t.Errorf("got %d, %v", got, err)
	}
	for i := range 3 * maxOpenFolders {
		// A folder lists its names by hash, or the newest or the oldest first: one comes
		// after the one that leads on.
		first, last := fmt.Sprint("a", i), fmt.Sprint("z", i)
		parent, err := unix.Dup(at)
		if err == nil {
			err = unix.Mkdirat(at, first, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		at = down(t, at, "m")
		if err := errors.Join(unix.Mkdirat(parent, last, 0o755), unix.Close(parent)); err != nil {
			t.Fatal(err)
		}
	}
	_ = unix.Close(at)
	if _, err := Used(t.Context(), Dir{Path: dir}); !errors.Is(err, ErrTooDeep) {
		t.Errorf("got %v, want ErrTooDeep", err)
	}
}
