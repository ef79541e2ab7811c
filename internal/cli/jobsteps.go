package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newJobStepsCommand(inv *invocation) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "steps JOB",
		Short: "Print how far the preparation of a job is, step by step",
		Long: `Prints the steps that prepare a job's sprite, agent and repository: the state of each, how long
it took, and what went wrong. A step that a job does not need is skipped, and says why. The steps
of each job are:

` + stepNames() + `

With --follow, it prints the steps as they happen, with what their commands print, until the
agent begins or the job has ended. With --json as well, each change is a line of JSON; the first
line is a snapshot.`,
		Example: `  cove job steps a3f7b2
  cove job steps -f a3f7b2
  cove job steps --json a3f7b2 | jq -r '.steps[] | select(.state == "failed") | .error'`,
		Args:              exactArgs("the job's id"),
		ValidArgsFunction: completeJob(inv),
	}
	cmd.RunE = jobVerb(inv, func(ctx context.Context, c *cove.Client, id string) error {
		calls := cove.Steps{Client: c}
		if !follow {
			steps, err := calls.Get(ctx, id)
			if err != nil {
				return err
			}
			return inv.show(steps, func(w io.Writer) { printSteps(w, steps) })
		}
		each := (&stepPrinter{w: inv.Out}).news
		if inv.global.json {
			enc := inv.jsonLines()
			each = func(news cove.StepNews) error { return enc.Encode(news) }
		}
		return calls.Follow(ctx, id, each)
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the agent begins, or the job has ended")
	return cmd
}

// stepNames lists all steps, in lines for a help text.
func stepNames() string {
	var b strings.Builder
	for chunk := range slices.Chunk(cove.StepKeys(), 5) {
		line := "\n "
		for _, key := range chunk {
			line += " " + string(key)
		}
		b.WriteString(line)
	}
	return b.String()[1:]
}

// reason is an error without its lines after the first if they are the output's, which is shown beside it.
func reason(text, output string) string {
	first, rest, more := strings.Cut(text, "\n")
	if more && strings.Contains(output, strings.TrimSpace(rest)) {
		return strings.TrimSuffix(first, ":")
	}
	return text
}

// printSteps prints a table of steps, and the output of those that failed.
func printSteps(w io.Writer, all cove.JobSteps) {
	rows := [][]string{{"STEP", "STATE", "TIME", "DETAIL"}}
	for _, s := range all.Steps {
		rows = append(rows, []string{printable.Line(string(s.Key)), printable.Line(string(s.State)), cmp.Or(stepDuration(s), "-"), printable.Line(firstLine(cmp.Or(s.Error, s.Warning, s.Detail)))})
	}
	table(w, rows)
	for _, s := range all.Steps {
		if s.State != cove.StepFailed {
			continue
		}
		fmt.Fprintf(w, "\n%s failed: %s\n", printable.Line(string(s.Key)), printable.Text(reason(s.Error, s.Output.String())))
		if text := lastOf(s.Output.String(), failedLines); text != "" {
			fmt.Fprintf(w, "the last lines of its output:\n%s\n", printable.Text(text))
		}
		if s.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", printable.Text(s.Hint))
		}
	}
}

// failedLines is how much is shown of the output of a step that failed.
const failedLines = 20

// lastOf is the end of a text, n lines at most.
func lastOf(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// stepDuration is how long a step took; empty: it has not begun, or was skipped.
func stepDuration(s cove.Step) string {
	switch d := s.Duration(); {
	case s.StartedAt == nil || s.State == cove.StepSkipped:
		return ""
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

// stepPrinter tells a person of steps as they change, each thing once.
type stepPrinter struct {
	w       io.Writer
	shown   map[cove.StepKey]*shownStep
	last    cove.StepKey // the step of the last line
	midLine bool
}

// shownStep is what was printed of a step.
type shownStep struct {
	attempt int
	printed int64 // bytes of its output
	ended   bool
}

func (p *stepPrinter) news(news cove.StepNews) error {
	if news.Snapshot != nil { // the first one, or after a lost connection
		for _, s := range news.Snapshot.Steps {
			at, text := s.Output.From(p.of(s).printed)
			if p.of(s).printed == 0 {
				at, text = 0, s.Output.String()
			}
			p.step(s, at, text)
			p.of(s).printed = s.Output.Size()
		}
	}
	if news.Step != nil {
		p.step(*news.Step, news.At, news.Text)
	}
	return nil
}

// of is what was printed of a step in its present attempt.
func (p *stepPrinter) of(s cove.Step) *shownStep {
	if p.shown == nil {
		p.shown = map[cove.StepKey]*shownStep{}
	}
	t := p.shown[s.Key]
	if t == nil || t.attempt != s.Attempt && !t.ended {
		t = &shownStep{attempt: s.Attempt}
		p.shown[s.Key] = t
		if p.last == s.Key {
			p.last = ""
		}
	}
	return t
}

func (p *stepPrinter) step(s cove.Step, at int64, text string) {
	t := p.of(s)
	if t.ended || s.State == cove.StepPending {
		return
	}
	if s.Key != p.last && (s.State == cove.StepRunning || text != "") {
		p.endLine()
		fmt.Fprintf(p.w, "== %s\n", printable.Line(string(s.Key)))
		p.last = s.Key
	}
	if at > t.printed {
		p.endLine()
		fmt.Fprintf(p.w, "-- %d bytes left out\n", at-t.printed)
	}
	if text != "" {
		t.printed = at + int64(len(text))
		p.midLine = !strings.HasSuffix(text, "\n")
		fmt.Fprint(p.w, printable.Text(text))
	}
	if t.ended = s.State.Ended(); t.ended {
		p.end(s)
	}
}

// end tells how a step ended.
func (p *stepPrinter) end(s cove.Step) {
	p.endLine()
	p.last = ""
	line := fmt.Sprintf("-- %s %s", printable.Line(string(s.Key)), printable.Line(string(s.State)))
	if d := stepDuration(s); d != "" {
		line += " in " + d
	}
	if detail := cmp.Or(s.Error, s.Detail); detail != "" {
		line += ": " + printable.Lines(detail)
	}
	fmt.Fprintln(p.w, line)
	if s.Warning != "" {
		fmt.Fprintf(p.w, "-- warning: %s\n", printable.Lines(s.Warning))
	}
	if s.Hint != "" {
		fmt.Fprintf(p.w, "   hint: %s\n", printable.Lines(s.Hint))
	}
}

// endLine ends a line of output that has no end yet.
func (p *stepPrinter) endLine() {
	if p.midLine {
		fmt.Fprintln(p.w)
	}
	p.midLine = false
}
