package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove"
)

// module is a submodule whose repository was sent along.
type module struct {
	Path   string `json:"path"`   // from the work folder
	Commit string `json:"commit"` // that it was sent at
}

// below is the module's path from that of the one around it, which may be empty.
func (m module) below(path string) string { return strings.TrimPrefix(m.Path, path+"/") }

// directly keeps the modules that lie in the one at path, and in none inside it.
func directly(modules []module, path string) (inside []module) {
	parent := func(m module) (longest string) {
		for _, other := range modules {
			if strings.HasPrefix(m.Path, other.Path+"/") && len(other.Path) > len(longest) {
				longest = other.Path
			}
		}
		return longest
	}
	for _, m := range modules {
		if parent(m) == path {
			inside = append(inside, m)
		}
	}
	return inside
}

// submodules makes the repositories of a clone's submodules that were sent along.
type submodules struct {
	git     git
	large   *largeFiles
	base    string   // the commit that the job begins with
	shallow []string // as in cove.JobSpec
	file    string   // lists those that were sent along
}

// list lists the submodules that the job began with.
func (s *submodules) list() ([]module, error) {
	var modules []module
	err := readJSON(s.file, &modules)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return modules, err
}

// sent lists the commits of submodules that came with the bundle.
func (s *submodules) sent(ctx context.Context) ([]string, error) {
	out, err := s.git.run(ctx, "for-each-ref", "--format=%(objectname)", cove.ModuleRef)
	return strings.Fields(out), err
}

// checkout makes the submodules' repositories where they belong.
func (s *submodules) checkout(ctx context.Context, sent []string) error {
	if len(sent) == 0 {
		return nil
	}
	came := map[string]bool{}
	for _, commit := range sent {
		came[commit] = true
	}
	modules, err := s.checkoutBelow(ctx, "", s.base, came)
	if err != nil {
		return err
	}
	text, err := json.Marshal(modules)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file, text, 0o600)
}

// checkoutBelow makes and returns the submodules in a commit of the repository at path, and
// those inside of them.
func (s *submodules) checkoutBelow(ctx context.Context, path, commit string, came map[string]bool) ([]module, error) {
	dir := filepath.Join(s.git.work, path)
	links, err := s.git.links(ctx, dir, commit)
	if err != nil {
		return nil, err
	}
	var modules []module
	for name, id := range links {
		if !came[id] {
			continue
		}
		m := module{filepath.Join(path, name), id}
		if err := s.checkoutOne(ctx, m); err != nil {
			return nil, err
		}
		// Register the submodule as git itself does. If its URL can't be resolved from here,
		// it stays a repository in a folder, which git can handle.
		for _, args := range [][]string{{"init"}, {"absorbgitdirs"}} {
			_, _ = s.git.in(ctx, dir, call{}, append(append([]string{"submodule", "-q"}, args...), "--", name)...)
		}
		below, err := s.checkoutBelow(ctx, m.Path, id, came)
		if err != nil {
			return nil, err
		}
		modules = append(append(modules, m), below...)
	}
	return modules, nil
}

// checkoutOne makes the repository of one submodule.
func (s *submodules) checkoutOne(ctx context.Context, m module) error {
	dir := filepath.Join(s.git.work, m.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ref := cove.ModuleRef + m.Commit
	for i, args := range [][]string{
		initArgs(m.Commit),
		{"fetch", "-q", "--no-tags", "--update-shallow", s.git.work, ref + ":" + ref},
	} {
		if _, err := s.git.in(ctx, dir, call{}, args...); err != nil {
			return err
		}
		if i == 0 {
			if err := errors.Join(s.git.name(dir), s.git.cutAt(ctx, dir, s.shallow)); err != nil {
				return err
			}
		}
	}
	return s.large.checkout(ctx, dir, "checkout", "-q", "--detach", m.Commit)
}
