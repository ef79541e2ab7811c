package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestName: git reads the person's name and address as they are, and what the configuration had before.
func TestName(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, value := range []string{"Ada", "", " a ", "ünï", `a"b\c`, `\n`, "a;b#c", "a\tb\nc\rd", "[core]", "a=b", "\x01\x7f"} {
		dir := t.TempDir()
		g := git{work: dir, author: cove.Person{Name: value, Email: "<" + value + ">"}}
		if _, err := g.run(t.Context(), initArgs("")...); err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, ".git", "config")
		before, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, []byte(strings.TrimRight(string(before), "\n")), 0o644); err != nil { // as a template may have it
			t.Fatal(err)
		}
		if err := g.name(dir); err != nil {
			t.Fatal(err)
		}
		if bare, err := g.run(t.Context(), "config", "core.bare"); err != nil || bare != "false" {
			t.Errorf("%q: core.bare is %q, %v", value, bare, err)
		}
		for key, want := range map[string]string{"user.name": g.author.Name, "user.email": g.author.Email} {
			got, err := g.run(t.Context(), "config", "-z", key)
			if want = strings.TrimSpace(want + "\x00"); err != nil || got != want {
				t.Errorf("%s is %q, want %q: %v", key, got, want, err)
			}
		}
	}
	if err := (git{}).name(t.TempDir()); err == nil {
		t.Error("a folder without a repository was taken")
	}
}

// TestGitLeavesProgram: git has succeeded, also if a program that it started holds its output
// for some seconds more. So has git on a machine that takes as long to read the output.
func TestGitLeavesProgram(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	g := git{work: t.TempDir()}
	if out, err := g.run(t.Context(), "-c", "alias.held=!sleep 2 & echo done", "held"); err != nil || out != "done" {
		t.Errorf("got %q, %v", out, err)
	}
}
