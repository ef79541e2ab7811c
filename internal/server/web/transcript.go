package web

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

// Bounds on what a page shows of a job's log.
const (
	window    = 300      // events, the newest
	earlier   = 500      // events that one click more shows
	maxPart   = 32 << 10 // bytes of one input, answer or text
	maxRows   = 300      // lines of it
	maxParts  = 50       // parts of it
	maxMeant  = 50       // things that one line of an agent's means
	maxOutput = 200      // lines that stand together
	maxCalls  = 1000     // whose answers are awaited
)

// entry is one thing that happened in a job, as its page shows it.
type entry struct {
	ID     string // of the element
	Seq    int64
	At     time.Time
	Kind   string // state, said, thought, call, answer, ask, step, notice, input, output, result, end
	Title  string
	Failed bool
	Input  []part
	Answer *answerView // of a call; nil: it has none yet
	lines  int
	bytes  int
}

// answerView is how a call ended.
type answerView struct {
	ID     string // of the element
	Seq    int64
	Failed bool
	Parts  []part
	Silent string // why it has none; empty: nobody knows
}

// part is a text of an entry.
type part struct {
	Kind  string // prose, code, terminal, diff, field
	Name  string // of a field, or a file
	Text  string
	Segs  []segment // of a terminal
	Lines []diffRow // of a diff
	Cut   int       // bytes that are left out
	More  int       // lines that are
}

// diffRow is a line of a small diff.
type diffRow struct{ Class, Text string }

// entryChange is a change of a transcript.
type entryChange struct {
	entry  *entry
	fresh  bool      // it is new
	answer bool      // it got its answer
	more   []segment // it got more output
}

// transcript makes entries of a job's events, in order.
type transcript struct {
	reader  agents.Reader // nil: an agent that this cove does not know
	entries []*entry
	calls   map[string]*entry // that have no answer yet
	last    *entry
	keep    bool // entries are kept
}

func newTranscript(job cove.Job, keep bool) *transcript {
	t := &transcript{calls: map[string]*entry{}, keep: keep}
	if known, err := agents.Of(job.Agent, job.Definition); err == nil {
		t.reader = known.Read()
	}
	return t
}

// add takes in an event, and returns what has changed by it.
func (t *transcript) add(ev cove.JobEvent) []entryChange {
	var meant []agents.Event
	if t.reader != nil {
		meant = t.reader.Event(ev)
	}
	var out []entryChange
	if meant != nil {
		for i, m := range meant[:min(len(meant), maxMeant)] {
			out = append(out, t.agent(ev, i, m)...)
		}
		if more := len(meant) - maxMeant; more > 0 {
			e := &entry{ID: fmt.Sprintf("e-%d-more", ev.Seq), Seq: ev.Seq, At: ev.Time, Kind: "notice", Title: fmt.Sprintf("… and %d more, which cove job events has", more)}
			out = append(out, t.put(e)...)
		}
		return out
	}
	e := &entry{ID: fmt.Sprintf("e-%d", ev.Seq), Seq: ev.Seq, At: ev.Time}
	switch ev.Type {
	case "output":
		return t.output(e, ev)
	case "event":
		e.Kind, e.Input = "notice", []part{code(ev.Text)}
	case "state":
		e.Kind, e.Title = "state", string(ev.State)
	case "notice":
		e.Kind, e.Input = "notice", []part{code(ev.Text)}
	case "step":
		if ev.Step == nil || ev.Step.Warning == "" {
			return nil
		}
		e.Kind, e.Title = "notice", ev.Step.Warning
	case "input":
		e.Kind, e.Input = "input", prose(ev.Text)
	case "exit":
		if ev.ExitCode != nil && *ev.ExitCode == 0 && ev.Reason == "" && ev.Text == "" {
			return nil // the end says it
		}
		e.Kind, e.Title = "notice", exitText(ev)
		if e.Failed = ev.ExitCode != nil && *ev.ExitCode != 0; ev.Text != "" {
			e.Input = []part{screen(ev.Text)}
		}
	case "end":
		e.Kind, e.Title, e.Failed = "end", endText(ev), ev.Outcome == nil || ev.Outcome.Kind != agents.Success
	default:
		return nil
	}
	return t.put(e)
}

func exitText(ev cove.JobEvent) string {
	text := "The agent has ended"
	if ev.ExitCode != nil {
		text += fmt.Sprintf(" with code %d", *ev.ExitCode)
	}
	if ev.Reason != "" {
		text += ": " + ev.Reason
	}
	return text
}

func endText(ev cove.JobEvent) string {
	switch {
	case ev.Outcome != nil && ev.Outcome.Reason != "":
		return ev.Outcome.Kind + ": " + ev.Outcome.Headline()
	case ev.Outcome != nil:
		return ev.Outcome.Kind
	case ev.Result != nil && ev.Result.Reason != "":
		return "ended: " + ev.Result.Reason
	}
	return "ended"
}

