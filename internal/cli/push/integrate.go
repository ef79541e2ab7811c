package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// Work is a job's work in this repository: its commits are here.
type Work struct {
	Job  cove.Job
	Repo *gitwork.Repo
}

// Tip is the last commit of the work; with leftover, the commit of the uncommitted changes.
// If there is none, it is the commit that the job started from.
func (w Work) Tip(leftover bool) string {
	if leftover {
		return cmp.Or(w.Job.Leftover, w.Job.Head, w.Job.Base)
	}
	return cmp.Or(w.Job.Head, w.Job.Base)
}

// Fetch makes sure that a job's commits are in the repository of dir, under
// refs/cove/JOB/, and moves no branch. The job does not count as pulled by it.
func (c *Courier) Fetch(ctx context.Context, dir, id string) (Work, error) {
	var w Work
	if !jobID().MatchString(id) {
		return w, badJob(id)
	}
	repo, err := gitwork.Open(ctx, dir)
	if err != nil {
		return w, err
	}
	job, err := c.finished(ctx, repo, PullOptions{Job: id})
	if err != nil {
		return w, keptHere(ctx, repo, id, err)
	}
	if err := c.checkRepo(ctx, repo, job); err != nil {
		return w, err
	}
	w = Work{Job: job, Repo: repo}
	if here, err := arrived(ctx, repo, job); err != nil || here {
		return w, err
	}
	_, err = c.Pull(ctx, PullOptions{Dir: dir, Job: id, Into: IntoNone, looks: true})
	return w, err
}

// IntegrateOptions say how a job's commits come into a branch. Dir, Job and How are
// required.
type IntegrateOptions struct {
	Dir     string
	Job     string
	How     gitwork.How
	Branch  string   // empty: that of the push
	Commits []string // of a cherry-pick: the first letters of their names

	AcceptRisky bool // as in PullOptions
}

// again is the command that does it again.
func (o IntegrateOptions) again() string {
	again := []string{"cove", "job", string(o.How), o.Job}
	again = append(again, o.Commits...)
	if o.Branch != "" {
		again = append(again, "--branch", printable.Word(o.Branch))
	}
	if o.AcceptRisky {
		again = append(again, "--accept-risky")
	}
	return strings.Join(again, " ")
}

// Integrated says what happened to a branch. If the changes are held for review, it says
// what would happen to it.
type Integrated struct {
	Job     string           `json:"job"`
	Branch  string           `json:"branch"`
	Before  string           `json:"before"`
	Head    string           `json:"head"` // Before: there was nothing to do
	Commits int              `json:"commits"`
	Files   []gitwork.File   `json:"files"`
	Risky   []gitwork.Risk   `json:"risky"`
	Listed  []gitwork.Risk   `json:"listed"` // as in Pulled
	Log     []gitwork.Commit `json:"log"`
	Reason  string           `json:"reason,omitempty"` // why the branch was not moved; risky: held for review

	Messages []string `json:"messages,omitempty"` // what the person should know, in sentences
}

// Integrate brings a job's commits into a branch that has gone on. It fetches them first if
// they are not here. Conflicts are a *ConflictError of gitwork (exit code 3) and change
// nothing. If the branch can't be moved, the error is a *RefusedError (4). Once a branch has
// all of the commits, the job counts as pulled; picked commits may be only a part.
func (c *Courier) Integrate(ctx context.Context, opts IntegrateOptions) (Integrated, error) {
	w, err := c.Fetch(ctx, opts.Dir, opts.Job)
	if err != nil {
		return Integrated{}, err
	}
	in := Integrated{Job: w.Job.ID, Branch: cmp.Or(opts.Branch, w.Job.Branch), Files: []gitwork.File{}, Risky: []gitwork.Risk{}, Listed: []gitwork.Risk{}, Log: []gitwork.Commit{}}
	switch {
	case !newHead(w.Job):
		return in, fail.New("no_commits", "job "+w.Job.ID+" made no commits", "see what it left uncommitted: cove job diff "+w.Job.ID+" --leftover")
	case in.Branch == "":
		return in, fail.New("no_branch", "job "+w.Job.ID+" was pushed from a detached HEAD", "name a branch: --branch NAME")
	case !w.Repo.ValidBranch(ctx, in.Branch):
		return in, fail.New("bad_option", printable.Name(in.Branch)+" can't be a branch", "see which there are: git branch")
	}
	commits, err := w.Repo.JobCommits(ctx, w.Job.Base, w.Job.Head, opts.Commits)
	if err != nil {
		return in, err
	}
	lock, err := w.Repo.Lock(ctx)
	if err != nil {
		return in, err
	}
	defer lock.Unlock()
	if _, err := w.Repo.Recover(ctx, lock); err != nil {
		return in, err
	}
	if in.Before, err = w.Repo.Resolve(ctx, "refs/heads/"+in.Branch); err != nil {
		return in, err
	}
	f := gitwork.Forward{Job: w.Job.ID, Branch: in.Branch, Base: w.Job.Base, Head: w.Job.Head}
	f.Again = opts.again()
	f.Hold = func(ctx context.Context, old, head string) ([]gitwork.Risk, error) {
		err := in.describe(ctx, w, old, head)
		if opts.AcceptRisky {
			return nil, err
		}
		return in.Risky, err
	}
	in.Head, err = w.Repo.Integrate(ctx, lock, f, opts.How, commits)
	if refused, ok := errors.AsType[*gitwork.RefusedError](err); ok {
		in.Head, in.Reason, in.Messages = in.Before, refused.Code, nil
	}
	if err == nil && opts.How != gitwork.CherryPick {
		err = c.tellPulled(ctx, w.Job)
	}
	return in, err
}

