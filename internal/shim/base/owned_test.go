package base

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestOwned: the masks of a server in a user namespace have all folders of programs, and
// sudo's own files. A change on the host is in the next mask.
func TestOwned(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	put("usr/bin/sudo", "one", 0o755|os.ModeSetuid)
	put("usr/bin/su", "not setuid", 0o755)
	put("usr/bin/ls", "ls", 0o755)
	put("usr/libexec/sudo/sudoers.so", "plugin", 0o644)
	put("usr/share/doc/a/readme", "text", 0o644)
	put("usr/share/private/key", "secret", 0o600)

	h := &Hider{Files: Files{Root: root}, Dir: dir, Own: true}
	mask := func() string {
		t.Helper()
		m, err := h.Mask()
		if err != nil || m.For("usr") == "" {
			t.Fatalf("got %+v, %v", m, err)
		}
		return m.For("usr")
	}
	first := mask()
	for name, want := range map[string]string{"bin/sudo": "one", "libexec/sudo/sudoers.so": "plugin"} {
		if got, err := os.ReadFile(filepath.Join(first, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if st, err := os.Stat(filepath.Join(first, "bin/sudo")); err != nil || st.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("sudo: %v, %v", st, err)
	}
	if st, err := os.Stat(filepath.Join(first, "share/doc/a")); err != nil || !st.IsDir() {
		t.Errorf("a folder: %v, %v", st, err)
	}
	for _, name := range []string{"bin/su", "bin/ls", "share/doc/a/readme"} {
		if _, err := os.Lstat(filepath.Join(first, name)); !os.IsNotExist(err) {
			t.Errorf("%s is in the mask: %v", name, err)
		}
	}
	if st, err := os.Lstat(filepath.Join(first, "share/private/key")); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("what others may not read is shown: %v, %v", st, err)
	}

	if again := mask(); again != first {
		t.Errorf("another mask, %s, of the same files", again)
	}
	put("usr/share/doc/b/readme", "text", 0o644)
	if err := os.Remove(filepath.Join(root, "usr/bin/sudo")); err != nil {
		t.Fatal(err)
	}
	put("usr/bin/sudo", "longer", 0o755|os.ModeSetuid)
	second := mask()
	if got, err := os.ReadFile(filepath.Join(second, "bin/sudo")); err != nil || string(got) != "longer" || second == first {
		t.Errorf("%s after a change: %q, %v", second, got, err)
	}
	if _, err := os.Stat(filepath.Join(second, "share/doc/b")); err != nil {
		t.Error(err)
	}
	m, err := h.Mask()
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "new-killed"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Prune(m); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || !slices.Equal(left, []string{filepath.Join(dir, listingFile), m.Dir}) {
		t.Errorf("after Prune there are %v, %v", left, err)
	}
}

// TestPruneKilled: of a mask that a killed server has removed in part nothing is used.
func TestPruneKilled(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "mask-0123456789abcdef")
	if err := os.MkdirAll(filepath.Join(old, "usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	killed := errors.New("killed")
	h := &Hider{Dir: dir, remove: func(name string) error {
		if _, err := os.Lstat(old); err == nil {
			t.Error("it is removed under the name by which it is taken for whole")
		}
		return errors.Join(os.Remove(filepath.Join(name, "usr/lib")), killed)
	}}
	if err := h.Prune(Mask{}); !errors.Is(err, killed) {
		t.Errorf("got %v", err)
	}
	h.remove = nil
	if err := h.Prune(Mask{}); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
