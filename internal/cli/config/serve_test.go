package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove/internal/cli/config"
)

func TestServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), config.ServeFile)
	known := func(flag string) bool { return flag == "idle" || flag == "pool" || flag == "name" }
	read := func(text string) (config.Serve, error) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return config.ReadServe(file, true, known)
	}
	got, err := read("idle = \"1h\"\npool = 2\nname = [\"a\", \"b\"]\nautostart = false\n")
	want := config.Serve{File: file, Flags: map[string][]string{"idle": {"1h"}, "pool": {"2"}, "name": {"a", "b"}}, NoAutostart: true}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v, diff %s", err, diff)
	}
	for text, problem := range map[string]string{
		"idle = \"1h\"\nidel = \"2h\"\n": file + `:2: there is no setting "idel"`,
		"# x\n[pool]\nsize = 1\n":        file + ":2: pool must be a text",
		"autostart = \"no\"\n":           file + ":1: autostart must be true or false",
		"accept-older-store = true\n":    file + ":1: accept-older-store is a flag for one start, not a setting; leave it out here, and type: cove serve --accept-older-store",
		"forget-sealed = true\n":         file + ":1: forget-sealed is a flag for one start",
		"idle = \"1h\"\ndata = \"/x\"\n": file + ":2: data is a flag for one start",
		"config = \"other.toml\"\n":      file + ":1: config is a flag for one start",
		"idle = \n":                      file + ":1:",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: got %v, want %q", text, err, problem)
		}
	}
	none, err := config.ReadServe(filepath.Join(t.TempDir(), "none"), false, known)
	if err != nil || none.File != "" {
		t.Errorf("of no file: %+v, %v", none, err)
	}
	if _, err := config.ReadServe(filepath.Join(t.TempDir(), "none"), true, known); err == nil {
		t.Error("a file that must be there is not missed")
	}
}
