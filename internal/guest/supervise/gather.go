package supervise

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
)

// gatherer brings the commits of submodules into the clone that they are in.
type gatherer struct {
	git     git
	id      string // the job's
	modules []module
	refs    map[string]string // the clone's refs to what is collected, with the commits
	unsent  []string          // paths of repositories whose commits are named by what was collected, and not in it
}

// gather brings the commits that submodules are at in a commit's tree into the clone,
// under refs that are added to refs.
func (g *gatherer) gather(ctx context.Context, path, commit string) error {
	inside := directly(g.modules, path)
	links, err := g.git.links(ctx, filepath.Join(g.git.work, path), commit)
	if err != nil {
		return err
	}
	for _, m := range inside {
		at := links[m.below(path)]
		delete(links, m.below(path))
		if at == "" || at == m.Commit || !g.git.present(m.Path) {
			continue
		}
		dir, ref := filepath.Join(g.git.work, m.Path), ref(g.id, "sub/"+at)
		if _, err := g.git.in(ctx, dir, call{}, "cat-file", "-e", at+"^{commit}"); err != nil {
			continue // nobody knows it
		}
		if _, err := g.git.in(ctx, dir, call{}, "update-ref", ref, at); err != nil {
			return err
		}
		if _, err := g.git.run(ctx, "fetch", "-q", "--no-tags", "--update-shallow", dir, ref+":"+ref); err != nil {
			return err
		}
		g.refs[ref] = at
		if err := g.gather(ctx, m.Path, at); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if at := filepath.Join(path, name); g.isAlone(ctx, at, links[name]) && !slices.Contains(g.unsent, at) {
			g.unsent = append(g.unsent, at)
		}
	}
	return nil
}

// isAlone reports whether a commit is in this sprite alone, as far as can be told. The commit
// is of a repository that the job did not begin with. It is alone if no submodule was sent at
// it, and none of the repository's remotes has it.
func (g *gatherer) isAlone(ctx context.Context, path, commit string) bool {
	if slices.ContainsFunc(g.modules, func(m module) bool { return m.Commit == commit }) || !g.git.present(path) {
		return false
	}
	out, err := g.git.in(ctx, filepath.Join(g.git.work, path), call{}, "for-each-ref", "--count=1", "--contains="+commit, "refs/remotes")
	return err == nil && out == ""
}
