package gvisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestContentOf: a program that the go command linked is known by the digest that it carries. A
// program that has none, or another's word for it, is known by its bytes, as is any other file.
func TestContentOf(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "buildid", own).Output()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))
	if got, err := contentOf(own); err != nil || got == "" || !strings.HasSuffix(id, "/"+got) {
		t.Errorf("got %q, %v of build ID %q", got, err, id)
	}

	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"a constant": bytes.ReplaceAll(text, []byte(id), bytes.Repeat([]byte("x"), len(id))),
		"too short":  bytes.ReplaceAll(text, []byte(id), []byte("a/b/c/d"+strings.Repeat("\x00", len(id)-7))),
		"cut off":    text[:4000],
		"no program": []byte("text"),
		"empty":      nil,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if got, err := contentOf(file); err != nil || got != hex.EncodeToString(sum[:])[:16] {
			t.Errorf("%s: got %q, %v, want its digest", name, got, err)
		}
	}
	if _, err := contentOf(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a program that is not there has a content")
	}
}