func (t *transcript) put(e *entry) []entryChange {
	e.Input = bounded(e.Input)
	t.last = e
	if t.keep {
		t.entries = append(t.entries, e)
	}
	return []entryChange{{entry: e, fresh: true}}
}

// output adds a line to those before it, if these are output, too.
func (t *transcript) output(e *entry, ev cove.JobEvent) []entryChange {
	end := "\n"
	if ev.Cut {
		end = ""
	}
	text := ev.Text + end
	p := screen(text)
	if p.Cut > 0 {
		p.Segs = append(p.Segs, segment{"td", fmt.Sprintf("\n… %d bytes are left out here; cove job events has them all\n", p.Cut)})
	}
	if last := t.last; last != nil && last.Kind == "output" && last.lines < maxOutput && last.bytes < maxPart && len(p.Segs) < maxRows/10 {
		last.lines++
		last.bytes += len(ev.Text)
		if len(p.Segs) > 1 { // colours are elements of the page, too
			last.lines += len(p.Segs)
		}
		if t.keep {
			last.Input[0].Segs = append(last.Input[0].Segs, p.Segs...)
		}
		return []entryChange{{entry: last, more: p.Segs}}
	}
	e.Kind, e.Input, e.lines, e.bytes = "output", []part{p}, max(1, len(p.Segs)), len(ev.Text)
	return t.put(e)
}

// agent takes in what an agent's line means.
func (t *transcript) agent(ev cove.JobEvent, i int, m agents.Event) []entryChange {
	e := &entry{ID: fmt.Sprintf("e-%d-%d", ev.Seq, i), Seq: ev.Seq, At: ev.Time, Failed: m.Failed}
	switch m.Kind {
	case agents.KindText:
		e.Kind, e.Input = "said", prose(m.Text)
	case agents.KindThought:
		e.Kind, e.Input = "thought", prose(m.Text)
	case agents.KindToolStart:
		e.Kind, e.Title = "call", m.Tool
		e.Input = input(m)
		if m.ID != "" {
			e.ID = "c-" + hashID(m.ID)
		}
		if len(t.calls) < maxCalls {
			t.calls[m.ID] = e
		}
	case agents.KindToolEnd:
		return t.answered(e, m)
	case agents.KindDenied:
		e.Kind, e.Title, e.Failed = "notice", "It was not allowed: "+m.Text, true
	case agents.KindAsk:
		e.Kind, e.Title = "ask", m.Text
		if m.Full != "" && !m.Repeats {
			e.Input = input(m)
		}
		if m.Missing != "" {
			e.Input = append(e.Input, part{Kind: "prose", Text: m.Missing})
		}
	case agents.KindStep:
		e.Kind, e.Title = "step", m.Text
	case agents.KindStepEnd:
		e.Kind, e.Title = "notice", "The step ended: "+m.Text
	case agents.KindResult:
		e.Kind, e.Input = "result", prose(m.Text)
	case agents.KindRetry:
		e.Kind, e.Title = "notice", "The model is asked again: "+m.Text
	default:
		e.Kind, e.Title = "notice", m.Text
	}
	return t.put(e)
}

// answered gives a call its answer. If the transcript does not have the call, the page may
// have it.
func (t *transcript) answered(e *entry, m agents.Event) []entryChange {
	a := &answerView{Seq: e.Seq, Failed: m.Failed, Parts: bounded(answerParts(m)), Silent: m.Silent}
	call, ok := t.calls[m.ID]
	delete(t.calls, m.ID)
	switch {
	case ok:
		a.ID, call.Answer = call.ID+"-a", a
		return []entryChange{{entry: call, answer: true}}
	case m.ID != "" && !t.keep:
		id := "c-" + hashID(m.ID)
		a.ID = id + "-a"
		return []entryChange{{entry: &entry{ID: id, Answer: a}, answer: true}}
	}
	a.ID = e.ID + "-a"
	e.Kind, e.Answer = "answer", a
	return t.put(e)
}

