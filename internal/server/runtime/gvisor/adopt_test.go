package gvisor_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/runtime/gvisor"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// TestAdoptLayerFirst: an import before the first sandbox makes the folder of the
// layers. Sandboxes may have setuid files there, so no other user of this machine may
// enter it.
func TestAdoptLayerFirst(t *testing.T) {
	old := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(old) })
	dir := t.TempDir()
	staged := filepath.Join(dir, "imports", "1")
	if err := os.MkdirAll(staged, 0o700); err != nil {
		t.Fatal(err)
	}
	rt := &gvisor.Runtime{Dir: dir}
	err := rt.Layers().Adopt(t.Context(), layers.Dir{Path: staged}, "23f8a085240b9fba", "")
	if err = errors.Join(err, rt.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "layers")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("layers: %v, %v", info, err)
	}
}
