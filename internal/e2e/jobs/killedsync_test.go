package jobs

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestSyncStartsKilledServer kills the server under a sync. The sync starts the server
// again, and completes.
func TestSyncStartsKilledServer(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "true")
	site := filepath.Join(filepath.Dir(h.Home), "site")
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	// A server may be killed before the sync has asked it, or after its answer.
	restarted := 0
	for range 30 {
		if restarted == 2 {
			break
		}
		content := make([]byte, 48<<20)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(site, "big"), content, 0o644); err != nil {
			t.Fatal(err)
		}
		w := newWaiter(h, "site", nil, "sync", "push", "-s", "paint")
		e2e.SignalAll(t, syscall.SIGKILL, h.PID())
		if err := <-w.ended; err != nil {
			t.Fatalf("sync push: %v: %s", err, w.said.String())
		}
		if strings.Contains(w.said.String(), "was killed; starting it again") {
			restarted++
		}
		if got, want := h.Run("", "cove", "exec", "-s", "paint", "sha256sum", "site/big"), fmt.Sprintf("%x", sha256.Sum256(content)); !strings.HasPrefix(got, want) {
			t.Errorf("the file in the sprite: got %s, want %s; it said %s", got, want, w.said.String())
		}
	}
	if restarted < 2 {
		t.Errorf("%d syncs have lost their server", restarted)
	}
}

// TestCopyLosesServer kills the server under a copy into a sprite. The exit code is 75, and
// the error says how to see what was copied.
func TestCopyLosesServer(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "true")
	w := &waiter{Cmd: h.Command("", "cove", "cp", "-", "paint:site"), ended: make(chan error, 1)}
	in, err := w.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	w.Stdout, w.Stderr = &w.said, &w.said
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.ended <- w.Wait() }()
	e2e.Await(t, "tar in the sprite", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "sh", "-c", "grep -sqx tar /proc/[0-9]*/comm")
		return code == 0
	})
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	_ = in.Close()
	if err := <-w.ended; err == nil {
		t.Error("the copy is said to be done")
	}
	if code, said := w.ProcessState.ExitCode(), w.said.String(); code != 75 || !strings.Contains(said, "cove exec -s paint -- ls -la site") || !strings.Contains(said, "cove server start") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
