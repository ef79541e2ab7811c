package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/sprites"
)

func newJobCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "Look after jobs",
		Long:  `A job is one agent at work on one plan in one repository. cove push begins one.`,
		Example: `  cove job list
  cove job logs -f a3f7b2
  cove job wait a3f7b2 && cove pull a3f7b2`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newJobListCommand(inv), newJobShowCommand(inv), newJobLogsCommand(inv), newJobStepsCommand(inv), newJobEventsCommand(inv), newJobAttachCommand(inv),
		newJobWaitCommand(inv), newJobStopCommand(inv), newJobSendCommand(inv), newJobAnswerCommand(inv), newJobRetryCommand(inv), newJobResumeCommand(inv), newJobPublishCommand(inv), newJobBundleCommand(inv), asksFirst(inv, newJobRmCommand(inv), lostJobs(inv)), newJobGCCommand(inv),
		newJobDiffCommand(inv), newJobLogCommand(inv), newJobMergeCommand(inv), newJobRebaseCommand(inv), newJobCherryPickCommand(inv), asksFirst(inv, newJobRefsCommand(inv), lostRefs))
	return cmd
}

// jobVerb makes the handler of a verb about one job, given by its id.
func jobVerb(inv *invocation, run func(ctx context.Context, c *cove.Client, id string) error) func(*cobra.Command, []string) error {
	return verb(func(ctx context.Context, args []string) error {
		if err := checkJob(args[0]); err != nil {
			return err
		}
		c, _, err := inv.server.jobs(ctx)
		if err != nil {
			return err
		}
		return jobError(run(ctx, c, args[0]))
	})
}

// jobError adds to an unknown job how to find the known ones, and how to find one that may have been
// made.
func jobError(err error) error {
	if errors.Is(err, cove.ErrLost) {
		return fail.Wrap("connection_lost", fmt.Errorf("%w; the job may have been made all the same", err), "see: cove job list")
	}
	if errors.Is(err, sprites.ErrNotFound) {
		return hinted(err, "see which there are: cove job list")
	}
	return err
}

func newJobListCommand(inv *invocation) *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the jobs, the newest first",
		Long: `Lists the jobs, the newest first; with -s, those in one sprite. The states are
` + strings.Join(jobStates[:5], ", ") + `,
` + strings.Join(jobStates[5:], ", ") + `.`,
		Example: `  cove job list
  cove job list --state running --state preparing
  cove job list -s paint --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			for _, state := range states {
				if !slices.Contains(jobStates, state) {
					return usagef(nil, "%q is not a state of jobs; the states are %s", state, strings.Join(jobStates, ", "))
				}
			}
			c, _, err := inv.server.jobs(ctx)
			if err != nil {
				return err
			}
			jobs, err := c.Jobs(ctx)
			if err != nil {
				return err
			}
			list := cove.JobList{Jobs: []cove.Job{}}
			for _, job := range jobs {
				if (inv.global.sprite == "" || job.Sprite == inv.global.sprite) && (len(states) == 0 || slices.Contains(states, string(job.State))) {
					list.Jobs = append(list.Jobs, job)
				}
			}
			return inv.show(list, func(w io.Writer) {
				if len(list.Jobs) == 0 {
					inv.tell(w, "No jobs. Begin one: cove push PLAN")
					return
				}
				printJobs(w, list.Jobs, time.Now())
			})
		}),
	}
	cmd.Flags().StringArrayVar(&states, "state", nil, "only those in this state (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(jobStates, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

var jobStates = []string{
	string(cove.JobInstalling), string(cove.JobQueued), string(cove.JobPreparing), string(cove.JobRunning), string(cove.JobWaiting),
	string(cove.JobSucceeded), string(cove.JobFailed), string(cove.JobTimedOut), string(cove.JobCancelled), string(cove.JobLost),
}

func printJobs(w io.Writer, jobs []cove.Job, now time.Time) {
	rows := [][]string{{"JOB", "STATE", "STARTED", "COMMITS", "PULLED", "AGENT", "BRANCH", "SPRITE", "PLAN"}}
	for _, j := range jobs {
		commits, pulled := "-", "-"
		if j.State.Terminal() {
			commits = fmt.Sprint(j.Commits)
			pulled = pulledText(j)
		}
		rows = append(rows, []string{j.ID, jobStateText(j), ago(j.CreatedAt, now), commits, pulled, j.Agent, j.Branch, spriteText(j), planText(j)})
	}
	table(w, rows)
}

// pulledText says whether a job's work is here: yes, no, or partly.
func pulledText(j cove.Job) string {
	if j.PulledAt != nil && j.Uncollected != "" {
		if j.Bundle.Size == 0 {
			return "no"
		}
		return "partly"
	}
	return yesNo(j.PulledAt != nil)
}

// jobStateText is a job's state for people. If the job does not proceed, it says why.
func jobStateText(j cove.Job) string {
	text := j.StateText()
	if j.State == cove.JobInstalling && j.Place > 0 && !j.Stopping {
		text = turnText(j)
	}
	if j.SpriteRemoval != nil {
		text += " (sprite not deleted yet)"
	}
	return text
}

// spriteText says where a job works, with the backend if it is at one.
func spriteText(j cove.Job) string {
	if j.Backend == "" {
		return j.Sprite
	}
	return j.Backend + "/" + j.Sprite
}

func newJobShowCommand(inv *invocation) *cobra.Command {
	show := jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
		job, err := c.Job(ctx, id)
		if err != nil {
			return err
		}
		if job.Held != nil {
			job.Held.Hint = inv.hints.full(job.Held.Hint)
		}
		if job.Failure != nil {
			job.Failure.Hint = inv.hints.full(job.Failure.Hint)
		}
		if job.Unknown != nil {
			job.Unknown.Hint = inv.hints.full(job.Unknown.Hint)
		}
		if job.SpriteRemoval != nil {
			job.SpriteRemoval.Hint = inv.hints.full(job.SpriteRemoval.Hint)
		}
		return inv.show(job, func(w io.Writer) {
			printJob(w, job, time.Now(), around(ctx, c, job)...)
			if q := job.Question; q != nil && !job.State.Terminal() {
				fmt.Fprintln(w)
				printQuestion(w, *q)
			}
			if hint := nextStep(job); hint != "" {
				inv.tell(w, "\n%s", hint)
			}
			if hint := refusals(ctx, c, job); hint != "" {
				inv.tell(w, "%s", hint)
			}
		})
	})
	return &cobra.Command{
		Use:   "show JOB [COMMIT]",
		Short: "Describe a job, or one of its commits",
		Long: `Describes a job: its state, how it ended and why, what it used, and where its commits are. With
