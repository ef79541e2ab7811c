// Package loop is cove's own agent. It asks a model what to do, carries out the tool calls
// that come back, and tells the model their results. It ends when the work is done or a limit
// is reached. A model's text is never carried out; only a call in the form of its API is.
//
// It knows nothing of sprites or jobs: it only needs a Provider and a Toolbox.
package loop

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// A Toolbox carries out calls: a *tools.Server in this program's own sprite, a *tools.Session
// from outside of a sprite. If it has a method Ended, as a Session has, and that reports true,
// the loop ends: no further call will be carried out.
type Toolbox interface {
	// Offers are the tools that may be called.
	Offers() []tools.Tool

	// Call carries out one call. The end of ctx ends it. Many goroutines may make
	// calls at once. Its errors are *fail.Error.
	Call(ctx context.Context, tool string, input json.RawMessage) (*tools.Result, error)
}

// Limits end a loop, or an attempt to get an answer. For the first four, zero means no limit.
type Limits struct {
	Turns int           // answers of the model
	Time  time.Duration // of all of it
	USD   float64       // spent; needs a Price
	Stall time.Duration // of silence in an answer, which is asked for again then

	Context   int64         // tokens, about, that a request may have; 0: DefaultContext
	Output    int64         // tokens that an answer may have; 0: DefaultOutput
	Attempts  int           // for one answer; 0: DefaultAttempts
	FirstWait time.Duration // before the second attempt, of which each waits twice as long; 0: a second
}

// Defaults of Limits.
const (
	DefaultContext  = 160_000
	DefaultOutput   = 16_000
	DefaultAttempts = 8
)

// A Loop is an agent. Its fields are set before Run, which is called once.
type Loop struct {
	Provider Provider // required
	Model    string   // as the provider calls it
	Tools    Toolbox  // required
	MCP      []MCPServer
	Dir      string    // that the model is told to be in
	Events   io.Writer // gets an Event a line
	Limits   Limits
	Price    *Price   // nil: it is not known
	Session  *Session // nil: nothing is kept

	box    *withHosts // Tools, and those of MCP
	events events
	spent  Usage
	turns  int64
	ratio  float64 // tokens a byte
	msgs   []Message
}

// Outcome is how a loop ended.
type Outcome string

// The outcomes. All but the first are failures.
const (
	Done       Outcome = "done"       // the model says so, or has no more calls
	Incomplete Outcome = "incomplete" // the model says that it could not do it
	MaxTurns   Outcome = "max_turns"
	MaxCost    Outcome = "max_cost"
	TimedOut   Outcome = "timeout"
	Cancelled  Outcome = "cancelled"
	Refused    Outcome = "refused"   // the model does not do that
	Unanswered Outcome = "api_error" // its API does not answer
	ToolsGone  Outcome = "tools_gone"
	NoServer   Outcome = "mcp_error" // of MCP, one is not there, or lacks a tool
)

// Result is the result of a loop.
type Result struct {
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"` // the model's last words, or what went wrong
	Session string  `json:"session_id"`
	Stop    Stop    `json:"stop_reason,omitempty"` // of the last answer
	Turns   int64   `json:"turns"`
	Usage
	CostUSD *float64 `json:"cost_usd,omitempty"` // nil: prices are not known
}

var (
	errTime = errors.New("its time is up")
	errCost = errors.New("it would cost more than it may")
)

//go:embed system.md
var system string

// Run carries a prompt out. The end of ctx cancels what is under way. An error means that the
// events or the session could not be written.
func (l *Loop) Run(ctx context.Context, prompt string) (Result, error) {
	l.events.w = l.Events
	l.Limits.Context = cmp.Or(l.Limits.Context, DefaultContext)
	l.Limits.Output = cmp.Or(l.Limits.Output, DefaultOutput)
	l.Limits.Attempts = cmp.Or(l.Limits.Attempts, DefaultAttempts)
	l.Limits.FirstWait = cmp.Or(l.Limits.FirstWait, firstWait)
	if l.Session == nil {
		l.Session = &Session{ID: newID()}
	}
	l.msgs = append([]Message(nil), l.Session.Messages...)
	if l.Limits.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.Limits.Time, errTime)
		defer cancel()
	}
	r := l.begin(ctx, prompt)
	r.Session, r.Turns, r.Usage = l.Session.ID, l.turns, l.spent
	if r.Text = headAndTail(r.Text, maxSaid); r.Outcome == MaxCost {
		r.Text = fmt.Sprintf("it would cost more than %g dollars", l.Limits.USD)
	}
	if l.Price != nil {
		r.CostUSD = new(l.Price.of(l.spent))
	}
	l.emit(Event{Type: "result", Result: &r})
	return r, errors.Join(l.events.err, l.Session.err)
}

