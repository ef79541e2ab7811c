package gitwork

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// maxModules bounds the submodules of a repository, with those inside of them.
const maxModules = 500

// Module is a submodule whose repository is here.
type Module struct {
	Path   string // from the top of the outermost work tree
	Commit string // that the tree around it names
	Repo   *Repo
}

// Modules lists the submodules of a commit, and those inside of them, as they are
// checked out in this work tree. absent has the paths of those that are not checked
// out. If a submodule lacks the commit that it should be at, the error is ErrModule.
func (r *Repo) Modules(ctx context.Context, commit string) (modules []Module, absent []string, err error) {
	return r.modules(ctx, commit, func(m Module) error {
		return &fail.Error{Code: ErrModule.Code,
			Message: fmt.Sprintf("the submodule %s should be at the commit %.12s, which is not here", printable.Name(m.Path), m.Commit),
			Hint:    "git submodule update --init --recursive -- " + printable.Word(m.Path)}
	})
}

// modulesHere is Modules for a job's bundle: a submodule without its commit is absent,
// and that is no error.
func (r *Repo) modulesHere(ctx context.Context, commit string) (modules []Module, absent []string, err error) {
	return r.modules(ctx, commit, func(Module) error { return nil })
}

// modules calls lacks for a submodule without its commit. If lacks returns no error, the
// submodule counts as absent.
func (r *Repo) modules(ctx context.Context, commit string, lacks func(Module) error) (modules []Module, absent []string, err error) {
	err = r.modulesBelow(ctx, commit, "", lacks, func(m Module) error {
		if m.Repo == nil {
			absent = append(absent, m.Path)
			return nil
		}
		if modules = append(modules, m); len(modules) > maxModules {
			return &fail.Error{Code: ErrModule.Code, Message: fmt.Sprintf("there are more than %d submodules", maxModules),
				Hint: "leave out those that the work does not need: git submodule deinit PATH"}
		}
		return nil
	})
	return modules, absent, err
}

func (r *Repo) modulesBelow(ctx context.Context, commit, prefix string, lacks, found func(Module) error) error {
	if r.Bare {
		return nil
	}
	links, err := r.gitlinks(ctx, commit)
	if err != nil {
		return fmt.Errorf("list the submodules: %w", err)
	}
	for _, link := range links {
		m := Module{Path: prefix + link.path, Commit: link.id}
		if m.Repo, err = r.moduleAt(ctx, link.path); err != nil {
			return err
		}
		if m.Repo != nil {
			if at, err := m.Repo.Resolve(ctx, m.Commit); err != nil {
				return err
			} else if at == "" {
				if err := lacks(m); err != nil {
					return err
				}
				m.Repo = nil
			}
		}
		if m.Repo == nil {
			if err := found(m); err != nil {
				return err
			}
			continue
		}
		if m.Repo.format != r.format {
			return fmt.Errorf("the submodule %s has objects of another format", printable.Name(m.Path))
		}
		if err := found(m); err != nil {
			return err
		}
		if err := m.Repo.modulesBelow(ctx, m.Commit, m.Path+"/", lacks, found); err != nil {
			return err
		}
	}
	return nil
}

// moduleAt opens the repository at a path of the work tree; nil if there is none.
func (r *Repo) moduleAt(ctx context.Context, path string) (*Repo, error) {
	dir := filepath.Join(r.Dir, filepath.FromSlash(path))
	if !exists(filepath.Join(dir, ".git")) {
		return nil, nil
	}
	m, err := Open(ctx, dir)
	if errors.Is(err, ErrNotRepository) || err == nil && m.CommonDir == r.CommonDir {
		return nil, nil
	}
	if m != nil {
		m.around = r
	}
	return m, err
}

// gitlink is a submodule's entry in a tree.
type gitlink struct{ path, id string }

// gitlinks lists the gitlinks of a commit. It searches only a tree with a .gitmodules:
// without that, a gitlink is not a submodule to git.
func (r *Repo) gitlinks(ctx context.Context, commit string) ([]gitlink, error) {
	s := &scratch{git: r.git}
	return s.gitlinks(ctx, commit)
}

func (s *scratch) gitlinks(ctx context.Context, commit string) ([]gitlink, error) {
	out, err := s.git.text(ctx, "ls-tree", "--full-tree", "--name-only", commit, ".gitmodules")
	if err != nil || out == "" {
		return nil, err
	}
	return s.allGitlinks(ctx, commit)
}

// allGitlinks lists the gitlinks of a commit, even without a .gitmodules.
func (s *scratch) allGitlinks(ctx context.Context, commit string) ([]gitlink, error) {
	var links []gitlink
	w := &recordWriter{end: 0, each: func(entry string) {
		if rest, ok := strings.CutPrefix(entry, "160000 commit "); ok {
			if id, path, ok := strings.Cut(rest, "\t"); ok {
				links = append(links, gitlink{path, id})
			}
		}
	}}
	_, err := s.git.run(ctx, call{args: []string{"ls-tree", "-r", "-z", "--full-tree", commit}, stdout: w, timeout: patiently})
	return links, err
}

// CheckModules returns ErrDirty if submodules have uncommitted changes: no snapshot
// includes these.
func CheckModules(ctx context.Context, modules []Module) error {
	e := &fail.Error{Code: ErrDirty.Code}
	for _, m := range modules {
		list, err := m.Repo.changes(ctx)
		if err != nil {
			return err
		}
		in := "git -C " + printable.Word(m.Path)
		if len(list) > 0 {
			e.Hint += "commit them there: " + in + " add -A && " + in + " commit\n"
		}
		for _, c := range list {
			e.Paths = append(e.Paths, m.Path+"/"+c.path)
			if c.module {
				e.Hint += "or update those that are only behind: " + in + " submodule update --recursive -- " + printable.Word(c.path) + "\n"
			}
		}
	}
	if len(e.Paths) == 0 {
		return nil
	}
	e.Hint += "or leave them behind: --dirty ignore"
	e.Message = "there are uncommitted changes in submodules, which travel as commits only: " + SomeNames(e.Paths)
	return e
}