COMMIT, it shows that commit: head is the last one, and leftover is what was left uncommitted.`,
		Example: `  cove job show a3f7b2
  cove job show a3f7b2 --json | jq .outcome
  cove job show a3f7b2 9e107d9d`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				args = append(args[:1:1], args[2:]...)
			}
			return exactArgs("the job's id")(cmd, args)
		},
		ValidArgsFunction: completeJob(inv),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return show(cmd, args)
			}
			return verb(func(ctx context.Context, args []string) error { return showJobCommit(ctx, inv, args[0], args[1]) })(cmd, args)
		},
	}
}

// around returns fields that name the jobs that retried or resumed a job. For a job that resumed
// another, they also have the first line of what its agent was told. An older server tells neither.
func around(ctx context.Context, c *cove.Client, job cove.Job) (pairs []string) {
	if job.ResumeOf != "" {
		if plan, err := cove.PlanOf(ctx, c, job.ID); err == nil {
			told, _, _ := strings.Cut(strings.TrimSpace(plan.Plan), "\n")
			pairs = append(pairs, "told", printable.Line(told))
		}
	}
	list, err := cove.ListJobs(ctx, c, cove.JobQuery{Of: job.ID})
	if err != nil {
		return pairs
	}
	var again, on []string
	for _, next := range slices.Backward(list.Jobs) {
		switch job.ID { // an older server lists all jobs
		case next.RetryOf:
			again = append(again, next.ID)
		case next.ResumeOf:
			on = append(on, next.ID)
		}
	}
	return append(pairs, "retried in", strings.Join(again, " "), "resumed in", strings.Join(on, " "))
}

// withHint is a message of a server for people, with what to do.
func withHint(message, hint string) string {
	if hint != "" {
		message += "; " + hint
	}
	return printable.Line(message)
}

// printJob describes a job; more are further fields.
func printJob(w io.Writer, j cove.Job, now time.Time, more ...string) {
	pairs := []string{
		"job", j.ID,
		"state", jobStateText(j),
	}
	if j.Held != nil && !j.State.Terminal() {
		pairs = append(pairs, "held", j.Held.Message+"; "+j.Held.Hint)
	}
	if u := j.Unknown; u != nil && !j.State.Terminal() {
		pairs = append(pairs, "unknown", withHint(u.Message, u.Hint)+"; since "+u.Since.Local().Format(time.RFC3339))
	}
	if r := j.SpriteRemoval; r != nil {
		pairs = append(pairs, "deletion", "of the sprite, since "+r.Since.Local().Format(time.RFC3339)+"; it is tried again: "+withHint(r.Error, r.Hint))
	}
	if j.Profile != "" {
		pairs = append(pairs, "profile", fmt.Sprintf("%s, revision %d", printable.Line(j.Profile), j.ProfileRevision))
	}
	if j.Installing != nil && j.Place == 0 {
		pairs = append(pairs, "installation", fmt.Sprintf("%s, since %s", installText(j), j.Installing.Since.Local().Format(time.RFC3339)))
	}
	if c := j.Cleanup; c != nil {
		pairs = append(pairs, "cleanup", cleanupText(*c))
	}
	if o := j.Outcome; o != nil {
		pairs = append(pairs, "outcome", fmt.Sprintf("%s (exit code %d)", o.Kind, o.ExitCode), "reason", o.Reason)
		if j.Error == o.Reason {
			j.Error = ""
		}
	}
	worked, waited := workedText(j, now)
	pairs = append(pairs,
		"error", j.Error,
		"agent", j.Agent,
		"command", j.AgentCommand,
		"permissions", j.Permissions,
		"model", j.Model,
		"role", j.Role,
		"login", j.Login,
		"mcp", strings.Join(mcpTexts(j.MCP), " "),
		"title", j.Title,
		"plan", j.PlanName,
		"repository", j.Repository,
		"branch", j.Branch,
		"backend", j.Backend,
		"sprite", j.Sprite,
		"network", networkText(j.NetworkPolicy),
		"retry of", j.RetryOf,
		"resume of", j.ResumeOf,
		"guards", guardsText(j),
		"base", j.Base,
		"head", j.Head,
		"commits", fmt.Sprint(j.Commits),
		"left uncommitted", j.Leftover,
		"service", j.Service,
		"session", j.Session,
		"agent's session", j.AgentSession,
		"created", j.CreatedAt.Local().Format(time.RFC3339),
		"started", timeText(j.StartedAt),
		"ended", timeText(j.EndedAt),
		"worked", worked,
		"waited", waited,
		"pulled", timeText(j.PulledAt),
		"not collected", j.Uncollected,
		"published", publishedText(j),
	)
	if u := j.Usage; u != nil && *u != (cove.Usage{}) {
		pairs = append(pairs, "usage", fmt.Sprintf("%s, %d tokens in, %d out, $%.4f", printable.Count(int(u.Turns), "turn"), u.InputTokens, u.OutputTokens, u.CostUSD))
	}
	fields(w, append(pairs, more...)...)
}

// cleanupText says how a job's cleanup script went, with the end of its output.
func cleanupText(c cove.JobCleanup) string {
	text := "it runs, since " + c.StartedAt.Local().Format(time.RFC3339)
	switch {
	case c.Error != "":
		text = "failed: " + c.Error
	case c.EndedAt != nil:
		text = "done, in " + c.EndedAt.Sub(c.StartedAt).Round(time.Millisecond).String()
	}
	if said := lastOf(c.Output.String(), failedLines); said != "" {
		text += "\n" + said
	}
	return text
}

// refusalsLimit bounds the time that refusals takes.
const refusalsLimit = 5 * time.Second

// refusals says what was refused to the sprite of an unsuccessful job while the job ran. Its
// network rules refuse connections; an upstream refuses calls if it does not accept the
// connector's key. The text is empty if there was nothing, or if it is not known any more.
func refusals(ctx context.Context, c *cove.Client, j cove.Job) string {
	if !j.State.Terminal() || j.State == cove.JobSucceeded || j.StartedAt == nil || j.Backend != "" || checkName(j.Sprite) != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, refusalsLimit)
	defer cancel()
	meanwhile := func(t time.Time) bool { return j.EndedAt == nil || !t.After(*j.EndedAt) }
	n, rule := 0, ""
	err := c.Sprite(j.Sprite).NetworkLog(ctx, sprites.NetworkLogOptions{Since: *j.StartedAt}, func(e sprites.NetworkEvent) error {
		if meanwhile(e.Time) {
			n += 1 + e.Suppressed
			if rule == "" {
				rule = netrules.Of(e)
			}
		}
		return nil
	})
	var hints []string
	if err == nil && n > 0 {
		hint := fmt.Sprintf("%s: cove policy log -s %s", printable.Count(n, "refusal"), j.Sprite)
		if j.OwnsSprite && rule != "" { // the next job has a sprite that is not there yet
			if hint += "; to allow the next job one of them from its start: cove push PLAN --allow " + rule; j.Profile != "" && profilePattern().MatchString(j.Profile) {
				hint = fmt.Sprintf("%s: cove policy log -s %s; to allow the jobs of the profile one of them, %s, add it to its rules: cove profile edit %s", printable.Count(n, "refusal"), j.Sprite, rule, j.Profile)
			}
		}
		hints = append(hints, hint)
	}
	last := map[string]int{} // statuses, by connector
	err = c.ConnectorLog(ctx, j.Sprite, cove.ConnectorLogOptions{Since: *j.StartedAt}, func(e cove.ConnectorEvent) error {
		if meanwhile(e.Time) {
			last[e.Connector] = e.Status
		}
		return nil
	})
	for _, name := range slices.Sorted(maps.Keys(last)) {
		if err == nil && last[name] == http.StatusUnauthorized {
			hints = append(hints, keyRefused(ctx, c, name))
		}
	}
	return strings.Join(hints, "\n")
}

// keyRefused is what to type if a connector's upstream does not accept its key.
func keyRefused(ctx context.Context, c *cove.Client, name string) string {
	secret := name
	if def, err := c.Connector(ctx, name); err == nil && def.Secret != "" { // else the token may not say
		secret = def.Secret
	}
	return fmt.Sprintf("the upstream of the connector %s refuses its key; set another: cove secret set %s", name, printable.Word(secret))
}

// planText is a job's title, with the name of its plan's file.
func planText(j cove.Job) string {
	if j.Title == "" {
		return j.PlanName
	}
	return j.Title + " (" + j.PlanName + ")"
}

// workedText is how long a job has worked, and how long it has waited for a person meanwhile.
func workedText(j cove.Job, now time.Time) (worked, waited string) {
	if j.StartedAt == nil {
		return "", ""
	}
	work, wait := j.Times(now)
	if wait >= time.Second {
		waited = wait.Round(time.Second).String()
	}
	return work.Round(time.Second).String(), waited
}

// waitsForPush says what a job without its repository waits for.
func waitsForPush(id string) string {
	return "It waits for its repository. If its push is gone, push again, and forget this one: cove job rm --force " + id
}

// nextStep is what to type about a job.
func nextStep(j cove.Job) string {
	switch {
	case !jobPattern().MatchString(j.ID):
		return ""
	case j.State == cove.JobWaiting && j.Question != nil:
		return "It asks you something: cove job answer " + j.ID
	case j.State == cove.JobWaiting:
		return "It waits for you: cove job send " + j.ID + " TEXT; or end it in good order: cove job send " + j.ID + " --close"
	case j.State == cove.JobInstalling && j.Place > 0:
		return "It waits for its turn. End it with: cove job stop " + j.ID
	case j.State == cove.JobInstalling:
		return "Its agent is being installed. End it with: cove job stop " + j.ID
	case j.State == cove.JobQueued:
		return waitsForPush(j.ID)
	case j.Failure != nil && j.Failure.Hint != "":
		return "Next: " + j.Failure.Hint
	case !j.State.Terminal() && j.Interactive:
		return "Join it with: cove job attach " + j.ID
	case !j.State.Terminal():
		return "Follow it with: cove job logs -f " + j.ID
	case j.PulledAt == nil && j.Bundle.Size > 0 && j.URL != "":
		return "Pull in a clone of its repository: cove pull " + j.ID + "; or in a new one: " + push.CloneFirst(j)
	case j.PulledAt == nil && j.Bundle.Size > 0:
		return "Pull with: cove pull " + j.ID
	case j.Uncollected != "" && !j.WorkDeleted:
		return "Not all of its work could be collected; " + push.CopyOut(j)
	}
	return ""
}

// publishedText says what became of a job's commits at the server of its repository.
func publishedText(j cove.Job) string {
	p := j.Published
	if p == nil {
		return ""
	}
	text := p.Branch + ": "
	switch p.State {
	case cove.PublishDone:
		return strings.TrimSpace(text + "pushed " + p.URL)
	case cove.PublishPending:
		text += "being pushed"
		if p.Error != "" {
			text += ", after a failure: " + p.Error
		}
	case cove.PublishHeld:
		text += "not pushed, since these files could run code on the machine of whoever takes them: "
		for i, f := range p.Risky {
			if i > 0 {
				text += "; "
			}
			text += f.Path + " (" + f.Why + ")"
		}
		text += ". Review them: " + push.CloneFirst(j)
	default:
		text += "not pushed: " + p.Error + ". Try again: cove job publish " + j.ID
	}
	return text
}

func newJobAttachCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "attach JOB",
		Short: "Join the terminal of an interactive job",
		Long: `Joins the terminal of a job that was pushed with --interactive. Ctrl+\ leaves it, and the
