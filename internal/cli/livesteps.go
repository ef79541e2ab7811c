package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// stepView shows the preparation of a job as it happens. Each step that has ended is a line.
// Below them is a line for the step that runs; on a terminal, it is drawn again and again.
type stepView struct {
	bar   *progress
	w     io.Writer
	width int // of the line that is drawn

	steps   map[cove.StepKey]cove.Step
	ended   map[cove.StepKey]bool
	running cove.StepKey

	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error // why there is no more to show; valid after wg.Wait
}

// startSteps shows the steps of a job until its preparation is over. The caller must call
// wait or stop. A nil view shows nothing.
func startSteps(ctx context.Context, inv *invocation, c *cove.Client, id string) *stepView {
	v := &stepView{bar: inv.newProgress("preparing", 0), w: inv.Err, width: terminalWidth(inv.Err)}
	ctx, v.cancel = context.WithCancel(ctx)
	v.wg.Go(func() { v.err = cove.Steps{Client: c}.Follow(ctx, id, v.news) })
	return v
}

// wait waits until the preparation is over, or ctx.
func (v *stepView) wait(ctx context.Context) error {
	if v == nil {
		return nil
	}
	defer context.AfterFunc(ctx, v.cancel)()
	v.wg.Wait()
	v.stop()
	return v.err
}

// stop ends the showing.
func (v *stepView) stop() {
	if v == nil {
		return
	}
	v.cancel()
	v.wg.Wait()
	if v.bar != nil {
		v.bar.Close()
		v.bar = nil
	}
}

// above calls print, which writes whole lines.
func (v *stepView) above(print func()) {
	if v == nil {
		print()
		return
	}
	v.bar.above(print)
}

const (
	usualWidth = 80
	timeWidth  = 12 // of the time that is shown after the text
)

func terminalWidth(w io.Writer) int {
	if f, ok := beneath(w).(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > timeWidth {
			return width - timeWidth
		}
	}
	return usualWidth - timeWidth
}

// news takes a change of the steps.
func (v *stepView) news(news cove.StepNews) error {
	if v.steps == nil {
		v.steps, v.ended = map[cove.StepKey]cove.Step{}, map[cove.StepKey]bool{}
	}
	if news.Snapshot != nil {
		for _, s := range news.Snapshot.Steps {
			v.step(s)
		}
	}
	if news.Step != nil {
		s, before := *news.Step, v.steps[news.Step.Key]
		if s.Attempt == before.Attempt {
			s.Output = before.Output
		}
		s.Output.Append(news.Text)
		v.step(s)
	}
	return nil
}

func (v *stepView) step(s cove.Step) {
	before := v.steps[s.Key]
	v.steps[s.Key] = s
	switch {
	case v.ended[s.Key]:
	case s.State.Ended():
		v.ended[s.Key] = true
		if v.running == s.Key {
			v.running = ""
			v.bar.begin("preparing")
		}
		v.bar.above(func() { fmt.Fprint(v.w, stepEndText(s)) })
	case s.State == cove.StepRunning && (v.running != s.Key || before.Attempt != s.Attempt):
		v.running = s.Key
		v.bar.begin(v.line(s))
	case s.State == cove.StepRunning:
		v.bar.say(v.line(s))
	}
}

// line says what a running step does: the last line of its output, or how far it is.
func (v *stepView) line(s cove.Step) string {
	said := strings.TrimRight(cmp.Or(s.Output.Tail, s.Output.Head), "\r\n \t")
	said = said[strings.LastIndexAny(said, "\r\n")+1:]
	text := printable.Line(string(s.Key))
	if said = cmp.Or(said, firstLine(s.Detail)); said != "" {
		text += ": " + printable.Line(said)
	}
	return clipped(text, v.width)
}

// clipped is a text of at most so many columns. East Asian characters have two.
func clipped(text string, width int) string {
	n := 0
	for i, r := range text {
		n++
		if r >= 0x1100 {
			n++
		}
		if n > width {
			return text[:i] + "…"
		}
	}
	return text
}

// stepEndText tells how a step ended. If the step failed, it has the last lines of its output.
// It is empty for a step that was not needed.
func stepEndText(s cove.Step) string {
	if s.State == cove.StepSkipped {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-18s %-10s %8s  %s\n", printable.Line(string(s.Key)), printable.Line(string(s.State)), stepDuration(s), printable.Line(firstLine(cmp.Or(s.Error, s.Detail))))
	if s.Warning != "" {
		fmt.Fprintf(&b, "  warning: %s\n", printable.Lines(s.Warning))
	}
	if s.State != cove.StepFailed {
		return b.String()
	}
	for line := range strings.Lines(lastOf(s.Output.String(), failedLines)) {
		fmt.Fprintf(&b, "| %s\n", printable.Line(strings.TrimRight(line, "\r\n")))
	}
	if s.Hint != "" {
		fmt.Fprintf(&b, "  hint: %s\n", printable.Lines(s.Hint))
	}
	return b.String()
}

// wantsSteps reports whether a push shows how its job is prepared: if it is asked to, and
// without being asked on a terminal.
func wantsSteps(inv *invocation, cmd *cobra.Command) bool {
	if inv.global.quiet || inv.global.json {
		return false
	}
	if f := cmd.Flags().Lookup("steps"); f != nil && f.Changed {
		return f.Value.String() == "true"
	}
	return isTerminal(inv.Err)
}

// prepared ends a push whose steps were shown. It returns an error if the job can't begin any more.
func prepared(ctx context.Context, c *cove.Client, id string, followed error) error {
	if ctx.Err() != nil {
		return leftJob(id)
	}
	job, err := c.Job(ctx, id)
	if err != nil {
		return cmp.Or(followed, err)
	}
	if job.State.Terminal() && job.State != cove.JobSucceeded {
		return fail.Newf(string(job.State), "cove job logs "+id, "job %s: %s", id, headline(outcomeText(job)))
	}
	return nil
}
