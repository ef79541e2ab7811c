package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestTakeTurn: while a package has its turn, no other gets one, except a test binary
// that it runs itself. Afterwards another package gets its turn.
func TestTakeTurn(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "package"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(top, "package"))
	t.Setenv(turnVariable, "")
	end, err := takeTurn()
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock := func() error { return syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
	if err := lock(); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("another package gets its turn meanwhile: %v", err)
	}
	within, err := takeTurn()
	if err != nil {
		t.Fatal(err)
	}
	within()
	if err := lock(); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("the turn has ended with that of a program in it: %v", err)
	}
	end()
	if err := lock(); err != nil {
		t.Errorf("another package gets no turn afterwards: %v", err)
	}
}

// TestLend: the parts that sandboxes start from move unchanged from the data folder of an ended
// test to the next one, and to no other. The rest of the folder stays.
func TestLend(t *testing.T) {
	before := shared.dir
	shared.dir = t.TempDir()
	defer func() { shared.dir = before }()
	shared.hider.Dir = filepath.Join(shared.dir, "base")
	write := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(filepath.Base(name)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(dir string, want ...string) {
		t.Helper()
		var names []string
		err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && d.Name() != "listing" {
				names = append(names, strings.TrimPrefix(name, dir+"/"))
			}
			return err
		})
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%s has %q, %v, want %q", dir, names, err, want)
		}
	}
	top := t.TempDir()
	first, second, third := filepath.Join(top, "1"), filepath.Join(top, "2"), filepath.Join(top, "3")
	for _, name := range []string{"base/host-1/etc/passwd", "base/image-1/etc/passwd", "base/mask-1/usr/x", "cove.db", "guest/1/cove-guest"} {
		write(filepath.Join(first, name))
	}
	if err := TakeBack(first); err != nil {
		t.Fatal(err)
	}
	there(first, "base/image-1/etc/passwd", "cove.db")
	for _, data := range []string{second, third} {
		if err := errors.Join(os.Mkdir(data, 0o700), Lend(data)); err != nil {
			t.Fatal(err)
		}
	}
	there(second, "base/host-1/etc/passwd", "base/mask-1/usr/x", "guest/1/cove-guest")
	there(third)
}
