package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	s, ctx := open(t, filepath.Join(dir, "cove.db")), t.Context()
	const value = "sk-the-very-secret-value"
	if _, err := s.Secrets.Value(ctx, "anthropic"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a secret that is not there: got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, KeyFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a key before there is a secret: %v", err)
	}
	must(t, s.Secrets.Set(ctx, "anthropic", "first"+value))
	must(t, s.Secrets.Set(ctx, "anthropic", value))
	must(t, s.Secrets.Set(ctx, "other", value))
	if got, err := s.Secrets.Value(ctx, "anthropic"); err != nil || got != value {
		t.Errorf("got %q, %v", got, err)
	}
	st, err := os.Stat(filepath.Join(dir, KeyFile))
	must(t, err)
	if st.Mode().Perm() != 0o600 || st.Size() != keySize {
		t.Errorf("the key is %v, of %d bytes", st.Mode(), st.Size())
	}
	list, err := s.Secrets.List(ctx)
	must(t, err)
	if len(list) != 2 || list[0].Name != "anthropic" || list[0].UpdatedAt.Before(list[0].CreatedAt) || list[0].CreatedAt.IsZero() {
		t.Errorf("got %+v", list)
	}
	if got, want := [...]string{list[0].Ends, endsOf(value[1:]), endsOf(value + "\u202e"), endsOf(value + " ")}, [...]string{"alue", "", "", ""}; got != want {
		t.Errorf("the ends that are shown are %q, want %q", got, want)
	}

	// Nothing of it is in any file, two equal ones look different.
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(t, err)
		if bytes.Contains(data, []byte("secret-value")) {
			t.Errorf("%s has the value", file)
		}
	}
	var kinds int
	must(t, s.db.read.QueryRow("SELECT count(DISTINCT sealed) FROM secrets").Scan(&kinds))
	if kinds != 2 {
		t.Error("two values are sealed alike")
	}

	// A value moved to another name does not open.
	_, err = s.db.write.Exec("UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'anthropic') WHERE name = 'other'")
	must(t, err)
	if v, err := s.Secrets.Value(ctx, "other"); !errors.Is(err, ErrKey) {
		t.Errorf("a value that was moved: got %q, %v", v, err)
	}
	must(t, s.Secrets.Delete(ctx, "other", false))
	if err := s.Secrets.Delete(ctx, "other", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: got %v", err)
	}
}

// A key that is gone, cut, open to others or another one is an error while there
// are secrets, and never replaced.
func TestSecretKey(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, KeyFile)
	s, ctx := open(t, filepath.Join(dir, "cove.db")), t.Context()
	must(t, s.Secrets.Set(ctx, "a", "value"))
	good, err := os.ReadFile(key)
	must(t, err)
	for name, test := range map[string]struct {
		spoil func()
		want  string
	}{
		"missing":  {func() { must(t, os.Remove(key)) }, "is gone"},
		"short":    {func() { must(t, os.WriteFile(key, good[:31], 0o600)) }, "32 bytes"},
		"long":     {func() { must(t, os.WriteFile(key, append(good[:32:32], 'x'), 0o600)) }, "32 bytes"},
		"readable": {func() { must(t, os.Chmod(key, 0o644)) }, "chmod 600"},
		"another":  {func() { must(t, os.WriteFile(key, bytes.Repeat([]byte{1}, keySize), 0o600)) }, KeyFile},
		"a link": {func() {
			must(t, os.Rename(key, key+".real"))
			must(t, os.Symlink(key+".real", key))
		}, "symbolic link"},
	} {
		test.spoil()
		_, err := s.Secrets.Value(ctx, "a")
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want one with %q", name, err, test.want)
		}
		before, _ := os.ReadFile(key)
		if err := s.Secrets.Set(ctx, "b", "value"); err == nil || !strings.Contains(err.Error(), KeyFile) {
			t.Errorf("%s: another one was set: %v", name, err)
		}
		if after, _ := os.ReadFile(key); !bytes.Equal(before, after) {
			t.Errorf("%s: the key was replaced", name)
		}
		_ = os.Remove(key)
		must(t, os.WriteFile(key, good, 0o600))
	}
	if got, err := s.Secrets.Value(ctx, "a"); err != nil || got != "value" {
		t.Errorf("with the key back: got %q, %v", got, err)
	}
	// Without secrets, a new key harms nobody.
	must(t, s.Secrets.Delete(ctx, "a", false))
	must(t, os.Remove(key))
	must(t, s.Secrets.Set(ctx, "a", "again"))
}
