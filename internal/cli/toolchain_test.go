package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestProgramFolders: the folders for a PATH come from the toolchains that exist. The folder of
// rustup's own programs comes last.
func TestProgramFolders(t *testing.T) {
	home := t.TempDir()
	for _, dir := range []string{".cargo/bin", ".rustup/toolchains/stable/bin", ".pyenv/bin", ".pyenv/versions/3.14/bin", "sdk/go1.26/bin"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, ".cargo/bin/cargo"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	found := toolchains(func(string) string { return "" }, func() (string, error) { return home, nil })
	found = slices.DeleteFunc(found, func(dir string) bool {
		rel, err := filepath.Rel(home, dir)
		return err != nil || !filepath.IsLocal(rel)
	})
	var got []string
	for _, dir := range programFolders(found) {
		rel, err := filepath.Rel(home, dir)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rel)
	}
	want := []string{"sdk/go1.26/bin", ".pyenv/versions/3.14/bin", ".rustup/toolchains/stable/bin", ".pyenv/bin", ".cargo/bin"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
