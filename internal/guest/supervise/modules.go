package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
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

func (j *job) modulesFile() string { return j.folder.file("modules.json") }

// modules lists those that the job began with.
func (j *job) modules() ([]module, error) {
	var modules []module
	err := readJSON(j.modulesFile(), &modules)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return modules, err
}

// sentModules lists the commits of submodules that came with the bundle.
func (j *job) sentModules(ctx context.Context) ([]string, error) {
	out, err := j.git(ctx, nil, "for-each-ref", "--format=%(objectname)", cove.ModuleRef)
	return strings.Fields(out), err
}

// checkoutModules makes the submodules' repositories where they belong.
func (j *job) checkoutModules(ctx context.Context, sent []string) error {
	if len(sent) == 0 {
		return nil
	}
	came := map[string]bool{}
	for _, commit := range sent {
		came[commit] = true
	}
	modules, err := j.checkoutBelow(ctx, "", j.spec.Base, came)
	if err != nil {
		return err
	}
	text, err := json.Marshal(modules)
	if err != nil {
		return err
	}
	return os.WriteFile(j.modulesFile(), text, 0o600)
}

func (j *job) checkoutBelow(ctx context.Context, path, commit string, came map[string]bool) ([]module, error) {
	dir := filepath.Join(j.spec.Workdir, path)
	links, err := j.gitlinks(ctx, dir, commit)
	if err != nil {
		return nil, err
	}
	var modules []module
	for name, id := range links {
		if !came[id] {
			continue
		}
		m := module{filepath.Join(path, name), id}
		if err := j.checkout(ctx, m); err != nil {
			return nil, err
		}
		// As git itself would have it. Without a URL that can be resolved from here it
		// stays a repository in a folder, with which git can deal.
		for _, args := range [][]string{{"init"}, {"absorbgitdirs"}} {
			_, _ = j.gitIn(ctx, dir, call{}, append(append([]string{"submodule", "-q"}, args...), "--", name)...)
		}
		below, err := j.checkoutBelow(ctx, m.Path, id, came)
		if err != nil {
			return nil, err
		}
		modules = append(append(modules, m), below...)
	}
	return modules, nil
}

// checkout makes the repository of one submodule.
func (j *job) checkout(ctx context.Context, m module) error {
	dir := filepath.Join(j.spec.Workdir, m.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ref := cove.ModuleRef + m.Commit
	for i, args := range [][]string{
		initArgs(m.Commit),
		{"fetch", "-q", "--no-tags", "--update-shallow", j.spec.Workdir, ref + ":" + ref},
		{"config", "user.name", j.spec.Author.Name},
		{"config", "user.email", j.spec.Author.Email},
	} {
		if _, err := j.gitIn(ctx, dir, call{}, args...); err != nil {
			return err
		}
		if i == 0 {
			if err := j.cutAt(ctx, dir, j.spec.Shallow); err != nil {
				return err
			}
		}
	}
	return j.checkoutLarge(ctx, dir, "checkout", "-q", "--detach", m.Commit)
}

// gitlinks are the entries of submodules in a commit's tree, by path.
func (j *job) gitlinks(ctx context.Context, dir, commit string) (map[string]string, error) {
	out, err := j.gitIn(ctx, dir, call{}, "ls-tree", "-r", "-z", "--full-tree", commit)
	links := map[string]string{}
	for entry := range strings.SplitSeq(out, "\x00") {
		if rest, ok := strings.CutPrefix(entry, "160000 commit "); ok {
			if id, path, ok := strings.Cut(rest, "\t"); ok {
				links[path] = id
			}
		}
	}
	return links, err
}

// present reports whether a submodule is still a repository of its own.
func (j *job) present(m module) bool {
	_, err := os.Lstat(filepath.Join(j.spec.Workdir, m.Path, ".git"))
	return err == nil
}

// leftoverIn is leftover for a submodule. One that the agent has taken apart has
// nothing that could be told from its leavings.
func (j *job) leftoverIn(ctx context.Context, m module, modules []module) (string, error) {
	if !j.present(m) {
		return "", nil
	}
	head, err := j.gitIn(ctx, filepath.Join(j.spec.Workdir, m.Path), call{}, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", nil
	}
	return j.leftover(ctx, m.Path, head, modules)
}

// gather brings the commits that submodules are at in a commit's tree into the work
// folder's repository, under refs that are added to refs.
func (j *job) gather(ctx context.Context, path, commit string, modules []module, refs map[string]string) error {
	inside := directly(modules, path)
	links, err := j.gitlinks(ctx, filepath.Join(j.spec.Workdir, path), commit)
	if err != nil {
		return err
	}
	for _, m := range inside {
		at := links[m.below(path)]
		delete(links, m.below(path))
		if at == "" || at == m.Commit || !j.present(m) {
			continue
		}
		dir, ref := filepath.Join(j.spec.Workdir, m.Path), j.ref("sub/"+at)
		if _, err := j.gitIn(ctx, dir, call{}, "cat-file", "-e", at+"^{commit}"); err != nil {
			continue // nobody knows it
		}
		if _, err := j.gitIn(ctx, dir, call{}, "update-ref", ref, at); err != nil {
			return err
		}
		if _, err := j.git(ctx, nil, "fetch", "-q", "--no-tags", "--update-shallow", dir, ref+":"+ref); err != nil {
			return err
		}
		refs[ref] = at
		if err := j.gather(ctx, m.Path, at, modules, refs); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if at := filepath.Join(path, name); j.isAlone(ctx, at, links[name], modules) && !slices.Contains(j.unsent, at) {
			j.unsent = append(j.unsent, at)
		}
	}
	return nil
}

// isAlone reports whether the commit of a repository that the job did not begin with is
// in this sprite alone, as far as can be told: no submodule was sent at it, and none of the
// repository's remotes has it.
func (j *job) isAlone(ctx context.Context, path, commit string, modules []module) bool {
	if slices.ContainsFunc(modules, func(m module) bool { return m.Commit == commit }) || !j.present(module{Path: path}) {
		return false
	}
	out, err := j.gitIn(ctx, filepath.Join(j.spec.Workdir, path), call{}, "for-each-ref", "--count=1", "--contains="+commit, "refs/remotes")
	return err == nil && out == ""
}
