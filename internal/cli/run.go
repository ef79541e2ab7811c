package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
)

func newRunCommand(inv *invocation) *cobra.Command {
	var o pushOptions
	var prompt, into string
	var autoPull, accept bool
	cmd := &cobra.Command{
		Use:   "run PLAN | run -p PROMPT",
		Short: "Push, follow the work, and pull",
		Long: `Does what push, job logs -f and pull do, one after the other (for --interactive and --converse,
use push). Ctrl-C leaves the job running, and the message says how to pull it. With --pull=false,
or the setting pull.auto = false, nothing is pulled. With -q, only what the pull brought is printed.

The exit code says how the work ended: 0 succeeded, 1 failed, 124 timed out, 130 cancelled, 75
lost. It is 3, 4 or 5 if the pull was refused, or held what it brought for your review.

To try run without a model, use --dry-run, or the agent shell, which carries out a plan's sh
blocks. Or give a connector a server of your own that answers as a model would:

  cove connector put anthropic --upstream http://127.0.0.1:9000`,
		Example: `  cove run plan.md
  cove run -p "Update the dependencies, and make the tests pass."
  gh issue view 7 | cove run -
  cove run --agent cove -p "Write the tests that are missing."
  cove run --agent shell plan.md --into branch`,
		Args: planArgs(&prompt),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		opts, err := o.options(ctx, inv, cmd)
		if err != nil {
			return err
		}
		if err := setPullDefaults(ctx, inv, cmd); err != nil {
			return err
		}
		if !slices.Contains(intoChoices, into) {
			return usagef(cmd, "--into %q is not one of ff, branch and none", into)
		}
		if opts.Plan = prompt; prompt == "" {
			if err := readPlan(inv, &opts, args[0]); err != nil {
				return err
			}
		}
		if o.dryRun {
			return runDryRun(ctx, inv, opts, o.choose(inv, cmd))
		}
		run := runOptions{log: !inv.global.json && !inv.global.quiet, pull: autoPull}
		run.steps = wantsSteps(inv, cmd)
		run.with = push.PullOptions{Into: push.Into(into), AcceptRisky: accept}
		return runJob(ctx, inv, opts, o.choose(inv, cmd), run)
	})
	o.register(inv, cmd)
	f := cmd.Flags()
	registerPrompt(cmd, &prompt)
	f.StringVar(&into, "into", config.Default(config.PullInto), "what to do with the commits, as in pull: ff, branch or none")
	f.BoolVar(&autoPull, "pull", true, "pull when the job has ended")
	registerAccept(cmd, &accept)
	must(cmd.RegisterFlagCompletionFunc("into", cobra.FixedCompletions(intoChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func registerPrompt(cmd *cobra.Command, prompt *string) {
	cmd.Flags().StringVarP(prompt, "prompt", "p", "", "the plan's text, in place of its file")
}

// planArgs is a cobra argument check for a plan, if there is no prompt.
func planArgs(prompt *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case *prompt != "" && len(args) > 0:
			return usagef(cmd, "a plan or a prompt, not both")
		case *prompt != "":
			return nil
		case cmd.Flags().Changed("prompt"):
			return usagef(cmd, "the prompt is empty")
		}
		return exactArgs("the plan, or -p with a prompt,")(cmd, args)
	}
}

// setPullDefaults is setDefaults for the flags --pull, --into and --accept-risky.
func setPullDefaults(ctx context.Context, inv *invocation, cmd *cobra.Command) error {
	s, _, err := loadSettings(ctx)
	if err != nil {
		return err
	}
	keys := []config.Key{config.PullInto, config.PullRisky}
	if cmd.Flags().Lookup("pull") != nil {
		keys = append(keys, config.PullAuto)
	}
	return setDefaults(inv, cmd, s, keys...)
}

// runOptions say what run, and push --auto-pull, do besides the push.
type runOptions struct {
	log   bool // print the job's log until its end; else only wait
	steps bool // show its preparation, without a log
	pull  bool
	with  push.PullOptions // without the job
}

// runJob pushes, follows the job, and pulls if o says so.
func runJob(ctx context.Context, inv *invocation, opts push.Options, choose choose, o runOptions) error {
	if err := checkPlan(opts.PlanPath); err != nil {
		return err
	}
	c, backend, err := inv.server.newJobs(ctx)
	if err == nil {
		opts, err = choose(ctx, c, opts)
	}
	if err != nil {
		return err
	}
	opts.Backend = backend
	result, view, err := pushWith(ctx, inv, c, opts, o.steps && !o.log)
	if err != nil {
		return err
	}
	view.above(func() { inv.say("Job %s started in %s.", result.Job, result.Sprite) })
	_ = view.wait(ctx) // the wait for its end tells more
	job, err := followJob(ctx, inv, c, result.Job, o.log)
	switch {
	case err == nil && job.URL != "" && !push.Cloned(ctx, opts.Dir, job):
		err = showUnpulled(inv, job)
	case err == nil && !o.pull:
		err = showUnpulled(inv, job)
	case err == nil:
		var p pulled
		o.with.Job = result.Job
		p, err = pullWork(ctx, inv, c, o.with, filesync.Fail)
		if ctx.Err() == nil {
			err = showPulled(inv, p, err, result.Sprite)
		}
	}
	if ctx.Err() != nil {
		return leftJob(result.Job)
	}
	err = lostServer(err, "cove pull "+result.Job+" --wait")
	if job.State.Terminal() && job.State != cove.JobSucceeded {
		if hint := refusals(ctx, c, job); hint != "" {
			inv.say("%s", hint)
		}
		return endRun(inv, job, o.log, err)
	}
	return err
}

// showUnpulled says how a job ended, if its commits are not pulled.
func showUnpulled(inv *invocation, job cove.Job) error {
	return inv.show(job, printTo(inv, "%s", strings.TrimSpace(fmt.Sprintf("Job %s %s. %s", job.ID, outcomeText(job), nextStep(job)))))
}

// leftJob says that the person has left a job.
func leftJob(id string) error {
	return fail.Newf("interrupted", "pull with: cove pull "+id+" --wait; stop it with: cove job stop "+id, "left job %s, which goes on", id)
}

// followJob prints a job's log until its end, or only waits for that.
func followJob(ctx context.Context, inv *invocation, c *cove.Client, id string, log bool) (cove.Job, error) {
	if log {
		job, err := c.Job(ctx, id)
		if err != nil {
			return job, err
		}
		if err := jobPrinter(inv, job).printFrom(ctx, c, id, 1, true); err != nil {
			return job, err
		}
	}
	if !log {
		defer showWaiting(ctx, inv, c, id)()
	}
	return c.WaitJob(ctx, id)
}

// endRun ends a run whose job did not succeed. It reports the pull's error first.
func endRun(inv *invocation, job cove.Job, logged bool, pullErr error) error {
	exit := outcomeExit(job.State)
	if _, reported := pullErr.(reportedError); inv.global.json && reported {
		return reportedError{exit}
	}
	if pullErr != nil && !inv.global.json {
		reportError(inv, nil, pullErr)
		return reportedError{exit}
	}
	if inv.global.json && pullErr == nil {
		return reportedError{exit} // the document was printed
	}
	text := outcomeText(job)
	if logged { // the log has the rest
		text = headline(text)
	}
	return fail.Newf(string(job.State), "cove job logs "+job.ID, "job %s: %s", job.ID, text)
}

// outcomeText is how a job ended, or is.
func outcomeText(job cove.Job) string {
	text := jobStateText(job)
	if job.Outcome != nil && job.Outcome.Reason != "" {
		text += ": " + job.Outcome.Reason
	} else if job.Error != "" {
		text += ": " + job.Error
	}
	return text
}

// printTo is a helper for verbs whose result is one line.
func printTo(inv *invocation, format string, args ...any) func(io.Writer) {
	return func(w io.Writer) { inv.tell(w, format, args...) }
}
