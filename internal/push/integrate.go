package push

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/cove-dev/cove/internal/gitwork"
	"github.com/cove-dev/cove/sprites"
)

// Work is a job's work in this repository: its commits are here.
type Work struct {
	Job  sprites.Job
	Repo *gitwork.Repo
}

// Tip is the last commit of the work, or with leftover what was left uncommitted.
// Where there is none it is the commit that the job started from.
func (w Work) Tip(leftover bool) string {
	if leftover {
		return cmp.Or(w.Job.Leftover, w.Job.Head, w.Job.Base)
	}
	return cmp.Or(w.Job.Head, w.Job.Base)
}

// Fetch makes sure that a job's commits are in the repository of dir, under
// refs/cove/JOB/, and moves no branch.
func (c *Courier) Fetch(ctx context.Context, dir, id string) (Work, error) {
	var w Work
	if !jobID.MatchString(id) {
		return w, badJob(id)
	}
	repo, err := gitwork.Open(ctx, dir)
	if err != nil {
		return w, err
	}
	job, err := c.finished(ctx, PullOptions{Job: id})
	if err != nil {
		return w, err
	}
	if err := c.checkRepo(ctx, repo, job); err != nil {
		return w, err
	}
	w = Work{Job: job, Repo: repo}
	if here, err := arrived(ctx, repo, job); err != nil || here {
		return w, err
	}
	_, err = c.Pull(ctx, PullOptions{Dir: dir, Job: id, Into: IntoNone})
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
}

// Integrated is what became of a branch.
type Integrated struct {
	Job     string           `json:"job"`
	Branch  string           `json:"branch"`
	Before  string           `json:"before"`
	Head    string           `json:"head"` // Before: there was nothing to do
	Commits int              `json:"commits"`
	Files   []gitwork.File   `json:"files"`
	Risky   []gitwork.Risk   `json:"risky"`
	Log     []gitwork.Commit `json:"log"`
}

// Integrate brings a job's commits into a branch that has gone on, fetching them
// first where they are not here. Conflicts are a *ConflictError of gitwork (exit code
// 3) and change nothing; a branch that can't be moved is a *RefusedError (4).
func (c *Courier) Integrate(ctx context.Context, opts IntegrateOptions) (Integrated, error) {
	w, err := c.Fetch(ctx, opts.Dir, opts.Job)
	if err != nil {
		return Integrated{}, err
	}
	in := Integrated{Job: w.Job.ID, Branch: cmp.Or(opts.Branch, w.Job.Branch), Files: []gitwork.File{}, Risky: []gitwork.Risk{}, Log: []gitwork.Commit{}}
	switch {
	case !newHead(w.Job):
		return in, &Error{"no_commits", "job " + w.Job.ID + " made no commits", "see what it left uncommitted: cove job diff " + w.Job.ID + " --leftover"}
	case in.Branch == "":
		return in, &Error{"no_branch", "job " + w.Job.ID + " was pushed from a detached HEAD", "name a branch: --branch NAME"}
	case !w.Repo.ValidBranch(ctx, in.Branch):
		return in, &Error{"bad_option", gitwork.Printable(in.Branch) + " can't be a branch", "see which there are: git branch"}
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
	if in.Head, err = w.Repo.Integrate(ctx, lock, f, opts.How, commits); err != nil || in.Head == in.Before {
		return in, err
	}
	sum, err := w.Repo.Summary(ctx, in.Before, in.Head)
	in.Commits, in.Files, in.Risky, in.Log = sum.Commits, sum.Files, sum.Risky, sum.Log
	return in, err
}

// Commit finds a commit of the work by the first letters of its name; head and
// leftover stand for themselves.
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

// WriteDiff writes what the job changed. What this and the two below it write is the
// job's own text: fit for a terminal only after a look at each character.
func (w Work) WriteDiff(ctx context.Context, out io.Writer, leftover bool, v gitwork.View) error {
	base := w.Job.Base
	if leftover {
		if w.Job.Leftover == "" {
			return &Error{"no_leftover", "job " + w.Job.ID + " left nothing uncommitted", "see its commits: cove job diff " + w.Job.ID}
		}
		base = w.Tip(false)
	}
	return w.Repo.WriteDiff(ctx, out, base, w.Tip(leftover), v)
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
	return &Error{"bad_job", fmt.Sprintf("bad job id %s", gitwork.Printable(id)), "a job is six hexadecimal digits; list them with: cove job list"}
}
