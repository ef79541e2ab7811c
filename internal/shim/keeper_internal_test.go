package shim

import (
	"os"
	"testing"
)

// TestKeeper: the lock of a sandbox says which shim has it.
func TestKeeper(t *testing.T) {
	dir := t.TempDir()
	lock, err := takeLock(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	pid, start, err := Keeper(dir)
	if err != nil || pid != os.Getpid() || !alive(pid, start) {
		t.Errorf("got %d, %d, %v", pid, start, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}
