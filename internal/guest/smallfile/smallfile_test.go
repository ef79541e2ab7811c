package smallfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/guest/smallfile"
)

// The guest's own files replace whatever root in the sandbox put in their place. Otherwise a
// pipe would hold up a wake, and a link would lead elsewhere.
func TestWriteChanged(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "machine-id"), filepath.Join(dir, "other")
	for _, plant := range []func(string) error{
		func(at string) error { return syscall.Mkfifo(at, 0o600) },
		func(at string) error { return os.Symlink(other, at) },
		func(at string) error { return os.WriteFile(at, []byte("old"), 0o600) },
	} {
		if err := errors.Join(os.RemoveAll(name), plant(name)); err != nil {
			t.Fatal(err)
		}
		if err := smallfile.Write(name, "new\n", 0o444); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != "new\n" {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a link was followed: %v", err)
		}
	}
}
