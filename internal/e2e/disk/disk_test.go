package disk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestFullDisk fills the disk under a server, a job and a sprite. Calls that need space
// fail and say why. When there is room again, the job goes on and nothing is lost.
func TestFullDisk(t *testing.T) {
	h := e2e.NewSmallHost(t, "96m")
	h.Serve(nil, "--disk-reserve", "0")
	repo := h.Repository("repo", map[string]string{"plan.md": e2e.WaitingPlan})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.UntilStep(job)

	out, code := h.Try("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "cat /dev/zero >~/fill")
	if code == 0 || !strings.Contains(out, "No space left on device") {
		t.Errorf("a command that fills the disk: %d, %s", code, out)
	}
	if out, code := h.Try("", "cove", "list"); code != 0 || !strings.Contains(out, sprite) {
		t.Errorf("list on a full disk: %d, %s", code, out)
	}
	if out, code := h.Try(repo, "cove", "push", "--agent", "shell", "plan.md"); code == 0 || !strings.Contains(strings.ToLower(out), "space") && !strings.Contains(out, "full") {
		t.Errorf("push on a full disk: %d, %s", code, out)
	}
	big := filepath.Join(filepath.Dir(h.Home), "big")
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := h.Try("", "cove", "cp", "big", sprite+":/home/sprite/big"); code == 0 || !strings.Contains(strings.ToLower(out), "space") {
		t.Errorf("cp to a full disk: %d, %s", code, out)
	}
	h.Run("", "cove", "exec", "-s", sprite, "rm", "fill")
	h.Run("", "cove", "exec", "-s", sprite, "touch", "go-on")
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Errorf("pull when there is room again: %d, %s", code, out)
	}
	if got := h.Run(repo, "git", "log", "--format=%s"); got != "Two\nOne\nfirst\n" {
		t.Errorf("commits: got %q", got)
	}
}

// TestFullDiskKept: if there is no space for a memory or an archive, the error says so.
// It has the code for it, and no paths of the server.
func TestFullDiskKept(t *testing.T) {
	h := e2e.NewSmallHost(t, "256m")
	h.Serve(nil, "--disk-reserve", "0")
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "-c", "import time; x = bytes(range(256)) * 80000; time.sleep(100000)")
	archive := e2e.Export(h, t, "paint")
	fill := filepath.Join(h.Data, "fill")
	full := func(but int64) {
		t.Helper()
		if err := os.Remove(fill); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if out, err := exec.Command("sh", "-c", "cat /dev/zero >"+fill).CombinedOutput(); err == nil {
			t.Fatalf("fill the disk: %s", out)
		}
		st, err := os.Stat(fill)
		if err == nil {
			err = os.Truncate(fill, st.Size()-but)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	says := func(out string, code, want int, what string) {
		t.Helper()
		if code != want || !strings.Contains(out, what) || strings.Contains(out, h.Data) || strings.Contains(out, "MemoryFile") || want > 0 && !strings.Contains(out, "hint: free some space") {
			t.Errorf("%d, %s; want %d, %s", code, out, want, what)
		}
	}
	full(2 << 20)
	out, code := h.Try("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	says(out, code, 0, "The checkpoint has no memory: there is no space")
	out, code = h.Try("", "cove", "suspend", "paint")
	says(out, code, 6, "paint stays awake: there is no space")
	full(0)
	out, code = e2e.Feed(h, archive, "import", "copy")
	says(out, code, 6, "the disk of the server")
	e2e.NoImports(h, t)
	full(64 << 10)
	out, code = e2e.Feed(h, archive, "import", "copy", "--max-size", "1G")
	says(out, code, 6, "not enough space for the archive")
	e2e.NoImports(h, t)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "suspend", "paint")
	if out, code := e2e.Feed(h, archive, "import", "copy"); code != 0 {
		t.Errorf("import when there is room again: %d, %s", code, out)
	}
}
