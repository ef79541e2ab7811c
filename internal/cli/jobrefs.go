package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// jobRefsJSON is what job refs prints with --json.
type jobRefsJSON struct {
	Jobs    []gitwork.JobRefs `json:"jobs"`
	Removed []string          `json:"removed"`
}

func newJobRefsCommand(inv *invocation) *cobra.Command {
	var prune, force bool
	cmd := &cobra.Command{
		Use:   "refs",
		Short: "List what jobs have left in this repository",
		Long: `Lists the refs of jobs in this repository: refs/cove/JOB/base, head and leftover. With --prune,
it removes those of jobs that have ended, if their commits are in a branch or a tag, too. With
--force, it also removes those whose commits are nowhere else.`,
		Example: `  cove job refs
  cove job refs --prune`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := os.Getwd()
			if err != nil {
				return err
			}
			repo, err := gitwork.Open(ctx, dir)
			if err != nil {
				return err
			}
			doc := jobRefsJSON{Jobs: []gitwork.JobRefs{}, Removed: []string{}}
			if doc.Jobs, err = repo.JobRefs(ctx, ""); err != nil {
				return err
			}
			if prune {
				if doc, err = pruneRefs(ctx, inv, repo, doc.Jobs, force); err != nil {
					return err
				}
			}
			return inv.show(doc, func(w io.Writer) { printJobRefs(w, doc) })
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&prune, "prune", false, "remove the refs of jobs that have ended, and whose commits are elsewhere, too")
	f.BoolVar(&force, "force", false, "with --prune: also if the commits are nowhere else")
	return cmd
}

// pruneRefs removes the refs of jobs that are over, and returns those that are left.
func pruneRefs(ctx context.Context, inv *invocation, repo *gitwork.Repo, all []gitwork.JobRefs, force bool) (jobRefsJSON, error) {
	doc := jobRefsJSON{Jobs: []gitwork.JobRefs{}, Removed: []string{}}
	c, _, err := inv.server.jobs(ctx)
	if err != nil {
		return doc, err
	}
	for _, refs := range all {
		over := true
		if jobPattern().MatchString(refs.Job) {
			job, err := c.Job(ctx, refs.Job)
			if err != nil && !errors.Is(err, sprites.ErrNotFound) {
				return doc, err
			}
			// A job that nobody has pulled yet needs its base.
			over = err != nil || job.State.Terminal() && (refs.Head != "" || job.PulledAt != nil || job.Bundle.Size == 0)
		}
		kept := true
		if over {
			if kept, err = repo.Forget(ctx, refs.Job, force); err != nil {
				return doc, err
			}
		}
		if kept {
			refs.Elsewhere = refs.Elsewhere && !over // there may be commits in a submodule that are not
			doc.Jobs = append(doc.Jobs, refs)
		} else {
			doc.Removed = append(doc.Removed, refs.Job)
		}
	}
	return doc, nil
}

func printJobRefs(w io.Writer, doc jobRefsJSON) {
	for _, id := range doc.Removed {
		fmt.Fprintf(w, "Removed the refs of job %s.\n", printable.Name(id))
	}
	if len(doc.Jobs) == 0 {
		if len(doc.Removed) == 0 {
			fmt.Fprintln(w, "No job has refs here.")
		}
		return
	}
	rows := [][]string{{"JOB", "BASE", "HEAD", "LEFTOVER", "ELSEWHERE, TOO"}}
	short := func(commit string) string {
		if commit == "" {
			return "-"
		}
		return commit[:min(len(commit), 12)]
	}
	for _, refs := range doc.Jobs {
		rows = append(rows, []string{refs.Job, short(refs.Base), short(refs.Head), short(refs.Leftover), yesNo(refs.Elsewhere)})
	}
	table(w, rows)
}

// forgetRefs removes the refs of a job that the server has forgotten, if the command
// is given in its repository.
func forgetRefs(ctx context.Context, inv *invocation, id string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	repo, err := gitwork.Open(ctx, dir)
	if err != nil {
		return nil // the job's repository is elsewhere
	}
	kept, err := repo.Forget(ctx, id, false)
	if kept {
		inv.say("Its commits stay in %s, as no branch has them: git update-ref -d %[1]s", gitwork.JobRef(id, "head"))
	}
	return err
}
