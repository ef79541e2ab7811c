package main

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSyncStartsKilledServer kills the server under a sync that waits for it, and under one
// that has begun: each starts the server again, and brings what it was to bring.
func TestSyncStartsKilledServer(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	h.run("", "cove", "exec", "-s", "paint", "true")
	site := filepath.Join(filepath.Dir(h.home), "site")
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	restarted := false
	for range 4 {
		content := make([]byte, 48<<20)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(site, "big"), content, 0o644); err != nil {
			t.Fatal(err)
		}
		w := h.waiter("site", nil, "sync", "push", "-s", "paint")
		signalAll(t, syscall.SIGKILL, h.pid())
		if err := <-w.ended; err != nil {
			t.Fatalf("sync push: %v: %s", err, w.said.String())
		}
		restarted = restarted || strings.Contains(w.said.String(), "was killed; starting it again")
		if got, want := h.run("", "cove", "exec", "-s", "paint", "sha256sum", "site/big"), fmt.Sprintf("%x", sha256.Sum256(content)); !strings.HasPrefix(got, want) {
			t.Errorf("the file in the sprite: got %s, want %s; it said %s", got, want, w.said.String())
		}
	}
	if !restarted {
		t.Error("no sync has lost its server")
	}
}

// TestCopyLosesServer kills the server under a copy into a sprite: the exit code is 75, and it
// says how to see what became of it.
func TestCopyLosesServer(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	h.run("", "cove", "exec", "-s", "paint", "true")
	w := &waiter{Cmd: h.command("", "cove", "cp", "-", "paint:site"), ended: make(chan error, 1)}
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
	await(t, "tar in the sprite", func() bool {
		_, code := h.try("", "cove", "exec", "-s", "paint", "sh", "-c", "grep -sqx tar /proc/[0-9]*/comm")
		return code == 0
	})
	signalAll(t, syscall.SIGKILL, h.pid())
	_ = in.Close()
	<-w.ended
	if code, said := w.ProcessState.ExitCode(), w.said.String(); code != 75 || !strings.Contains(said, "cove exec -s paint -- ls -la site") || !strings.Contains(said, "cove server start") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
