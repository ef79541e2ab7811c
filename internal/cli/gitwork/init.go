package gitwork

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Init makes a repository in an empty folder, with the files in a first commit on
// the branch main. It has no configuration but its own.
func Init(ctx context.Context, dir string, files map[string]string) error {
	if _, _, err := Version(ctx); err != nil {
		return err
	}
	exe, err := exec.LookPath("git")
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("make a repository: %w", err)
		}
	}
	g := runner{exe: exe, dir: dir, settings: []setting{{"user.name", "cove"}, {"user.email", "cove@localhost"}}}
	for _, args := range [][]string{
		{"init", "-q", "--template=", "--initial-branch=main"}, {"add", "--all"}, {"commit", "-q", "-m", "first"},
	} {
		if _, err := g.text(ctx, args...); err != nil {
			return fmt.Errorf("make a repository: %w", err)
		}
	}
	return nil
}
