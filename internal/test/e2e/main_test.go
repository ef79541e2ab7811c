package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestTakeTurn: while a package has its turn no other one gets it, but for a test binary
// that it runs itself; afterwards another one does.
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
