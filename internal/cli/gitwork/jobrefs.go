package gitwork

import (
	"context"
	"fmt"
	"strings"
)

// JobRefs are the refs of one job in a repository.
type JobRefs struct {
	Job      string `json:"job"`
	Base     string `json:"base,omitempty"`
	Head     string `json:"head,omitempty"`
	Leftover string `json:"leftover,omitempty"`

	// Elsewhere says that all of its commits are in branches or tags, too: nothing is
	// lost with the refs.
	Elsewhere bool `json:"elsewhere"`
}

// JobRefs lists the refs of all jobs, or of one, by job.
func (r *Repo) JobRefs(ctx context.Context, job string) ([]JobRefs, error) {
	out, err := r.git.text(ctx, "for-each-ref", "--format=%(objectname) %(refname)", "refs/cove/"+job)
	if err != nil {
		return nil, fmt.Errorf("list the refs of jobs: %w", err)
	}
	var list []JobRefs
	for line := range strings.Lines(out) {
		commit, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		id, name, ok := strings.Cut(strings.TrimPrefix(ref, "refs/cove/"), "/")
		if !ok {
			continue
		}
		if len(list) == 0 || list[len(list)-1].Job != id {
			list = append(list, JobRefs{Job: id})
		}
		switch last := &list[len(list)-1]; name {
		case "base":
			last.Base = commit
		case "head":
			last.Head = commit
		case "leftover":
			last.Leftover = commit
		}
	}
	for i := range list {
		if list[i].Elsewhere, err = r.Elsewhere(ctx, list[i].Head, list[i].Leftover); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Elsewhere reports whether commits are in branches or tags. An empty one is.
func (r *Repo) Elsewhere(ctx context.Context, commits ...string) (bool, error) {
	for _, commit := range commits {
		if commit == "" {
			continue
		}
		out, err := r.git.text(ctx, "for-each-ref", "--count=1", "--contains="+commit, "refs/heads", "refs/remotes", "refs/tags")
		if err != nil || out == "" {
			return false, err
		}
	}
	return true, nil
}

// Forget deletes a job's refs, in this repository and in its submodules. Without force,
// it keeps the refs whose commits are nowhere else, and reports whether it kept any.
func (r *Repo) Forget(ctx context.Context, job string, force bool) (kept bool, err error) {
	lock, err := r.Lock(ctx)
	if err != nil {
		return false, err
	}
	defer lock.Unlock()
	list, err := r.JobRefs(ctx, job)
	if err != nil || len(list) == 0 {
		return false, err
	}
	refs := list[0]
	if !refs.Elsewhere && !force {
		return true, nil
	}
	if refs.Base != "" {
		modules, _, err := r.modulesHere(ctx, refs.Base)
		if err != nil {
			return false, err
		}
		for _, m := range modules {
			left, err := m.Repo.Forget(ctx, job, force)
			if err != nil || left {
				return left, err
			}
		}
	}
	for name, commit := range map[string]string{"base": refs.Base, "head": refs.Head, "leftover": refs.Leftover} {
		if commit != "" {
			if err := r.DeleteRef(ctx, JobRef(job, name)); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}
