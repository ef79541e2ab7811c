package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBeforeAndAfter(t *testing.T) {
	dir := t.TempDir()
	snapshot, leak := filepath.Join(dir, "before.json"), filepath.Join(dir, "cove-leak")
	if err := run([]string{"before", snapshot, filepath.Join(dir, "cove-*")}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(leak, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := run([]string{"after", snapshot, "0s"})
	if err == nil || !strings.Contains(err.Error(), "left behind: file "+leak) {
		t.Errorf("got %v, want an error that names %s", err, leak)
	}
	if err := os.Remove(leak); err != nil {
		t.Fatal(err)
	}
	// Other programs may leave something behind meanwhile, but this file must not be
	// named.
	if err := run([]string{"after", snapshot, "0s"}); err != nil && strings.Contains(err.Error(), leak) {
		t.Errorf("got %v after the leak was removed", err)
	}
}

func TestBadArguments(t *testing.T) {
	snapshot := filepath.Join(t.TempDir(), "before.json")
	if err := os.WriteFile(snapshot, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		nil, {"before"}, {"during", snapshot}, {"after", snapshot}, {"after", snapshot, "soon"}, {"after", snapshot, "1s", "more"},
		{"after", snapshot + ".missing"}, {"before", snapshot, "["},
	} {
		if err := run(args); err == nil {
			t.Errorf("run(%q) gave no error", args)
		}
	}
}
