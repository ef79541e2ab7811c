package layers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Everything goes, whatever its name, its mode and its depth; what a link leads to stays.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(dir, "top")
	deepen(t, filepath.Join(top, "a"), "d", int(min(limit.Cur, 20_000))+100, "one")
	deepen(t, filepath.Join(top, "b"), ".removed-0", 3, ".removed-1")
	write(t, filepath.Join(top, ".removed-0", "x"), "is in the way")
	write(t, filepath.Join(top, ".removed-1"), "is in the way")
	write(t, filepath.Join(top, "b", "shut", "in", "file"), "")
	write(t, filepath.Join(dir, "kept", "file"), "")
	err := errors.Join(os.Symlink("../kept", filepath.Join(top, "link")), os.Symlink("../../kept", filepath.Join(top, "b", "link")), unix.Mkfifo(filepath.Join(top, "fifo"), 0o600),
		os.Chmod(filepath.Join(top, "b", "shut", "in"), 0), os.Chmod(filepath.Join(top, "b", "shut"), 0))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveContext(over, top); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it ended", err)
	}
	read(t, filepath.Join(top, ".removed-0", "x"))
	if err := Remove(top); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	read(t, filepath.Join(dir, "kept", "file"))
	for range 2 { // a file, and nothing
		if err := Remove(filepath.Join(dir, "kept", "file")); err != nil {
			t.Error(err)
		}
	}
	if names, err := os.ReadDir(filepath.Join(dir, "kept")); err != nil || len(names) != 0 {
		t.Errorf("got %v, %v", names, err)
	}
}
