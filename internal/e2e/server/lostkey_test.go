package server

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestLostKey: without the key of the sealed values, no server starts, and nothing is changed.
// Both ways that the hint names work: the key is put back, or the sealed values are given up.
func TestLostKey(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	if err := h.Client().SetSecret(t.Context(), "ci", "a-value-of-some-length"); err != nil {
		t.Fatal(err)
	}
	h.EndServer(syscall.SIGTERM)
	key := filepath.Join(h.Data, store.KeyFile)
	right, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(h.Data, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"is not the one": bytes.Repeat([]byte{1}, 32), "32 bytes": right[:31], "is gone": nil} {
		err := os.WriteFile(key, bad, 0o600)
		if bad == nil && err == nil {
			err = os.Remove(key)
		}
		if err != nil {
			t.Fatal(err)
		}
		out, code := h.Try("", "cove", "serve", "--addr", "127.0.0.1:0")
		if code != 1 || !strings.Contains(out, name) || !strings.Contains(out, "cove serve --data "+h.Data+" --forget-sealed") {
			t.Errorf("%s: serve: %d, %s", name, code, out)
		}
		if out, code := h.Try("", "cove", "server", "start"); code != 1 || !strings.Contains(out, "--forget-sealed") {
			t.Errorf("%s: start: %d, %s", name, code, out)
		}
		if out, code := h.Try("", "cove", "doctor"); code == 0 || !strings.Contains(out, "none would start: ") || !strings.Contains(out, "--forget-sealed") {
			t.Errorf("%s: doctor: %d, %s", name, code, out)
		}
		if after, err := os.ReadFile(key); !bytes.Equal(after, bad) {
			t.Errorf("%s: the key was changed: %v", name, err)
		}
		if after, err := os.ReadFile(filepath.Join(h.Data, "cove.db")); err != nil || !bytes.Equal(after, stored) {
			t.Errorf("%s: the store was changed (%v)", name, err)
		}
	}
	if err := os.WriteFile(key, right, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Serve(nil)
	if out := h.Run("", "cove", "secret", "list"); !strings.Contains(out, "ci") {
		t.Errorf("with the key back: %s", out)
	}
	h.EndServer(syscall.SIGTERM)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	h.Serve(nil, "--forget-sealed")
	if out := h.Run("", "cove", "secret", "list"); strings.Contains(out, "ci") {
		t.Errorf("given up: %s", out)
	}
	h.Run("", "cove", "exec", "-s", "paint", "--", "true")
	if err := h.Client().SetSecret(t.Context(), "ci", "another-value"); err != nil {
		t.Error(err)
	}
}
