package gvisor

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
)

// TestUnnamedWithoutProcess: a checkpoint ends a sandbox's process and begins another. A look
// in between is told so.
func TestUnnamedWithoutProcess(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	s := &sandbox{folder: folder(t.TempDir()), id: "paint", state: shim.State{PID: cmd.Process.Pid}}
	if n, err := s.UnnamedBytes(); n != 0 || !errors.Is(err, sprite.ErrNoProcess) {
		t.Errorf("got %d, %v", n, err)
	}
}
