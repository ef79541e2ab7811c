package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestServePrepares: a server makes the base of sandboxes only while there is a sprite: a
// new one, or one of an earlier server. Without a sprite, it does not search this
// machine's programs. A server that ends first finishes the base that it began.
func TestServePrepares(t *testing.T) {
	h := e2e.NewHost(t)
	if err := e2e.TakeBack(h.Data); err != nil { // the first server must find no base
		t.Fatal(err)
	}
	dir := filepath.Join(h.Data, "base")
	prepared := func() bool {
		t.Helper()
		skeletons, err := filepath.Glob(filepath.Join(dir, "host-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(skeletons) > 0
	}
	h.Run("", "cove", "server", "start")
	h.Run("", "cove", "list")
	h.Run("", "cove", "server", "stop")
	if prepared() {
		t.Error("a server without a sprite has made a base")
	}
	h.Run("", "cove", "server", "start")
	if _, err := h.Client().Create(t.Context(), sprites.CreateRequest{Name: "small"}); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "server", "stop")
	if !prepared() {
		t.Error("a server with a new sprite has made no base")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "server", "start")
	h.Run("", "cove", "server", "stop")
	if !prepared() {
		t.Error("a server that began with a sprite has made no base")
	}
	if out := h.Run("", "cove", "exec", "-s", "small", "echo", "done"); strings.TrimSpace(out) != "done" {
		t.Errorf("got %q, want done", out)
	}
}
