package shim

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/executable"
)

// TestSaveFull: the output of runsc shows a full disk, however long the stacks after it are.
func TestSaveFull(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "runsc")
	text := "#!/bin/sh\necho 'checkpoint failed: write: no space left on device'\nfor i in $(seq 100); do echo 'gvisor.dev/gvisor/pkg/urpc.(*Server).handleOne'; done\nexit 128\n"
	executable.Write(t, script, text)
	if err := (runsc{path: script, dir: dir, container: "c"}).save(t.Context(), dir); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
}
