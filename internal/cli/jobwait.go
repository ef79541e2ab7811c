package cli

import (
	"context"
	"errors"
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
)

// waitOptions are the flags of job wait.
type waitOptions struct {
	timeout time.Duration
	pull    bool
	asked   bool // for the pull, by the flag
	into    string
	accept  bool
}

func newJobWaitCommand(inv *invocation) *cobra.Command {
	var o waitOptions
	cmd := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait for a job's end",
		Long: `Waits until a job has ended, and says how it ended. The exit code says so, too: 0 succeeded, 1
failed, 124 timed out, 130 cancelled, 75 lost. If --timeout passes first, the exit code is 124,
and the code of the error is "wait_timeout".

With --pull, or the setting pull.auto, it pulls as cove pull does if the job succeeded. It brings
the commits and the folders of [[pull.sync]], with the same exit codes. Outside of the job's
repository, the setting does nothing.`,
		Example: `  cove job wait a3f7b2 && cove pull a3f7b2
  cove job wait a3f7b2 --timeout 10m
  cove job wait a3f7b2 --pull --into branch`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
	}
	cmd.RunE = jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
		o.asked = cmd.Flags().Changed("pull")
		if err := setPullDefaults(ctx, inv, cmd); err != nil {
			return err
		}
		if !slices.Contains(intoChoices, o.into) {
			return usagef(cmd, "--into %q is not one of ff, branch and none", o.into)
		}
		return waitJob(ctx, inv, c, id, o)
	})
	f := cmd.Flags()
	f.DurationVar(&o.timeout, "timeout", 0, "give up waiting after so long")
	f.BoolVar(&o.pull, "pull", false, "pull the commits, if the job has succeeded")
	f.StringVar(&o.into, "into", config.Default(config.PullInto), "what to do with the commits, as in pull: ff, branch or none")
	registerAccept(cmd, &o.accept)
	must(cmd.RegisterFlagCompletionFunc("into", cobra.FixedCompletions(intoChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// waitedJSON is a job that was waited for, and what its pull did.
type waitedJSON struct {
	cove.Job
	Pulled *pulledJSON `json:"pulled,omitempty"`
}

func waitJob(parent context.Context, inv *invocation, c *cove.Client, id string, o waitOptions) error {
	ctx := parent
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(parent, o.timeout)
		defer cancel()
	}
	shown := showWaiting(ctx, inv, c, id)
	job, err := c.WaitJob(ctx, id)
	shown()
	if err != nil && ctx.Err() != nil && parent.Err() == nil {
		return waitedEnough(parent, c, id, o.timeout)
	}
	if err != nil {
		return lostServer(err, "cove job wait "+id)
	}
	if o.pull && job.State == cove.JobSucceeded {
		return pullWaited(parent, inv, c, job, o)
	}
	if err := inv.show(job, printTo(inv, "Job %s %s", id, outcomeText(job))); err != nil {
		return err
	}
	if exit := outcomeExit(job.State); exit != exitOK {
		return reportedError{exit}
	}
	return nil
}

// waitedEnough says that a job has not ended in the time that there was for it.
func waitedEnough(ctx context.Context, c *cove.Client, id string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if job, err := c.Job(ctx, id); err == nil && job.State == cove.JobQueued {
		return fail.Newf("wait_timeout", strings.TrimSuffix(waitsForPush(id), "."), "job %s has not begun after %v", id, timeout)
	}
	return fail.Newf("wait_timeout", "cove job logs -f "+id, "job %s has not ended after %v; it goes on", id, timeout)
}

// pullWaited pulls a job that has succeeded.
func pullWaited(ctx context.Context, inv *invocation, c *cove.Client, job cove.Job, o waitOptions) error {
	if !inv.global.json {
		printTo(inv, "Job %s %s", job.ID, outcomeText(job))(inv.text())
	}
	pulled, err := pullWork(ctx, inv, c, push.PullOptions{Job: job.ID, Into: push.Into(o.into), AcceptRisky: o.accept}, filesync.Fail)
	if elsewhere := elsewhere(err); elsewhere && !o.asked {
		inv.say("Not pulled: the job is of another repository. Type there: cove pull %s", job.ID)
		err = nil
	}
	if !inv.global.json {
		return showPulled(inv, pulled, err, "")
	}
	doc := waitedJSON{Job: job}
	if pulled.Result != "" {
		inv.hints.fullAll(pulled.Messages, pulled.Next)
		doc.Pulled = &pulledJSON{pulled: pulled}
	}
	if err == nil {
		inv.printJSON(doc)
		return nil
	}
	if doc.Pulled == nil {
		return err
	}
	f := inv.classify(err)
	e := f.document()
	doc.Pulled.Error = &e
	inv.printJSON(doc)
	return reportedError{f.exit}
}

// elsewhere reports whether a pull failed because it was tried in another place
// than the job's repository.
func elsewhere(err error) bool {
	if errors.Is(err, gitwork.ErrNotRepository) {
		return true
	}
	e, ok := errors.AsType[*fail.Error](err)
	return ok && e.Code == "wrong_repository"
}
