package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// The sprite's file overrides the variables that it was created with. The caller's override
// the file.
func TestEnvironmentFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, boot.Environment)
	created := map[string]string{"A": "created", "B": "created", "C": "created"}
	s := &commands{dir: dir, env: func() map[string]string { return created }}
	environment := func(key string) string {
		c := &command{}
		if err := s.environment(c, []string{"C=given"}); err != nil {
			t.Fatal(err)
		}
		for _, pair := range slices.Backward(c.env) {
			if value, ok := strings.CutPrefix(pair, key+"="); ok {
				return value
			}
		}
		return ""
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, a, b, c string) {
		t.Helper()
		for key, want := range map[string]string{"A": a, "B": b, "C": c} {
			if got := environment(key); got != want {
				t.Errorf("%s: %s is %q, want %q", what, key, got, want)
			}
		}
	}
	check("without a file", "created", "created", "given")
	write(`{"B":"file","C":"file","X=Y":"z","":"z"}`)
	check("with one", "created", "file", "given")
	if got := environment("X"); got != "" {
		t.Errorf("a name with = in it gave %q", got)
	}
	write(`{"A":"another file"}`)
	check("with another", "another file", "created", "given")
	write(`no JSON`)
	check("with what is none", "created", "created", "given")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/environ", name); err != nil {
		t.Fatal(err)
	}
	check("with a link", "created", "created", "given")
}
