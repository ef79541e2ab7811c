package tree

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNewFile: a file has no name while it is copied, so that a killed cove leaves nothing.
// Then it takes the place of the old file, or is dropped.
func TestNewFile(t *testing.T) {
	dir := t.TempDir()
	dst := filepath.Join(dir, "a")
	has := func(want string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got += e.Name() + "=" + string(text) + " "
		}
		if got != want {
			t.Errorf("the folder has %q, want %q", got, want)
		}
	}
	was := ""
	for _, text := range []string{"one", "two", "dropped"} {
		f, err := Create(dst)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		has(was)
		if text == "dropped" {
			err = f.Drop()
		} else {
			err, was = f.Put(), "a="+text+" "
		}
		if err != nil {
			t.Error(err)
		}
		has(was)
	}
}
