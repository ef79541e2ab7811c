package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// waitForEver is --wait without a duration. The job has a timeout of its own.
const waitForEver = 30 * 24 * time.Hour

var intoChoices = []string{"ff", "branch", "none"}

func newPullCommand(inv *invocation) *cobra.Command {
	var wait time.Duration
	var into, onConflict string
	var accept, noWait bool
	cmd := &cobra.Command{
		Use:   "pull JOB",
		Short: "Bring the commits of a job back",
		Long: `Brings the commits of a job into this repository. It checks them first, and keeps them under
refs/cove/JOB/. If the job has succeeded, it then moves the branch that they were pushed from
forward. If it can't, or the work tree is in the way, the branch stays, and the message says how
to bring the commits in (exit code 4). Pulling again does no harm.

If the job still works, pull on a terminal shows its progress and waits for its end. Ctrl-C
leaves the job running (exit code 130). Elsewhere, and with --json, that is an error, unless
you give --wait. --no-wait, or --wait=0, never waits. After a wait, and always with --wait, the
exit code also says how the job ended, as that of cove job wait does.

The commits of a job that failed or was lost are brought as well. If some of the work could not
be collected (exit code 75), the message has the command that copies it out of the sprite.
` + riskyHelp,
		Example: `  cove pull a3f7b2
  cove pull a3f7b2 --wait            until the job has ended, without a terminal, too
  cove pull a3f7b2 --wait=30m
  cove pull a3f7b2 --into branch     leave my branch alone, make cove-a3f7b2
  cove pull a3f7b2 --accept-risky    I have looked at what it listed
  cove pull a3f7b2 --on-conflict theirs`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeJob(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		args, wait := waitArgument(cmd, args, wait)
		if err := exactArgs("the job's id")(cmd, args); err != nil {
			return err
		}
		if err := checkJob(args[0]); err != nil {
			return err
		}
		if err := setPullDefaults(ctx, inv, cmd); err != nil {
			return err
		}
		if !slices.Contains(intoChoices, into) {
			return usagef(cmd, "--into %q is not one of ff, branch and none", into)
		}
		if wait < 0 {
			return usagef(cmd, "--wait %v is negative", wait)
		}
		if noWait && wait > 0 {
			return usagef(cmd, "--wait or --no-wait, not both")
		}
		policy, err := syncPolicy(onConflict)
		if err != nil {
			return err
		}
		if _, err := gitwork.Open(ctx, "."); errors.Is(err, gitwork.ErrNotRepository) {
			return inNoClone(ctx, inv, args[0], err) // before a server is started for it
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return err
		}
		if !noWait && !cmd.Flags().Changed("wait") {
			wait = waitUnasked(ctx, inv, c, args[0])
		}
		pulled, err := pullWork(ctx, inv, c, push.PullOptions{Job: args[0], Wait: wait, Into: push.Into(into), AcceptRisky: accept}, policy)
		if ctx.Err() != nil && pulled.State == "" && wait > 0 {
			return leftJob(args[0])
		}
		if wait > 0 {
			err = lostServer(err, "cove pull "+args[0]+" --wait")
		}
		if err = showPulled(inv, pulled, err, ""); err != nil || wait == 0 {
			return err
		}
		return pulledOutcome(inv, pulled)
	})
	f := cmd.Flags()
	f.DurationVar(&wait, "wait", 0, "wait for the job's end, for so long at most")
	f.Lookup("wait").NoOptDefVal = waitForEver.String()
	f.BoolVar(&noWait, "no-wait", false, "do not wait for a job that is still at work: that is an error")
	f.StringVar(&into, "into", config.Default(config.PullInto), "move the branch forward (ff), make a new one (branch), or only keep the commits (none)")
	registerAccept(cmd, &accept)
	f.StringVar(&onConflict, "on-conflict", string(filesync.Fail), "for folders, not for commits: fail, ours, theirs, or both")
	must(cmd.RegisterFlagCompletionFunc("into", cobra.FixedCompletions(intoChoices, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("on-conflict", cobra.FixedCompletions(conflictChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// inNoClone is the error for a pull outside of a repository. If a server runs, and the job's
// sprite cloned a URL, the error says where to pull; otherwise, it is err.
func inNoClone(ctx context.Context, inv *invocation, id string, err error) error {
	c, clientErr := inv.server.runningClient(ctx)
	if clientErr != nil {
		return err
	}
	if job, jobErr := c.Job(ctx, id); jobErr == nil && job.ID == id && job.URL != "" {
		return fail.Newf(gitwork.ErrNotRepository.Code, push.CloneFirst(job), "no repository is here, and job %s is of %s", id, printable.Name(job.URL))
	}
	return err
}

const riskyHelp = `
Files that could run code on this machine are held for your review (exit code 4): see cove help
held-files. --accept-risky takes them.`

func registerAccept(cmd *cobra.Command, accept *bool) {
	cmd.Flags().BoolVar(accept, "accept-risky", false, "also take files that could run code on this machine, and are otherwise held for review")
}

// waitArgument makes --wait 30m work with a space. A flag with an optional value does
// not take the next word, so the duration is among the arguments.
func waitArgument(cmd *cobra.Command, args []string, wait time.Duration) ([]string, time.Duration) {
	if !cmd.Flags().Changed("wait") || wait != waitForEver || len(args) < 2 {
		return args, wait
	}
	for i, arg := range args {
		if d, err := time.ParseDuration(arg); err == nil && !jobPattern().MatchString(arg) {
			return slices.Delete(slices.Clone(args), i, i+1), d
		}
	}
	return args, wait
}

// waitUnasked is how long a pull waits for a job if no flag says it. On a terminal, a pull
// waits until the job has ended; elsewhere, it does not wait.
func waitUnasked(ctx context.Context, inv *invocation, c *cove.Client, id string) time.Duration {
	if inv.global.json || !isTerminal(inv.In) || !isTerminal(inv.Err) {
		return 0
	}
	job, err := c.Job(ctx, id)
	if err != nil || job.State.Terminal() { // the pull has the error
		return 0
	}
	inv.say("Job %s has not ended: the pull waits for it. Ctrl-C leaves it running.", id)
	return waitForEver
}

// pullWork brings a job's commits, and the folders that the settings name.
func pullWork(ctx context.Context, inv *invocation, c *cove.Client, opts push.PullOptions, policy filesync.Policy) (p pulled, err error) {
	if opts.Dir, err = os.Getwd(); err != nil {
		return p, err
	}
	trees, err := pullTrees(ctx, inv, c, policy)
	if err != nil {
		return p, err
	}
	opts.Besides, trees.accept = trees.pull, opts.AcceptRisky
	if opts.Wait > 0 {
		shown := showWaiting(ctx, inv, c, opts.Job)
		defer shown()
	}
	courier, done := newCourier(inv, c)
	defer done()
	p.Pulled, err = courier.Pull(ctx, opts)
	done()
	if takeHeld(ctx, inv, err, p.Branch, p.Risky) {
		opts.AcceptRisky, trees.accept = true, true
		if p.Pulled, err = courier.Pull(ctx, opts); err == nil {
			p.Already = false // by this same command
		}
	}
	p.Trees = trees.done
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "not_finished" && opts.Wait > 0 {
		err = fail.Newf("timed_out", e.Hint, "waited for %v: %s", opts.Wait, e.Message)
	}
	return p, err
}

// takeHeld asks the person at the terminal, if there is one, whether to move a branch to
// changes that are held for review.
func takeHeld(ctx context.Context, inv *invocation, err error, branch string, risky []gitwork.Risk) bool {
	held, ok := errors.AsType[*gitwork.RefusedError](err)
	if !ok || held.Code != "risky" || inv.global.json || !isTerminal(inv.In) || !isTerminal(inv.Err) {
		return false
	}
	printRisky(inv.Err, risky)
	fmt.Fprintf(inv.Err, "To look at them: %s\nMove %s all the same? [y/N] ", printable.Name(inv.hints.full(held.Next[0])), printable.Name(branch))
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(inv.In).ReadString('\n') // its end is no
		said <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(inv.Err)
		return false
	case line := <-said:
		return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line)))
	}
}

// pulledJSON is what pull and run print with --json.
type pulledJSON struct {
	pulled
	Sprite string     `json:"sprite,omitempty"`
	Error  *errorJSON `json:"error,omitempty"`
}

// showPulled prints what a pull did, even if it was refused or rejected. sprite is that of
// cove run.
func showPulled(inv *invocation, p pulled, err error, sprite string) error {
	if p.Result == "" {
		return err // nothing was done
	}
	inv.hints.fullAll(p.Messages, p.Next)
	if inv.global.json {
		doc := pulledJSON{pulled: p, Sprite: sprite}
		if err == nil {
			inv.printJSON(doc)
			return nil
		}
		f := inv.classify(err)
		e := f.document()
		doc.Error = &e
		inv.printJSON(doc)
		return reportedError{f.exit}
	}
	if p.Result != push.Rejected {
		printPulled(inv.text(), p.Pulled)
		printTrees(inv.text(), p.Trees)
	}
	return err
}

// pulledOutcome is the error of a pull that has waited for the job and brought all of its work:
// nil if the job succeeded.
func pulledOutcome(inv *invocation, p pulled) error {
	exit := outcomeExit(p.State)
	switch {
	case exit == exitOK:
		return nil
	case inv.global.json: // the document has the state
		return reportedError{exit}
	}
	return fail.Newf(string(p.State), "cove job show "+p.Job, "job %s did not succeed (%s); all that it committed is here", p.Job, printable.Line(strings.ReplaceAll(string(p.State), "_", " ")))
}

// maxShownFiles bounds the list of changed files; git has the rest.
const maxShownFiles = 30

func printPulled(w io.Writer, p push.Pulled) {
	switch p.Result {
	case push.NoChanges:
		if p.Uncollected {
			break // the error says what there is
		}
		if p.State == cove.JobLost {
			fmt.Fprintf(w, "Nothing to pull: job %s was lost before its work could be kept.\n", p.Job)
			break
		}
		fmt.Fprintf(w, "No changes: job %s (%s) made no commits.\n", p.Job, printable.Line(string(p.State)))
	case push.FastForward:
		if !p.Moved {
			break // there was nothing to move, and the messages say so
		}
		below := ""
		if p.Snapshot != "" {
			below = fmt.Sprintf(", on top of %.10s, the snapshot of your own uncommitted changes", p.Snapshot)
		}
		fmt.Fprintf(w, "Fast-forwarded %s to %.12s: %s%s.\n", printable.Name(p.Branch), printable.Name(p.Head), printable.Count(p.Commits, "commit"), below)
	case push.Kept:
		if p.Ref != "" {
			fmt.Fprintf(w, "Kept %s in %s.\n", printable.Count(p.Commits, "commit"), printable.Name(p.Ref))
		}
		if p.Branch == "cove-"+p.Job {
			fmt.Fprintf(w, "They are the branch %s: git switch %s\n", p.Branch, p.Branch)
		}
	}
	for _, c := range p.Log {
		fmt.Fprintf(w, "  %.10s %s\n", printable.Name(c.SHA), printable.Name(c.Subject))
	}
	printFiles(w, p.Files)
	if p.Leftover != nil {
		fmt.Fprintf(w, "Left uncommitted by the agent, kept in %s:\n", printable.Name(p.Leftover.Ref))
		printFiles(w, p.Leftover.Files)
	}
	for _, m := range p.Modules {
		fmt.Fprintf(w, "In the submodule %s, kept in its %s: %s.\n", printable.Name(m.Path), m.Ref, printable.Count(m.Commits, "commit"))
		for _, c := range m.Log {
			fmt.Fprintf(w, "  %.10s %s\n", printable.Name(c.SHA), printable.Name(c.Subject))
		}
		printFiles(w, m.Files)
	}
	printRisky(w, p.Risky)
	printListed(w, p.Listed)
	for _, m := range p.Messages {
		fmt.Fprintln(w, printable.Name(m))
	}
}

func printRisky(w io.Writer, risky []gitwork.Risk) {
	if len(risky) == 0 {
		return
	}
	fmt.Fprintln(w, "Look at these before you run anything here:")
	for _, r := range risky {
		fmt.Fprintf(w, "  ! %s: %s\n", printable.Name(r.Path), printable.Name(r.Why))
	}
}

// printListed names the files that are not held, but run when the person builds or tests.
func printListed(w io.Writer, listed []gitwork.Risk) {
	for _, r := range listed[:min(len(listed), maxShownFiles)] {
		fmt.Fprintf(w, "  * %s: %s\n", printable.Name(r.Path), printable.Name(r.Why))
	}
	if more := len(listed) - maxShownFiles; more > 0 {
		fmt.Fprintf(w, "  * and %s more that run when you build or test\n", printable.Count(more, "file"))
	}
}

func printFiles(w io.Writer, files []gitwork.File) {
	for _, f := range files[:min(len(files), maxShownFiles)] {
		change := "binary"
		if f.Added >= 0 {
			change = fmt.Sprintf("+%d -%d", f.Added, f.Deleted)
		}
		fmt.Fprintf(w, "  %s %s (%s)\n", printable.Name(f.Status), printable.Name(f.Path), change)
	}
	if more := len(files) - maxShownFiles; more > 0 {
		fmt.Fprintf(w, "  and %s more\n", printable.Count(more, "file"))
	}
}