agent goes on; its work is collected when it ends.`,
		Example:           `  cove job attach a3f7b2`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: func(cmd *cobra.Command, args []string) error {
			if inv.global.json {
				return usagef(cmd, "attach is for people; there is no --json")
			}
			if err := checkJob(args[0]); err != nil {
				return err
			}
			c, _, err := inv.server.jobs(cmd.Context())
			if err != nil {
				return err
			}
			return jobError(attachJob(cmd.Context(), inv, c, args[0]))
		},
	}
}

// attachJob joins an interactive job's terminal, once there is one.
func attachJob(ctx context.Context, inv *invocation, c *cove.Client, id string) error {
	job, err := jobSession(ctx, c, id)
	if err != nil {
		return err
	}
	return attachSession(ctx, inv, c.At(job.Backend).Sprite(job.Sprite), job.Session, false)
}

// jobSession waits until a job has its session.
func jobSession(ctx context.Context, c *cove.Client, id string) (cove.Job, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		job, err := c.Job(ctx, id)
		switch {
		case err != nil:
			return job, err
		case !job.Interactive:
			return job, fail.Newf("not_interactive", "cove job logs -f "+id, "job %s has no terminal: it was not pushed with --interactive", id)
		case job.State.Terminal():
			return job, fail.Newf("ended", "cove pull "+id, "job %s has ended (%s)", id, job.State)
		case job.Session != "" && job.State != cove.JobQueued:
			return job, nil
		}
		select {
		case <-ctx.Done():
			return job, ctx.Err()
		case <-tick.C:
		}
	}
}

func newJobStopCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "stop JOB",
		Short: "Stop a job",
		Long: `Stops a job: its agent is told to stop, and then forced to. Its work so far is collected, and can
