package gitwork

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// ModuleChange is what a job did in a submodule.
type ModuleChange struct {
	Module
	Head     string // the last commit, in the submodule's repository under refs/cove/JOB/head; empty: none
	Leftover string // the commit of the uncommitted changes, in the same way
}

// ModuleChanges lists a job's work in the submodules of its base, as far as it is here.
func (r *Repo) ModuleChanges(ctx context.Context, job, base string) ([]ModuleChange, error) {
	modules, _, err := r.modulesHere(ctx, base)
	if err != nil {
		return nil, err
	}
	var list []ModuleChange
	for _, m := range modules {
		c := ModuleChange{Module: m}
		for name, commit := range map[string]*string{"head": &c.Head, "leftover": &c.Leftover} {
			if *commit, err = m.Repo.Resolve(ctx, JobRef(job, name)); err != nil {
				return nil, err
			}
		}
		if c.Head != "" || c.Leftover != "" {
			list = append(list, c)
		}
	}
	return list, nil
}

// importWithModules distributes the commits in the quarantine. Those of each submodule go
// into its own repository, and then those of this repository into this one.
func (r *Repo) importWithModules(ctx context.Context, q *scratch, b *incoming, want Expect) error {
	changes, err := q.assign(ctx, b, want)
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := c.take(ctx, q, want.Job); err != nil {
			return fmt.Errorf("import into the submodule %s: %w", printable.Name(c.Path), err)
		}
	}
	own, err := r.receive(ctx, q, slices.Collect(maps.Values(b.refs)), want.Base)
	if err != nil {
		return err
	}
	defer own.remove()
	return r.moveIn(ctx, own, b.refs, want.Job, want.Base)
}

// assign finds the submodule of each commit, and looks at the commit: the trees of
// the job's commits lead there. One that none leads to is not taken.
func (s *scratch) assign(ctx context.Context, b *incoming, want Expect) ([]*ModuleChange, error) {
	changes := map[string]*ModuleChange{}
	for _, m := range b.known {
		changes[m.Path] = &ModuleChange{Module: m}
	}
	placed := map[string]bool{}
	var walk func(prefix, commit string, leftover bool) error
	walk = func(prefix, commit string, leftover bool) error {
		links, err := s.allGitlinks(ctx, commit)
		if err != nil {
			return err
		}
		for _, link := range links {
			c := changes[path.Join(prefix, link.path)]
			if c == nil || !slices.Contains(b.modules, link.id) {
				continue
			}
			switch placed[link.id] = true; {
			case !leftover:
				c.Head = link.id
			case c.Head != link.id:
				c.Leftover = link.id
			}
			if err := s.checkChange(ctx, c.Commit, link.id); err != nil {
				return err
			}
			if err := walk(c.Path, link.id, leftover); err != nil {
				return err
			}
		}
		return nil
	}
	for i, tip := range []string{want.Head, want.Leftover} {
		if tip == "" || tip == want.Base {
			continue
		}
		if err := walk("", tip, i == 1); err != nil {
			return nil, err
		}
	}
	for _, id := range b.modules {
		if !placed[id] {
			return nil, rejected("it has the commit %s for a submodule that is not here", id)
		}
	}
	list := slices.Collect(maps.Values(changes))
	list = slices.DeleteFunc(list, func(c *ModuleChange) bool { return c.Head == "" && c.Leftover == "" })
	slices.SortFunc(list, func(a, b *ModuleChange) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// take brings the submodule's commits into its repository.
func (c *ModuleChange) take(ctx context.Context, q *scratch, job string) error {
	refs := map[string]string{}
	for name, commit := range map[string]string{"head": c.Head, "leftover": c.Leftover} {
		if commit != "" {
			refs[JobRef(job, name)] = commit
		}
	}
	lock, err := c.Repo.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	own, err := c.Repo.receive(ctx, q, slices.Collect(maps.Values(refs)), c.Commit)
	if err != nil {
		return err
	}
	defer own.remove()
	return c.Repo.moveIn(ctx, own, refs, job, c.Commit)
}

// receive makes a quarantine with the objects of from that are reachable from tips, but
// not from here. The caller removes it.
func (r *Repo) receive(ctx context.Context, from *scratch, tips []string, here ...string) (*scratch, error) {
	q, err := r.quarantine(ctx)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := from.git.run(ctx, call{
			args:  []string{"pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"},
			stdin: revisions(tips, here), stdout: pw, timeout: patiently,
		})
		_ = pw.CloseWithError(err) // nil is the end
		packed <- err
	}()
	_, err = q.git.run(ctx, call{args: []string{"index-pack", "--stdin"}, stdin: pr, timeout: patiently})
	_ = pr.CloseWithError(errors.Join(errors.New("the pack is no longer read"), err))
	if err := errors.Join(err, <-packed); err != nil {
		q.remove()
		return nil, err
	}
	return q, nil
}
