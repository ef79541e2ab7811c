package filesync

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// maxRepositories bounds the folders that an error names.
const maxRepositories = 20

// checkRepositories refuses a plan that puts something into a folder that git would then take
// for a repository. The next git command in it, even a shell prompt's, would run what its
// configuration and hooks say. Files that are there already count as well as those that come.
func (s *session) checkRepositories() error {
	if s.Verb != Pull || s.AcceptRisky {
		return nil
	}
	w := &repositoryWalk{above: InRepository(s.localAt.Root)}
	t, err := openTree(s.localAt.Root)
	if err == nil {
		w.tree = t
		defer t.close()
	} else if !errors.Is(err, unix.ENOENT) {
		return coded("look at "+s.localAt.Root, err)
	}
	for _, ops := range []*spool[op]{s.plan.puts, s.plan.merges} {
		r, err := ops.read()
		if err != nil {
			return err
		}
		if err := each(r, w.put); err != nil {
			return err
		}
		w.leave("")
		if w.any && w.above {
			w.found = append(w.found, ".")
		}
		if len(w.found) > 0 {
			break
		}
	}
	if len(w.found) == 0 {
		return nil
	}
	e := &fail.Error{Code: CodeRisky, Paths: w.found, Hint: "look at it in the sprite, and leave it out with --exclude PATTERN, or take it with --accept-risky"}
	e.Message = fmt.Sprintf("held for your review: git would take the folder %q for a repository, and run what its config and hooks say", w.found[0])
	if more := len(w.found) - 1; more > 0 {
		e.Message += fmt.Sprintf("; and %d more such folders", more)
	}
	e.Message += "; nothing was changed"
	return e
}

// InRepository reports whether a file or folder of this machine is a part of a repository that
// tells git what to run (HEAD, configuration, hooks). A path that does not exist yet is judged
// as if it did. The name .git is not among those that it looks for.
func InRepository(name string) bool {
	for dir, base := filepath.Dir(name), filepath.Base(name); ; dir, base = filepath.Dir(dir), filepath.Base(dir) {
		part := safepath.GitPart(base)
		switch safepath.Fold(base) {
		case "config", "config.worktree", "hooks", "info", "modules", "worktrees":
			part |= partsBeside(dir)
		default:
			if part != 0 {
				part |= partsBeside(dir)
			}
		}
		if part.Repository() {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// partsBeside are the GitParts in a folder, by the file system's own rules for names.
func partsBeside(dir string) (parts safepath.GitParts) {
	for _, name := range []string{"HEAD", "objects", "refs", "commondir"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			parts |= safepath.GitPart(name)
		}
	}
	return parts
}

// A repositoryWalk goes through what is put at the target, in the order of comparePaths.
// It remembers only the folders above the last path.
type repositoryWalk struct {
	tree  *tree // nil: the target is not there yet
	above bool
	any   bool
	open  []partDir
	found []string
}

// partDir is a folder into which something is put.
type partDir struct {
	path    string // "" is the root
	parts   safepath.GitParts
	ours    bool // it has a .git of its own, which never came from a sprite
	touched bool // something is put below it, and not in a work tree of the person's there
}

func (w *repositoryWalk) put(o op) error {
	name := o.entry.Path
	if w.any = true; len(w.open) == 0 {
		w.enter("")
	}
	w.leave(name)
	last := &w.open[len(w.open)-1]
	for i := len(last.path) + 1; i < len(name); i++ {
		if name[i] == '/' {
			w.open[len(w.open)-1].parts |= safepath.GitPart(path.Base(name[:i]))
			w.enter(name[:i])
		}
	}
	w.open[len(w.open)-1].parts |= safepath.GitPart(path.Base(name))
	for n := len(w.open) - 1; n >= 0 && !w.open[n].touched; n-- {
		if w.open[n].touched = true; w.open[n].ours {
			break
		}
	}
	return nil
}

// enter opens a folder, with what is in it.
func (w *repositoryWalk) enter(dir string) {
	d := partDir{path: dir}
	if w.tree != nil {
		d.parts, d.ours = w.tree.gitParts(path.Join(".", dir))
	}
	w.open = append(w.open, d)
}

// leave ends the folders that a path is not in; "" is in none.
func (w *repositoryWalk) leave(name string) {
	for n := len(w.open); n > 0; n-- {
		d := w.open[n-1]
		if name != "" && (d.path == "" || below(name, d.path)) {
			return
		}
		w.open = w.open[:n-1]
		if d.parts.Repository() && d.touched && len(w.found) < maxRepositories {
			w.found = append(w.found, path.Join(".", d.path))
		}
	}
}

// gitParts returns the GitParts of a folder, and whether it has a .git. A folder that is not
// there has none.
func (t *tree) gitParts(dir string) (parts safepath.GitParts, ours bool) {
	at, err := t.dir(dir)
	if err != nil {
		return 0, false
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return 0, false
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			parts |= safepath.GitPart(name)
			ours = ours || safepath.IsDotGit(name)
		}
		if err != nil {
			return parts, ours
		}
	}
}