func hashID(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// shorten leaves the beginning of a text, and says how many bytes and lines it leaves out.
func shorten(s string) (short string, bytes, lines int) {
	at := 0
	for range maxRows {
		i := strings.IndexByte(s[at:], '\n')
		if i < 0 {
			at = len(s)
			break
		}
		at += i + 1
	}
	if short = strings.TrimSuffix(cut(s[:at], maxPart), "\n"); at == len(s) && at <= maxPart {
		return s, 0, 0
	}
	bytes = len(s) - min(at, maxPart)
	return short, bytes, strings.Count(s[len(s)-bytes:], "\n")
}

// bounded cuts the parts of an entry to what a page shows of an entry.
func bounded(parts []part) []part {
	rows, size := maxRows, maxPart
	for i := range parts {
		p := &parts[i]
		if i == maxParts {
			for _, more := range parts[i:] {
				parts[i-1].Cut += len(more.Text)
				parts[i-1].More += 1 + len(more.Lines)
			}
			return parts[:i]
		}
		if len(p.Text) > size {
			p.Cut += len(p.Text) - size
			p.Text = cut(p.Text, size)
		}
		size -= min(size, len(p.Text))
		n := 0
		for n < min(len(p.Lines), rows) && len(p.Lines[n].Text) <= size {
			size -= len(p.Lines[n].Text)
			n++
		}
		p.More += len(p.Lines) - n
		for _, l := range p.Lines[n:] {
			p.Cut += len(l.Text) + 1
		}
		p.Lines = p.Lines[:n]
		rows -= n
	}
	return parts
}

func code(s string) part {
	s, left, lines := shorten(s)
	return part{Kind: "code", Text: s, Cut: left, More: lines}
}

func screen(s string) part {
	s, left, lines := shorten(s)
	return part{Kind: "terminal", Segs: terminal(s), Cut: left, More: lines}
}

// prose divides what an agent said into text and blocks of code.
func prose(s string) []part {
	s, left, lines := shorten(strings.TrimSpace(s))
	var out []part
	for i, block := range strings.Split(s, "```") {
		switch {
		case strings.TrimSpace(block) == "":
		case i%2 == 0:
			out = append(out, part{Kind: "prose", Text: strings.Trim(block, "\n")})
		default:
			name, body, ok := strings.Cut(block, "\n")
			if !ok {
				name, body = "", block
			}
			if name == "diff" || looksLikeDiff(body) {
				out = append(out, part{Kind: "diff", Lines: rows(body)})
			} else {
				out = append(out, part{Kind: "code", Name: name, Text: strings.TrimRight(body, "\n")})
			}
		}
	}
	if left > 0 && len(out) > 0 {
		out[len(out)-1].Cut, out[len(out)-1].More = left, lines
	}
	return out
}

func looksLikeDiff(s string) bool {
	return strings.HasPrefix(s, "diff --git ") || strings.HasPrefix(s, "--- ") && strings.Contains(s, "\n+++ ") || strings.HasPrefix(s, "@@ ") ||
		strings.HasPrefix(s, "*** Begin Patch")
}

// rows are the lines of a diff, with their classes.
func rows(s string) (all []diffRow) {
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		class := ""
		switch {
		case strings.HasPrefix(line, "+++") || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "diff ") || strings.HasPrefix(line, "***"):
			class = "meta"
		case strings.HasPrefix(line, "@@"):
			class = "meta"
		case strings.HasPrefix(line, "+"):
			class = "add"
		case strings.HasPrefix(line, "-"):
			class = "del"
		}
		all = append(all, diffRow{class, line})
	}
	return all
}

// marked puts a sign before each line of a text.
func marked(sign, class, s string) (all []diffRow) {
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		all = append(all, diffRow{class, sign + line})
	}
	return all
}

// input is what a tool is asked. Agents have their own names for the same.
func input(m agents.Event) []part {
	full, left, lines := shorten(m.Full)
	if full == "" {
		full = m.Text
	}
	out := inputParts(full)
	if left > 0 {
		out[len(out)-1].Cut, out[len(out)-1].More = left, lines
	}
	return out
}

// inputParts are the parts of a tool's input, as transcripts and questions show them.
func inputParts(full string) (out []part) {
	for _, p := range agents.Parts(full) {
		switch p.Kind {
		case agents.PartCommand:
			out = append(out, part{Kind: "terminal", Segs: []segment{{"td", "$ "}, {"", wholeText(p.Text)}}})
		case agents.PartChange:
			var lines []diffRow
			if p.Before != "" {
				lines = marked("-", "del", p.Before)
			}
			if p.Text != "" {
				lines = append(lines, marked("+", "add", p.Text)...)
			}
			out = append(out, part{Kind: "diff", Name: p.Name, Lines: lines})
		case agents.PartPatch:
			out = append(out, part{Kind: "diff", Lines: rows(p.Text)})
		case agents.PartField:
			out = append(out, part{Kind: "field", Name: p.Name, Text: p.Text})
		default:
			if looksLikeDiff(p.Text) {
				out = append(out, part{Kind: "diff", Lines: rows(p.Text)})
			} else {
				out = append(out, part{Kind: "code", Text: p.Text})
			}
		}
	}
	return out
}

// answerParts are what a tool has answered.
func answerParts(m agents.Event) []part {
	full := m.Full
	if full == "" {
		full = m.Text
	}
	switch {
	case strings.TrimSpace(full) == "":
		return nil
	case looksLikeDiff(full):
		s, left, lines := shorten(full)
		return []part{{Kind: "diff", Lines: rows(s), Cut: left, More: lines}}
	}
	return []part{screen(full)}
}