// begin makes the tools ready, and takes turns.
func (l *Loop) begin(ctx context.Context, prompt string) Result {
	box, err := openHosts(ctx, l.Tools, l.MCP)
	if err != nil {
		l.emit(Event{Type: "start", Session: l.Session.ID, Model: l.Model})
		if ctx.Err() != nil {
			return failure(ctx, err, Answer{})
		}
		return Result{Outcome: NoServer, Text: err.Error()}
	}
	defer box.close()
	l.box = box
	var names []string
	for _, t := range l.offers() {
		names = append(names, box.shown(t.Name))
	}
	l.emit(Event{Type: "start", Session: l.Session.ID, Model: l.Model, Tools: names})
	l.add(l.opening(prompt))
	return l.run(ctx)
}

// opening is the message that begins the work. If a session ended in the middle of calls, the
// message also answers these.
func (l *Loop) opening(prompt string) Message {
	m := Message{Text: prompt}
	if n := len(l.msgs); n > 0 && l.msgs[n-1].Model {
		for _, c := range l.msgs[n-1].Calls {
			m.Results = append(m.Results, ToolResult{ID: c.ID, Tool: c.Tool, Failed: true, Text: "It is not known what became of this call: the session was interrupted."})
		}
	}
	return m
}

// run takes turns.
func (l *Loop) run(ctx context.Context) Result {
	var last Answer
	for l.Limits.Turns == 0 || l.turns < int64(l.Limits.Turns) {
		a, err := l.ask(ctx)
		if err != nil {
			return failure(ctx, err, last)
		}
		last = a
		l.turns++
		l.spent.Input += a.Usage.Input
		l.spent.Output += a.Usage.Output
		u := Event{Type: "usage", Turn: l.turns, Usage: &a.Usage}
		if l.Price != nil {
			u.CostUSD = new(l.Price.of(l.spent))
		}
		l.emit(u)
		if a.Message.Native != nil {
			l.add(a.Message)
		}
		switch {
		case len(a.Message.Calls) > 0 && l.Limits.USD > 0 && l.Price != nil && l.Price.of(l.spent) >= l.Limits.USD:
			return failure(ctx, errCost, a)
		case a.Stop == StopRefused:
			return Result{Outcome: Refused, Stop: a.Stop, Text: cmp.Or(a.Message.Text, "the model refuses this")}
		case len(a.Message.Calls) == 0 && a.Stop == StopEnd:
			return Result{Outcome: Done, Stop: a.Stop, Text: a.Message.Text}
		case len(a.Message.Calls) == 0 && a.Message.Native == nil:
			l.add(Message{Text: "Your last answer was empty or could not be read. Go on."})
			continue
		case len(a.Message.Calls) == 0:
			l.add(Message{Text: "Your last answer was cut off. Go on where it ended."})
			continue
		}
		results, end := l.carryOut(ctx, a)
		l.add(Message{Results: results})
		switch {
		case end != nil:
			end.Stop = a.Stop
			return *end
		case ctx.Err() != nil:
			return failure(ctx, ctx.Err(), a)
		}
	}
	return Result{Outcome: MaxTurns, Stop: last.Stop, Text: "stopped after " + printable.Count(l.turns, "turn") + ", the most it may take"}
}

// failure is the result of a loop that did not end by itself.
func failure(ctx context.Context, err error, last Answer) Result {
	err = causeOf(ctx, err)
	r := Result{Outcome: Unanswered, Stop: last.Stop, Text: err.Error()}
	switch {
	case errors.Is(err, errTime):
		r.Outcome = TimedOut
	case errors.Is(err, errCost):
		r.Outcome = MaxCost
	case ctx.Err() != nil:
		r.Outcome, r.Text = Cancelled, "stopped"
	}
	return r
}

