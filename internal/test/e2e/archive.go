package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Export returns a sprite's archive.
func Export(h *Host, t *testing.T, what string) []byte {
	t.Helper()
	cmd := h.Command("", "cove", "export", what)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || !strings.Contains(stderr.String(), "exported: ") {
		t.Fatalf("export %s: %v, %s", what, err, stderr.String())
	}
	return out
}

// Feed runs cove with an input, and returns the output of both streams and the exit code.
func Feed(h *Host, data []byte, args ...string) (string, int) {
	h.T.Helper()
	cmd := h.Command("", "cove", args...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		h.T.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// NoImports checks that nothing of an import is left.
func NoImports(h *Host, t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.Data, "imports"))
	if len(entries) != 0 || err != nil && !os.IsNotExist(err) {
		t.Errorf("left of imports: %v, %v", entries, err)
	}
}
