package gitwork

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// quarantinePrefix begins the names of repositories that bundles are unpacked in. They
// are made under the lock only.
const quarantinePrefix = "in-"

// scratch is a bare repository with an empty configuration that borrows the
// objects of the person's repository. Objects that are written to it stay in it.
type scratch struct {
	dir string
	git runner
	use *TempFile // nil in a quarantine
	of  *Repo     // whose objects it borrows
}

// scratch makes one for reading, which has the objects of some submodules, too.
func (r *Repo) scratch(ctx context.Context, modules ...Module) (*scratch, error) {
	tmp, err := r.private("tmp")
	if err != nil {
		return nil, err
	}
	use, err := tempFile(tmp, "scratch-")
	if err != nil {
		return nil, err
	}
	// The marker is NAME.inuse, the repository NAME.
	if err := os.Rename(use.Name(), use.Name()+inUse); err != nil {
		use.remove()
		return nil, fmt.Errorf("make a scratch repository: %w", err)
	}
	s := &scratch{dir: use.Name(), use: use}
	if err := r.fill(ctx, s, modules); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// quarantine makes a scratch repository for a bundle. The caller holds the lock.
func (r *Repo) quarantine(ctx context.Context, modules ...Module) (*scratch, error) {
	dir, err := r.private()
	if err != nil {
		return nil, err
	}
	if dir, err = os.MkdirTemp(dir, quarantinePrefix); err != nil {
		return nil, fmt.Errorf("make a quarantine: %w", err)
	}
	s := &scratch{dir: dir}
	if err := r.fill(ctx, s, modules); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// fill makes the repository in s.dir.
func (r *Repo) fill(ctx context.Context, s *scratch, modules []Module) error {
	s.of = r
	var shared []setting
	if v, ok := r.config.values["core.sharedrepository"]; ok {
		shared = append(shared, setting{"core.sharedRepository", v})
	}
	maker := runner{exe: r.git.exe, dir: filepath.Dir(s.dir)}
	if _, err := maker.text(ctx, "init", "-q", "--bare", "--template=", "--object-format="+r.format, s.dir); err != nil {
		return fmt.Errorf("make a scratch repository: %w", err)
	}
	s.git = runner{exe: r.git.exe, dir: s.dir, gitDir: s.dir, settings: shared}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return fmt.Errorf("make a scratch repository: %w", err)
	}
	info := filepath.Join(s.dir, "objects", "info")
	if err := os.MkdirAll(info, 0o700); err != nil {
		return fmt.Errorf("make a scratch repository: %w", err)
	}
	borrowed := r.objects() + "\n"
	for _, m := range modules {
		borrowed += m.Repo.objects() + "\n"
	}
	if err := os.WriteFile(filepath.Join(info, "alternates"), []byte(borrowed), 0o600); err != nil {
		return fmt.Errorf("make a scratch repository: %w", err)
	}
	grafts, err := r.grafts(modules)
	if err != nil {
		return err
	}
	return s.cutAt(slices.Collect(maps.Keys(grafts)))
}

// remove deletes the repository. sweep retries later if it can't be deleted.
func (s *scratch) remove() {
	_ = os.RemoveAll(s.dir)
	if s.use != nil {
		_ = os.Remove(s.use.Name() + ".inuse")
		_ = s.use.Close()
	}
}
