package layers

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCopied: a file counts that is in the place of another of the layer below, by that
// one's size without holes; no other does, and no link leads out.
func TestCopied(t *testing.T) {
	o := Overlay{Upper: filepath.Join(t.TempDir(), "upper"), Lowers: []string{filepath.Join(t.TempDir(), "below"), "/"}}
	write := func(dir, name string, size int) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	below := o.Lowers[0]
	write(below, "a/b/copied", 64<<10)
	write(below, "a/left", 64<<10)
	write(below, "a/removed", 64<<10)
	write(below, "linked/inside", 64<<10)
	write(below, "holes", 0)
	write(o.Upper, "a/b/copied", 80<<10)
	write(o.Upper, "a/new", 64<<10)
	write(o.Upper, "holes", 0)
	write(o.Upper, "elsewhere/inside", 10)
	if err := os.Truncate(filepath.Join(below, "holes"), 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(o.Upper, "linked")); err != nil {
		t.Fatal(err)
	}
	if got, err := o.Copied(t.Context()); err != nil || got != 64<<10 {
		t.Errorf("got %d, %v", got, err)
	}
}