be pulled. A job that has ended stays as it is.

If the sprite is paused because a disk is full, nothing of the job runs any more. Its work is
collected when there is room. If the agent is still being installed, there is no work yet, and
the job ends at once.`,
		Example:           `  cove job stop a3f7b2`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
		RunE: jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
			job, err := c.StopJob(ctx, id)
			if err != nil {
				return err
			}
			if job.ID == "" { // some servers say no more than that they were told
				if job, err = c.Job(ctx, id); err != nil {
					return err
				}
			}
			return inv.show(job, printTo(inv, "%s", strings.TrimSpace(fmt.Sprintf("Job %s: %s. %s", id, outcomeText(job), stopHint(job)))))
		}),
	}
}

func stopHint(job cove.Job) string {
	switch {
	case job.State.Terminal():
		return nextStep(job)
	case job.Stopping && job.Held != nil:
		return job.Held.Message + ". Nothing of the job runs; its work can be pulled when its sprite runs again: " + job.Held.Hint + ". Or lose it: cove job rm --force " + job.ID
	}
	return "It was told to stop; see: cove job wait " + job.ID
}

func newJobRmCommand(inv *invocation) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm JOB...",
		Short: "Remove jobs",
		Long: `Removes jobs with their logs, and with the sprites that were made for them. It also removes their
refs in this repository, if their commits are in a branch or a tag, too. Without --force, it
keeps jobs that run, jobs whose commits nobody has pulled, and jobs whose work could not all be
collected. It also keeps a job that is still to be published, or that a waiting retry needs.`,
		Example: `  cove job rm a3f7b2
  cove job rm --force a3f7b2 b81c44`,
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeJob(inv),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the job's id is missing")
			}
			return nil
		},
		RunE: verb(func(ctx context.Context, args []string) error {
			for _, id := range args {
				if err := checkJob(id); err != nil {
					return err
				}
			}
			c, _, err := inv.server.jobs(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(id string) error {
				err := jobError(c.DeleteJob(ctx, id, force))
				if err != nil && strings.Contains(classify(err).code, "unpulled") {
					return hinted(err, "bring its commits home: cove pull "+id+"; or lose them: cove job rm --force "+id)
				}
				if err != nil {
					return err
				}
				return forgetRefs(ctx, inv, id)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also a job that runs, or whose work would be lost")
	return cmd
}