// ask asks until there is an answer.
func (l *Loop) ask(ctx context.Context) (Answer, error) {
	l.fitImages()
	l.fit(ctx, l.Limits.Context)
	shrunk := false
	for n := 2; ; n++ {
		a, err := l.attempt(ctx)
		if err == nil {
			return a, nil
		}
		failed, ok := errors.AsType[*APIError](err)
		if !ok || ctx.Err() != nil {
			return a, causeOf(ctx, err)
		}
		if failed.tooLong() && !shrunk {
			shrunk = true
			if l.fit(ctx, l.size()/2) {
				continue
			}
		}
		if !failed.Retryable() && l.leaveOutImages(0, 0, "because the model's API has refused a request with it: "+headAndTail(failed.Error(), small)) {
			continue
		}
		wait, ok := l.Limits.wait(failed, n)
		if !ok {
			return a, err
		}
		l.emit(Event{Type: "retry", Attempt: n, WaitMS: wait.Milliseconds(), Status: failed.Status, Text: failed.Error()})
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
}

// bytesPerToken is the approximate ratio for text.
const bytesPerToken = 4

// attempt asks once.
func (l *Loop) attempt(ctx context.Context) (Answer, error) {
	ctx, x, end := begin(ctx, l.Limits.Stall)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	text := paragraphs{emit: func(s string) { l.emit(Event{Type: "text", Text: headAndTail(s, maxSaid)}) }}
	var said, used Usage // by the API; and at least
	made := 0
	a, err := l.Provider.Ask(ctx, l.request(), func(p Piece) {
		if p.Usage != nil {
			said = *p.Usage
		}
		text.add(p.Text)
		made += p.Bytes
		used = Usage{Input: said.Input, Output: max(said.Output, int64(made/bytesPerToken))}
		if l.over(used) {
			cancel(errCost)
		}
	})
	text.flush()
	if err == nil {
		l.learn(a.Usage)
		return a, nil
	}
	l.spent.Input += used.Input // what broke off has a price, too
	l.spent.Output += used.Output
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) {
		return a, cause
	} else if cause != nil {
		return a, lost(cause)
	}
	if e, ok := errors.AsType[*APIError](err); ok {
		return a, x.complete(e)
	}
	return a, err
}

// over reports whether the loop's cost, with an answer that has used so much, exceeds the
// limit.
func (l *Loop) over(u Usage) bool {
	u.Input += l.spent.Input
	u.Output += l.spent.Output
	return l.Limits.USD > 0 && l.Price != nil && l.Price.of(u) > l.Limits.USD
}

func (l *Loop) request() Request {
	return Request{
		Model: l.Model, System: fmt.Sprintf(system, l.Dir), Messages: l.msgs, Tools: l.offers(), MaxOutput: l.Limits.Output,
	}
}

func (l *Loop) offers() []tools.Tool { return append(l.box.Offers(), finishTool) }

func (l *Loop) add(m Message) {
	l.msgs = append(l.msgs, m)
	l.Session.add(m)
}

// emit writes an event. Several goroutines may.
func (l *Loop) emit(e Event) { l.events.emit(e) }

// parallel is how many calls are carried out at once, of those that change nothing.
const parallel = 8

// carryOut carries out an answer's calls, in order. Consecutive calls that change nothing run
// at once. A result that is not nil ends the loop.
func (l *Loop) carryOut(ctx context.Context, a Answer) ([]ToolResult, *Result) {
	calls := a.Message.Calls
	results := make([]ToolResult, len(calls))
	var end *Result
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i, c := range calls {
		results[i] = ToolResult{ID: c.ID, Tool: c.Tool, Failed: true}
		switch {
		case ctx.Err() != nil:
			results[i].Text = "This was not begun."
			continue
		case end != nil:
			results[i].Text = "This was not begun: the work had been finished."
			continue
		case a.Stop == StopLength || a.Stop == StopMalformed:
			results[i].Text = "Your answer was cut off: none of its calls was carried out. Make them again, smaller."
			continue
		case c.Tool == finishTool.Name:
			wg.Wait()
			end = finish(c, &results[i])
			continue
		}
		if !readOnly[c.Tool] {
			wg.Wait()
			l.call(ctx, c, &results[i])
			continue
		}
		slots <- struct{}{}
		wg.Go(func() { defer func() { <-slots }(); l.call(ctx, c, &results[i]) })
	}
	wg.Wait()
	for _, r := range results {
		if end == nil && r.Text == goneText {
			end = &Result{Outcome: ToolsGone, Text: "the sandbox, or its tools, are gone"}
		}
	}
	return results, end
}
