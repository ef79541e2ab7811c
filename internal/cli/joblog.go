package cli

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

func newJobLogsCommand(inv *invocation) *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print what happened in a job, for people",
		Long: `Prints a job's log: its steps, what the agent said and did, and the output. Characters that a
terminal would act on are shown, not sent. For programs, use cove job events.`,
		Example: `  cove job logs a3f7b2
  cove job logs -f a3f7b2
  cove job logs -n 20 -f a3f7b2     the last 20 lines, and the next ones`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
	}
	logs := jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
		job, err := c.Job(ctx, id)
		if err != nil {
			return err
		}
		if job, err = logInstalling(ctx, inv, c, job, follow); err != nil {
			return err
		}
		last := &lastLines{max: lines}
		log := jobPrinter(inv, job)
		from := int64(1)
		if cmd.Flags().Changed("lines") {
			out := log.w
			log.w = last
			for event, err := range c.JobEvents(ctx, id, 1, false) {
				if err != nil {
					return err
				}
				log.print(event)
				from = event.Seq + 1
			}
			log.w = out
			if _, err := io.WriteString(out, last.String()); err != nil {
				return err
			}
		}
		if follow || !cmd.Flags().Changed("lines") {
			if err := log.printFrom(ctx, c, id, from, follow); err != nil {
				return err
			}
		}
		if !log.ended {
			if job, err = c.Job(ctx, id); err == nil {
				log.without(job)
			}
		}
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if inv.global.json {
			return hinted(usagef(cmd, "logs are for people; there is no --json"), "cove job events JOB")
		}
		if lines < 0 {
			return usagef(cmd, "-n %d is not a number of lines", lines)
		}
		return logs(cmd, args)
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has ended")
	cmd.Flags().IntVarP(&lines, "lines", "n", 0, "how many lines, from the end (default: all)")
	cmd.Flags().SetNormalizeFunc(tailIsLines)
	return cmd
}

// logInstalling tells of a job that has no log yet because its agent is being installed.
// With follow it waits for that.
func logInstalling(ctx context.Context, inv *invocation, c *cove.Client, job cove.Job, follow bool) (cove.Job, error) {
	if job.State != cove.JobInstalling {
		return job, nil
	}
	if !follow {
		inv.say("Job %s has no log yet: %s. Follow it with: cove job logs -f %s", job.ID, installText(job), job.ID)
		return job, nil
	}
	shown := inv.newProgress(preparingTitle(job), 0)
	defer shown.Close()
	shown.say(installText(job))
	return c.AwaitInstall(ctx, job.ID, func(job cove.Job) { shown.say(installText(job)) })
}

// tailIsLines lets --tail be written for --lines.
func tailIsLines(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "tail" {
		name = "lines"
	}
	return pflag.NormalizedName(name)
}

// lastLines keeps the last lines that are written to it, and the part of a line after them.
type lastLines struct {
	max   int
	lines []string // each with its end
	part  string   // of a line
}

func (l *lastLines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if l.part += line; strings.HasSuffix(line, "\n") {
			l.lines = append(l.lines, l.part)
			l.part = ""
		}
	}
	l.lines = l.lines[max(0, len(l.lines)-l.max):]
	return len(p), nil
}

func (l *lastLines) String() string { return strings.Join(l.lines, "") + l.part }

// printFrom prints the log of a job from an event on. With follow, it prints until the job's end, and
// says why nothing comes if the sprite is held.
func (p *logPrinter) printFrom(ctx context.Context, c *cove.Client, id string, from int64, follow bool) error {
	if follow {
		watch := watchHeld(ctx, p.inv, jobHeld(c, id))
		defer watch.stop()
		p.heard = watch.heard
	}
	for event, err := range c.JobEvents(ctx, id, from, follow) {
		if err != nil && follow {
			return lostServer(err, "cove job logs -f "+id)
		}
		if err != nil {
			return err
		}
		p.print(event)
	}
	return nil
}

