package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/lib/private"
)

// TestElsewhere: a moved folder knows its sandbox, even if an earlier cove has started the
// sandbox. A copy of the folder does not.
func TestElsewhere(t *testing.T) {
	top := t.TempDir()
	dir, moved, copied := filepath.Join(top, "original"), filepath.Join(top, "moved"), filepath.Join(top, "copied")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "runsc.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.Stdout = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	start, err := processStart(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := private.FolderID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	for name, st := range map[string]State{
		"noted":                 {Folder: folder, PID: cmd.Process.Pid, StartTime: start},
		"noted, starting":       {Folder: folder},
		"of an earlier cove":    {PID: cmd.Process.Pid, StartTime: start},
		"of this cove, adopted": {Folder: folder, PID: 1 << 30},
	} {
		if st.Elsewhere(moved) {
			t.Errorf("%s: the folder that was moved takes its sandbox for another's", name)
		}
		if !st.Elsewhere(copied) {
			t.Errorf("%s: the copy takes the original's sandbox for its own", name)
		}
	}
}
