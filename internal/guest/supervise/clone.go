package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove"
)

// clone makes the repository in the work folder, of the bundle and of what the
// sprite had before, and checks the job's commit out.
func (j *job) clone(ctx context.Context) error {
	if err := os.MkdirAll(j.spec.Workdir, 0o755); err != nil {
		return err
	}
	branch := "refs/heads/" + j.spec.Branch
	if err := j.gits(ctx, [][]string{
		initArgs(j.spec.Base),
		{"symbolic-ref", "HEAD", branch},
		{"config", "user.name", j.spec.Author.Name},
		{"config", "user.email", j.spec.Author.Email},
	}); err != nil {
		return err
	}
	if err := j.cutAt(ctx, j.spec.Workdir, j.spec.Shallow); err != nil {
		return err
	}
	lent, err := j.borrow(ctx)
	if err != nil {
		return fmt.Errorf("take what the sprite has of the repository: %w", err)
	}
	if err := j.gits(ctx, [][]string{
		{"fetch", "-q", "--no-tags", "--update-head-ok", j.spec.Bundle, "refs/cove/base:" + branch, cove.ModuleRef + "*:" + cove.ModuleRef + "*"},
	}); err != nil {
		if lent.any() {
			return fmt.Errorf("what the sprite had of the repository is damaged, and was thrown away; push again: %w", j.forget(err))
		}
		return err
	}
	if head, err := j.git(ctx, nil, "rev-parse", "HEAD"); err != nil {
		return err
	} else if head != j.spec.Base {
		return fmt.Errorf("the bundle holds commit %s, not %s", head, j.spec.Base)
	}
	if err := j.largeFilesIn(); err != nil {
		return err
	}
	if err := j.checkoutLarge(ctx, j.spec.Workdir, "reset", "-q", "--hard"); err != nil {
		return err
	}
	sent, err := j.sentModules(ctx)
	if err != nil {
		return err
	}
	if err := j.checkoutModules(ctx, sent); err != nil {
		return err
	}
	return j.keep(ctx, lent, sent)
}

// checkoutLarge puts the files of a commit into the work tree at dir, by git's command,
// with the content of large files.
func (j *job) checkoutLarge(ctx context.Context, dir string, args ...string) error {
	if err := j.filterLarge(ctx, dir, false); err != nil {
		return err
	}
	if _, err := j.gitIn(ctx, dir, call{}, args...); err != nil {
		return err
	}
	return j.filterLarge(ctx, dir, true)
}

// gits runs git in the work folder several times.
func (j *job) gits(ctx context.Context, calls [][]string) error {
	for _, args := range calls {
		if _, err := j.git(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// initArgs make a repository in which a commit can be. An old git knows no other
// format than the usual one, and no option for it.
func initArgs(commit string) []string {
	args := []string{"init", "-q"}
	if len(commit) == 64 {
		args = append(args, "--object-format=sha256")
	}
	return args
}

// cutAt makes the history in a repository end at the given commits. It must be
// so before they arrive.
func (j *job) cutAt(ctx context.Context, dir string, commits []string) error {
	if len(commits) == 0 {
		return nil
	}
	gitDir, err := j.gitIn(ctx, dir, call{}, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(gitDir, "shallow"), []byte(strings.Join(commits, "\n")+"\n"), 0o644)
}