// describe says what the branch gets. A submodule has all of the job's work in it, even if
// only some of the job's commits are taken.
func (in *Integrated) describe(ctx context.Context, w Work, old, head string) error {
	sum, err := w.Repo.Summary(ctx, old, head)
	if err != nil {
		return err
	}
	in.Commits, in.Files, in.Risky, in.Listed, in.Log = sum.Commits, sum.Files, sum.Risky, sum.Listed, sum.Log
	modules, err := modulesOf(ctx, w.Repo, w.Job)
	if err != nil {
		return err
	}
	changed := map[string]bool{}
	for _, f := range in.Files {
		changed[f.Path] = true
	}
	modules = slices.DeleteFunc(modules, func(m module) bool {
		for at := m.Path; at != "."; at = path.Dir(at) { // it may lie in another one
			if changed[at] {
				return m.Head == ""
			}
		}
		return true
	})
	var large []string
	for _, m := range append([]module{{repo: w.Repo, Module: Module{Head: head, Files: in.Files}}}, modules...) {
		in.Risky, in.Listed = append(in.Risky, m.risky...), append(in.Listed, m.listed...)
		files, err := m.repo.LargeFilesAmong(ctx, m.Head, m.Files)
		if err != nil {
			return err
		}
		if len(files) > 0 {
			large = append(large, m.Path)
		}
	}
	in.Risky = unknown(in.Risky, modules)
	in.Messages = follow(modules, large)
	return nil
}

// Commit finds a commit of the work by the first letters of its name. The names head and
// leftover mean the commits of these refs.
func (w Work) Commit(ctx context.Context, name string) (string, error) {
	switch {
	case name == "head" && newHead(w.Job):
		return w.Job.Head, nil
	case name == "leftover" && w.Job.Leftover != "":
		return w.Job.Leftover, nil
	}
	found, err := w.Repo.JobCommits(ctx, w.Job.Base, w.Tip(true), []string{name})
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// WriteDiff writes the job's changes, also in submodules. WriteDiff, WriteLog and
// WriteCommit write the job's own text: check each character before a terminal gets it.
func (w Work) WriteDiff(ctx context.Context, out io.Writer, leftover bool, v gitwork.View) error {
	base := w.Job.Base
	if leftover {
		if w.Job.Leftover == "" {
			return fail.New("no_leftover", "job "+w.Job.ID+" left nothing uncommitted", "see its commits: cove job diff "+w.Job.ID)
		}
		base = w.Tip(false)
	}
	if err := w.Repo.WriteDiff(ctx, out, base, w.Tip(leftover), v); err != nil {
		return err
	}
	modules, err := modulesOf(ctx, w.Repo, w.Job)
	if err != nil {
		return err
	}
	for _, m := range modules {
		base, tip := m.Base, m.Head
		if leftover {
			base, tip = cmp.Or(m.Head, m.Base), m.Leftover
		}
		inside, any := within(m.Path, v.Paths)
		if tip == "" || !any {
			continue
		}
		if v.Stat {
			if _, err := fmt.Fprintf(out, "In the submodule %s:\n", printable.Name(m.Path)); err != nil {
				return err
			}
		}
		if err := m.repo.WriteDiff(ctx, out, base, tip, gitwork.View{Patch: v.Patch, Stat: v.Stat, Paths: inside, Prefix: m.Path + "/"}); err != nil {
			return err
		}
	}
	return nil
}

// within returns those of paths that are inside a submodule, relative to it. An empty
// result means all of the submodule; any is false if none of paths concerns it.
func within(module string, paths []string) (inside []string, any bool) {
	for _, p := range paths {
		p = path.Clean(p)
		if p == "." || p == module || strings.HasPrefix(module, p+"/") {
			return nil, true
		}
		if rest, ok := strings.CutPrefix(p, module+"/"); ok {
			inside = append(inside, rest)
		}
	}
	return inside, len(inside) > 0 || len(paths) == 0
}

// WriteLog writes the commits, the newest first.
func (w Work) WriteLog(ctx context.Context, out io.Writer, v gitwork.View) error {
	return w.Repo.WriteLog(ctx, out, w.Job.Base, w.Tip(false), v)
}

// WriteCommit writes one commit.
func (w Work) WriteCommit(ctx context.Context, out io.Writer, name string, v gitwork.View) error {
	commit, err := w.Commit(ctx, name)
	if err != nil {
		return err
	}
	return w.Repo.WriteCommit(ctx, out, commit, v)
}

func badJob(id string) error {
	return fail.New("bad_job", fmt.Sprintf("bad job id %s", printable.Name(id)), "a job is six hexadecimal digits; list them with: cove job list")
}
