package shim

import (
	"os"
	"testing"
)

// TestKeeper: the lock of a sandbox says which shim has it.
func TestKeeper(t *testing.T) {
	s := &Shim{cfg: Config{Dir: t.TempDir()}}
	if err := s.takeLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, start, err := Keeper(s.cfg.Dir)
	if err != nil || pid != os.Getpid() || !alive(pid, start) {
		t.Errorf("got %d, %d, %v", pid, start, err)
	}
	if err := s.lock.Close(); err != nil {
		t.Fatal(err)
	}
}
