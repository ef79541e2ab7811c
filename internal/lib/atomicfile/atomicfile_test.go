package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

func content(t *testing.T, name string) (text string, mode fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), st.Mode()
}

// TestWrite: the new content and mode are there, whatever was there before, and nothing else.
func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": atomicfile.Write, "Replace": atomicfile.Replace} {
		dir := t.TempDir()
		file := filepath.Join(dir, "a file")
		old := unix.Umask(0o077)
		for _, text := range []string{"one", "a longer two", ""} {
			if err := write(file, []byte(text), 0o644); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got, mode := content(t, file); got != text || mode != 0o644 {
				t.Errorf("%s: got %q, %v", name, got, mode)
			}
		}
		unix.Umask(old)
		if err := os.Symlink("elsewhere", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		if err := write(filepath.Join(dir, "link"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "elsewhere")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s followed a link: %v", name, err)
		}
		if err := write(dir, nil, 0o600); err == nil {
			t.Errorf("%s replaced a folder", name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
}

// TestWriteAtOnce: if several write, one wins in the end. Readers see the whole content of one
// of them meanwhile.
func TestWriteAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	for i := range 8 {
		text := strings.Repeat(string(rune('a'+i)), 8000)
		wg.Go(func() {
			for range 20 {
				if err := atomicfile.Write(file, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
				data, err := os.ReadFile(file)
				if err != nil || len(data) != 8000 || strings.Count(string(data), string(data[:1])) != 8000 {
					t.Errorf("got %d bytes, %v", len(data), err)
				}
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestCommitNew: a file that has the name already stays as it is.
func TestCommitNew(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for i, want := range []error{nil, fs.ErrExist} {
		f, err := atomicfile.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(strings.Repeat("x", i+1)); err != nil {
			t.Fatal(err)
		}
		if err := f.CommitNew(0o400); !errors.Is(err, want) {
			t.Errorf("the %dth: %v", i, err)
		}
		f.Discard()
	}
	if text, mode := content(t, file); text != "x" || mode != 0o400 {
		t.Errorf("got %q, %v", text, mode)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}
