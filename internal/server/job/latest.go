package job

import (
	"cmp"
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
)

// maxSaid bounds what is kept of the last line of a job, in bytes.
const maxSaid = 200

// teller keeps what a job has told last, of the log that its follower reads. Its secrets are masked
// there already.
type teller struct {
	reader agents.Reader // nil: the agent is not known here
	total  bool          // the usage is that of an earlier job, too
	latest cove.JobLatest
}

// newTeller begins with what the store has of the log.
func newTeller(ctx context.Context, jobs *store.Jobs, job cove.Job) *teller {
	t := &teller{}
	if job.Latest != nil {
		t.latest = *job.Latest
	}
	t.latest.Step = "" // the rows of steps have it
	if reader, err := readLog(ctx, jobs, job); err == nil {
		t.reader = reader
		_, t.total = reader.(agents.Totaller)
		t.total = t.total && job.ResumeOf != ""
	}
	return t
}

// take takes in new events of the log.
func (t *teller) take(events []cove.JobEvent) *cove.JobLatest {
	for _, ev := range events {
		if said := t.said(ev); said != "" {
			t.latest.Said = said
		}
	}
	if t.reader == nil || t.total {
		return &t.latest
	}
	if _, usage := t.reader.Judge(cove.JobEnd{Phase: "run"}); usage != nil {
		usage = bounded(usage)
		t.latest.Turns, t.latest.CostUSD = max(usage.Turns, t.latest.Turns), max(usage.CostUSD, t.latest.CostUSD)
	}
	return &t.latest
}

// said is the last line that an event has; empty: it says nothing.
func (t *teller) said(ev cove.JobEvent) (said string) {
	var means []agents.Event
	if t.reader != nil {
		means = t.reader.Event(ev)
	}
	for _, e := range means {
		switch e.Kind {
		case agents.KindText, agents.KindStep, agents.KindAsk, agents.KindResult, agents.KindNotice, agents.KindRetry:
			said = cmp.Or(lastLine(e.Text), said)
		case agents.KindToolStart:
			said = cmp.Or(lastLine(strings.TrimSpace(e.Tool+" "+e.Text)), said)
		}
	}
	if means == nil && ev.Type == "output" {
		said = lastLine(ev.Text)
	}
	return said
}

// lastLine is the last line of a text that is not empty, without control characters.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexAny(text, "\r\n")+1:]
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= maxSaid {
		return text
	}
	n := maxSaid - len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
