package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// The verbs of a job that look at its commits in this repository, and bring them
// into a branch.

// fetchJob brings a job's commits here, if they are not yet, and moves no branch.
func fetchJob(ctx context.Context, inv *invocation, c *cove.Client, id string) (push.Work, error) {
	dir, err := os.Getwd()
	if err != nil {
		return push.Work{}, err
	}
	courier, done := newCourier(inv, c)
	defer done()
	return courier.Fetch(ctx, dir, id)
}

// viewOptions are the flags of verbs that show changes.
type viewOptions struct {
	stat, patch bool
}

func (o viewOptions) view(patch bool, paths []string) gitwork.View {
	return gitwork.View{Stat: o.stat, Patch: o.patch || patch && !o.stat, Paths: paths}
}

func newJobDiffCommand(inv *invocation) *cobra.Command {
	var o viewOptions
	var leftover bool
	cmd := &cobra.Command{
		Use:   "diff JOB [PATH...]",
		Short: "Show what a job changed",
		Long: `Shows what a job's commits changed, from where it started to its last commit. With --leftover, it
shows what the agent left uncommitted. If the commits are not here, they are fetched first; no
branch is moved. Your git settings, filters and attributes do not count. On a terminal, control
characters are shown as \x1b and the like; elsewhere, the output is as git apply takes it.`,
		Example: `  cove job diff a3f7b2
  cove job diff a3f7b2 --stat
  cove job diff a3f7b2 src/main.go
  cove job diff a3f7b2 > a3f7b2.patch`,
		Args:              someArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			return showWork(ctx, inv, args[0], func(w push.Work) error {
				if inv.global.json {
					base, tip := w.Job.Base, w.Tip(leftover)
					if leftover {
						base = w.Tip(false)
					}
					sum, err := w.Repo.Summary(ctx, base, tip)
					if err != nil {
						return err
					}
					inv.printJSON(struct {
						Job    string         `json:"job"`
						Base   string         `json:"base"`
						Head   string         `json:"head"`
						Files  []gitwork.File `json:"files"`
						Risky  []gitwork.Risk `json:"risky"`
						Listed []gitwork.Risk `json:"listed"`
					}{w.Job.ID, base, tip, sum.Files, sum.Risky, sum.Listed})
					return nil
				}
				return painted(inv, func(out io.Writer) error { return w.WriteDiff(ctx, out, leftover, o.view(true, args[1:])) })
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.stat, "stat", false, "show how much changed in each file")
	f.BoolVarP(&o.patch, "patch", "p", false, "show what changed, also with --stat")
	f.BoolVar(&leftover, "leftover", false, "show what the agent left uncommitted")
	return cmd
}

func newJobLogCommand(inv *invocation) *cobra.Command {
	var o viewOptions
	cmd := &cobra.Command{
		Use:   "log JOB [PATH...]",
		Short: "Show a job's commits",
		Long: `Shows the commits of a job, the newest first. If they are not here, they are fetched first; no
branch is moved. cove job logs shows what the job's agent printed.`,
		Example: `  cove job log a3f7b2
  cove job log a3f7b2 -p
  cove job log a3f7b2 --stat src`,
		Args:              someArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			return showWork(ctx, inv, args[0], func(w push.Work) error {
				if inv.global.json {
					sum, err := w.Repo.Summary(ctx, w.Job.Base, w.Tip(false))
					if err != nil {
						return err
					}
					inv.printJSON(struct {
						Job     string           `json:"job"`
						Commits int              `json:"commits"`
						Log     []gitwork.Commit `json:"log"`
					}{w.Job.ID, sum.Commits, sum.Log})
					return nil
				}
				return painted(inv, func(out io.Writer) error { return w.WriteLog(ctx, out, o.view(false, args[1:])) })
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&o.stat, "stat", false, "show how much changed in each file")
	f.BoolVarP(&o.patch, "patch", "p", false, "show what changed")
	return cmd
}

// showJobCommit shows one commit of a job.
func showJobCommit(ctx context.Context, inv *invocation, id, commit string) error {
	return showWork(ctx, inv, id, func(w push.Work) error {
		if inv.global.json {
			full, err := w.Commit(ctx, commit)
			if err != nil {
				return err
			}
			sum, err := w.Repo.Summary(ctx, full+"^", full)
			if err != nil {
				return err
			}
			inv.printJSON(struct {
				Job string `json:"job"`
				gitwork.Commit
				Files  []gitwork.File `json:"files"`
				Risky  []gitwork.Risk `json:"risky"`
				Listed []gitwork.Risk `json:"listed"`
			}{w.Job.ID, sum.Log[0], sum.Files, sum.Risky, sum.Listed})
			return nil
		}
		return painted(inv, func(out io.Writer) error {
			return w.WriteCommit(ctx, out, commit, gitwork.View{Stat: true, Patch: true})
		})
	})
}

// showWork calls show with a job's work, once it is here.
func showWork(ctx context.Context, inv *invocation, id string, show func(push.Work) error) error {
	if err := checkJob(id); err != nil {
		return err
	}
	c, _, err := inv.server.jobs(ctx)
	if err != nil {
		return err
	}
	w, err := fetchJob(ctx, inv, c, id)
	if err != nil {
		return jobError(err)
	}
	return show(w)
}

// painted passes on git's output about a job's work. For a terminal, it makes the output
// safe, and colours it; elsewhere, the output is as it is.
func painted(inv *invocation, write func(io.Writer) error) error {
	if !isTerminal(inv.Out) {
		return write(inv.Out)
	}
	p := &painter{w: inv.Out}
	err := write(p)
	if err == nil {
		err = p.line()
	}
	return err
}

// painter makes the lines of a patch safe and coloured.
type painter struct {
	w   io.Writer
	buf bytes.Buffer
}

// maxPainted bounds a line; a longer one is cut into several.
const maxPainted = 64 << 10

func (p *painter) Write(text []byte) (int, error) {
	for i := 0; i < len(text); {
		end := bytes.IndexByte(text[i:], '\n')
		if end < 0 {
			p.buf.Write(text[i:])
			break
		}
		p.buf.Write(text[i : i+end+1])
		i += end + 1
		if err := p.line(); err != nil {
			return 0, err
		}
	}
	if p.buf.Len() > maxPainted {
		if err := p.line(); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// lineColours are the colours of lines by their beginnings, the first that fits.
var lineColours = []struct{ prefix, colour string }{
	{"+++ ", "\x1b[1m"}, {"--- ", "\x1b[1m"}, {"diff --git ", "\x1b[1m"}, {"commit ", "\x1b[33m"},
	{"@@ ", "\x1b[36m"}, {"+", "\x1b[32m"}, {"-", "\x1b[31m"},
}

func (p *painter) line() error {
	text := strings.TrimSuffix(p.buf.String(), "\n")
	end := p.buf.String()[len(text):]
	p.buf.Reset()
	text = printable.Text(text)
	for _, c := range lineColours {
		if strings.HasPrefix(text, c.prefix) {
			text = c.colour + text + "\x1b[m"
			break
		}
	}
	_, err := io.WriteString(p.w, text+end)
	return err
}

func newJobMergeCommand(inv *invocation) *cobra.Command {
	return newIntegrateCommand(inv, gitwork.Merge, &cobra.Command{
		Use:   "merge JOB",
		Short: "Merge a job's commits into their branch",
		Long: `Merges a job's commits into the branch that they were pushed from, if that has gone on and cove
pull refuses to move it. If the commits are not here, they are fetched first.
` + integrateHelp,
		Example: `  cove job merge a3f7b2
  cove job merge a3f7b2 --branch topic`,
		Args: exactArgs("the job's id"),
	})
}

func newJobRebaseCommand(inv *invocation) *cobra.Command {
	return newIntegrateCommand(inv, gitwork.Rebase, &cobra.Command{
		Use:   "rebase JOB",
		Short: "Put a job's commits on top of their branch",
		Long: `Puts copies of a job's commits on top of the branch that they were pushed from. It is for a
branch with new commits of its own, which cove pull refuses to move. It leaves out commits that
change nothing there, merges, and the snapshot that --dirty include began the job with.
` + integrateHelp,
		Example: `  cove job rebase a3f7b2
  cove job rebase a3f7b2 --branch topic`,
		Args: exactArgs("the job's id"),
	})
}

func newJobCherryPickCommand(inv *invocation) *cobra.Command {
	return newIntegrateCommand(inv, gitwork.CherryPick, &cobra.Command{
		Use:   "cherry-pick JOB COMMIT...",
		Short: "Put some of a job's commits on top of their branch",
		Long: `Puts copies of the named commits of a job on top of the branch that they were pushed from, in the
order given. cove job log lists the commits.
` + integrateHelp,
		Example: `  cove job cherry-pick a3f7b2 9e107d9d
  cove job cherry-pick a3f7b2 9e107d9d e4d909c2 --branch topic`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return hinted(usagef(cmd, "the commits are missing"), "see which there are: cove job log "+args[0]+"; to take all of them: cove job rebase "+args[0])
			}
			return someArgs("the job's id")(cmd, args)
		},
	})
}

const integrateHelp = `
cove does this beside your work tree, without your hooks, filters and merge drivers, and without
.gitattributes. If there are conflicts, it changes nothing (exit code 3), and the message says how
to do the same by hand. Otherwise it moves the branch. If the branch is checked out, its files
follow, unless an uncommitted change is in the way (exit code 4).
` + riskyHelp

func newIntegrateCommand(inv *invocation, how gitwork.How, cmd *cobra.Command) *cobra.Command {
	var o push.IntegrateOptions
	cmd.ValidArgsFunction = completeJob(inv)
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if err := checkJob(args[0]); err != nil {
			return err
		}
		s, _, err := loadSettings(ctx)
		if err != nil {
			return err
		}
		if err := setDefaults(inv, cmd, s, config.PullRisky); err != nil {
			return err
		}
		o.Job, o.How, o.Commits = args[0], how, args[1:]
		return integrate(ctx, inv, o)
	})
	cmd.Flags().StringVar(&o.Branch, "branch", "", "into this branch (otherwise that of the push)")
	registerAccept(cmd, &o.AcceptRisky)
	must(cmd.RegisterFlagCompletionFunc("branch", cobra.NoFileCompletions))
	return cmd
}

// integratedJSON is what the verbs print with --json.
type integratedJSON struct {
	push.Integrated
	Error *errorJSON `json:"error,omitempty"`
}

func integrate(ctx context.Context, inv *invocation, o push.IntegrateOptions) (err error) {
	if o.Dir, err = os.Getwd(); err != nil {
		return err
	}
	c, _, err := inv.server.jobs(ctx)
	if err != nil {
		return err
	}
	courier, done := newCourier(inv, c)
	defer done()
	in, err := courier.Integrate(ctx, o)
	done()
	if takeHeld(ctx, inv, err, in.Branch, in.Risky) {
		o.AcceptRisky = true
		in, err = courier.Integrate(ctx, o)
		done()
	}
	inv.hints.fullAll(in.Messages)
	switch {
	case err == nil:
		return inv.show(in, func(w io.Writer) { printIntegrated(w, o.How, in) })
	case in.Reason == "":
		return jobError(err)
	case inv.global.json:
		f := inv.classify(err)
		e := f.document()
		inv.printJSON(integratedJSON{in, &e})
		return reportedError{f.exit}
	}
	printRisky(inv.text(), in.Risky)
	printListed(inv.text(), in.Listed)
	return err
}

var integrated = map[gitwork.How]string{gitwork.Merge: "Merged", gitwork.Rebase: "Rebased", gitwork.CherryPick: "Picked"}

func printIntegrated(w io.Writer, how gitwork.How, in push.Integrated) {
	if in.Head == in.Before {
		fmt.Fprintf(w, "The branch %s has all of it already.\n", printable.Name(in.Branch))
		return
	}
	fmt.Fprintf(w, "%s job %s into %s, which is at %.12s now.\n", integrated[how], in.Job, printable.Name(in.Branch), in.Head)
	for _, c := range in.Log {
		fmt.Fprintf(w, "  %.10s %s\n", printable.Name(c.SHA), printable.Name(c.Subject))
	}
	printFiles(w, in.Files)
	printRisky(w, in.Risky)
	printListed(w, in.Listed)
	for _, m := range in.Messages {
		fmt.Fprintln(w, printable.Name(m))
	}
}
