package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// leftoverMessage is the message of the commit with an agent's uncommitted changes.
const leftoverMessage = "Left uncommitted by the agent"

// leftovers commits an agent's uncommitted changes in its clone and in the submodules.
type leftovers struct {
	git     git
	index   string // a file for an index of its own
	modules []module
	missed  []error // why something can't be committed
}

// commit commits the uncommitted changes in the clone, or in the submodule at path, and in the
// submodules inside of it. It returns the commit, or "" if there are no changes.
func (l *leftovers) commit(ctx context.Context, path, head string) (string, error) {
	dir := filepath.Join(l.git.work, path)
	defer os.Remove(l.index)
	in := call{env: []string{"GIT_INDEX_FILE=" + l.index}}
	var inside []string
	for _, m := range directly(l.modules, path) {
		commit, err := l.commitIn(ctx, m)
		if err != nil {
			l.missed = append(l.missed, fmt.Errorf("in the submodule %s: %w", m.Path, err))
		}
		if commit != "" {
			inside = append(inside, "160000,"+commit+","+m.below(path))
		}
	}
	if _, err := l.git.in(ctx, dir, in, "read-tree", head); err != nil {
		return "", err
	}
	if err := l.addAll(ctx, dir, in); err != nil {
		return "", err
	}
	for _, entry := range inside {
		if _, err := l.git.in(ctx, dir, in, "update-index", "--cacheinfo", entry); err != nil {
			return "", err
		}
	}
	tree, err := l.git.in(ctx, dir, in, "write-tree")
	if err != nil {
		return "", err
	}
	committed, err := l.git.in(ctx, dir, call{}, "rev-parse", head+"^{tree}")
	if err != nil || tree == committed {
		return "", err
	}
	return l.git.in(ctx, dir, call{}, "commit-tree", "-p", head, "-m", leftoverMessage, tree)
}

// commitIn is commit for a submodule. If the agent has taken the submodule's repository apart,
// there is nothing to commit.
func (l *leftovers) commitIn(ctx context.Context, m module) (string, error) {
	if !l.git.present(m.Path) {
		return "", nil
	}
	head, err := l.git.in(ctx, filepath.Join(l.git.work, m.Path), call{}, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", nil
	}
	return l.commit(ctx, m.Path, head)
}

// addAll adds all files that are not ignored to an index. If git can't add something, such as
// a repository without a commit, addAll notes that and leaves it out.
func (l *leftovers) addAll(ctx context.Context, dir string, in call) error {
	_, err := l.git.in(ctx, dir, in, "add", "--all")
	if err == nil {
		return nil
	}
	_, err = l.git.in(ctx, dir, in, "add", "--all", "--ignore-errors")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		return err // nil, or nothing was written
	}
	l.missed = append(l.missed, err)
	return nil
}