func newJobEventsCommand(inv *invocation) *cobra.Command {
	var follow bool
	var from int64
	cmd := &cobra.Command{
		Use:   "events JOB",
		Short: "Print a job's events, a JSON object a line",
		Long: `Prints the events of a job's log for programs, each as a line of JSON with its number. A reader
that was cut off resumes with --from. With --json, all events are one document, {"events":[...]}.`,
		Example: `  cove job events a3f7b2
  cove job events -f --from 118 a3f7b2`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
	}
	events := jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
		all := struct {
			Events []cove.JobEvent `json:"events"`
		}{Events: []cove.JobEvent{}}
		enc, last := inv.jsonLines(), max(from, 1)-1
		var heard func()
		if follow {
			watch := watchHeld(ctx, inv, jobHeld(c, id))
			defer watch.stop()
			heard = watch.heard
		}
		for event, err := range c.JobEvents(ctx, id, from, follow) {
			if err != nil && follow {
				return lostServer(err, fmt.Sprintf("cove job events -f --from %d %s", last+1, id))
			}
			if err != nil {
				return err
			}
			last = event.Seq
			if heard != nil {
				heard()
			}
			if inv.global.json {
				all.Events = append(all.Events, event)
			} else if err := enc.Encode(event); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
		}
		if inv.global.json {
			inv.printJSON(all)
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if from < 1 {
			return usagef(cmd, "--from %d: the first event has the number 1", from)
		}
		return events(cmd, args)
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has ended")
	cmd.Flags().Int64Var(&from, "from", 1, "begin with the event of this number")
	return cmd
}

// logPrinter prints events for people. It makes the output of agents and commands
// harmless for a terminal.
type logPrinter struct {
	w       io.Writer
	inv     *invocation   // of the output w; nil: w is a file, and hints stay as they are
	reader  agents.Reader // nil: an agent that this cove does not know
	job     string        // the id for commands that answer questions; empty: there are none
	midLine bool          // the last output was a part of a line
	ended   bool          // the log's last line was printed
	recent  []string      // the last lines of output and notices
	heard   func()        // called before each event, if not nil
}

// jobPrinter prints the log of a job to this run's output.
func jobPrinter(inv *invocation, job cove.Job) *logPrinter {
	p := newLogPrinter(inv.text(), job)
	p.inv = inv
	return p
}

// tell writes a line that says what to type.
func (p *logPrinter) tell(format string, args ...any) {
	if p.inv != nil {
		p.inv.tell(p.w, format, args...)
		return
	}
	fmt.Fprintln(p.w, printable.Text(fmt.Sprintf(format, args...)))
}

func newLogPrinter(w io.Writer, job cove.Job) *logPrinter {
	p := &logPrinter{w: w, job: job.ID}
	if known, err := agents.Of(job.Agent, job.Definition); err == nil {
		p.reader = known.Read()
	}
	return p
}

func (p *logPrinter) print(e cove.JobEvent) {
	if p.heard != nil {
		p.heard()
	}
	var meant []agents.Event
	if p.reader != nil {
		meant = p.reader.Event(e)
	}
	if e.Type == "output" && meant == nil {
		p.output(e)
		return
	}
	if p.midLine {
		fmt.Fprintln(p.w)
		p.midLine = false
	}
	switch e.Type {
	case "state":
		fmt.Fprintf(p.w, "== %s\n", printable.Line(string(e.State)))
	case "event", "output":
		for _, m := range meant {
			p.agentEvent(m)
		}
	case "step":
		if e.Step != nil && e.Step.Warning != "" {
			fmt.Fprintf(p.w, "-- %s\n", printable.Text(e.Step.Warning))
		}
	case "notice":
		fmt.Fprintf(p.w, "-- %s\n", printable.Text(p.news(e.Text)))
		p.note(e.Text)
	case "input":
		fmt.Fprintf(p.w, ">> %s\n", strings.ReplaceAll(printable.Text(e.Text), "\n", "\n>> "))
	case "exit":
		p.exit(e)
	case "end":
		p.end(e)
	}
}

// coveLine is the beginning of a line of cove's, which one of an agent's must not look like.
var coveLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^(==|--|->|<-|\?\?|##|>>|\|) `) })

// agentEvent says what an agent did.
func (p *logPrinter) agentEvent(e agents.Event) {
	failed := ""
	if e.Failed {
		failed = " (failed)"
	}
	switch e.Kind {
	case agents.KindStart:
		fmt.Fprintf(p.w, "-- %s\n", printable.Line(e.Text))
	case agents.KindText:
		fmt.Fprintln(p.w, coveLine().ReplaceAllString(printable.Text(e.Text), " $0"))
	case agents.KindThought: // the page folds them; here they would hide the agent's actions
	case agents.KindAsk:
		fmt.Fprintf(p.w, "?? %s\n", printable.Line(e.Text))
		printAsked(p.w, e.Full, e.Missing)
		if p.job != "" {
			p.tell("   answer with: cove job answer %s", p.job)
		}
	case agents.KindStep:
		fmt.Fprintf(p.w, "## %s\n", printable.Line(e.Text))
	case agents.KindToolStart:
		fmt.Fprintf(p.w, "-> %s %s\n", printable.Line(e.Tool), printable.Line(e.Text))
	case agents.KindStepEnd, agents.KindToolEnd:
		fmt.Fprintf(p.w, "<- %s%s\n", printable.Line(e.Text), failed)
	case agents.KindResult:
		fmt.Fprintf(p.w, "== result%s\n%s", failed, indented(printable.Text(e.Text)))
	default:
		fmt.Fprintf(p.w, "-- %s: %s%s\n", e.Kind, printable.Line(e.Text), failed)
	}
}

// indented puts a text below a line.
func indented(text string) string {
	if text == "" {
		return ""
	}
	return "   " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n   ") + "\n"
}

func (p *logPrinter) output(e cove.JobEvent) {
	p.note(e.Text)
	if !p.midLine {
		fmt.Fprint(p.w, "| ") // so that it can't look like a line of cove's
	}
	fmt.Fprint(p.w, strings.ReplaceAll(printable.Text(e.Text), "\n", "\n| "))
	if p.midLine = e.Cut; !e.Cut {
		fmt.Fprintln(p.w)
	}
}

// maxRecent is more lines than a reason has.
const maxRecent = 64

// note remembers lines that were printed.
func (p *logPrinter) note(text string) {
	p.recent = append(p.recent, strings.Split(text, "\n")...)
	p.recent = p.recent[max(0, len(p.recent)-maxRecent):]
}

// news is a reason without the lines after its first that the log has just shown.
func (p *logPrinter) news(text string) string {
	lines := strings.Split(text, "\n")
	for _, line := range lines[1:] {
		if !slices.Contains(p.recent, line) {
			return text
		}
	}
	return headline(text)
}

func (p *logPrinter) exit(e cove.JobEvent) {
	text := "the agent has ended"
	if e.ExitCode != nil {
		text += fmt.Sprintf(" with code %d", *e.ExitCode)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	fmt.Fprintf(p.w, "-- %s\n", printable.Line(text))
}

// without ends the log of a job that has ended without a word, such as one that is lost.
func (p *logPrinter) without(job cove.Job) {
	if !job.State.Terminal() {
		return
	}
	if p.midLine {
		fmt.Fprintln(p.w)
	}
	fmt.Fprintf(p.w, "== %s\n", printable.Text(outcomeText(job)))
}

func (p *logPrinter) end(e cove.JobEvent) {
	p.ended = true
	switch {
	case e.Outcome != nil && e.Outcome.Reason != "":
		fmt.Fprintf(p.w, "== %s: %s\n", printable.Line(e.Outcome.Kind), printable.Text(p.news(e.Outcome.Reason)))
	case e.Outcome != nil:
		fmt.Fprintf(p.w, "== %s\n", printable.Line(e.Outcome.Kind))
	case e.Result != nil && e.Result.Reason != "":
		fmt.Fprintf(p.w, "== ended: %s\n", printable.Text(e.Result.Reason))
	default:
		fmt.Fprintln(p.w, "== ended")
	}
}
