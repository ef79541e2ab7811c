package loop

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// An Event is something that a loop does. They are numbered from 1.
type Event struct {
	Seq  int64  `json:"seq"`
	Type string `json:"type"` // start, text, tool_start, tool_result, tool_error, usage, retry, trim, result
	Text string `json:"text,omitempty"`

	// start
	Session string   `json:"session_id,omitempty"`
	Model   string   `json:"model,omitempty"`
	Tools   []string `json:"tools,omitempty"`

	// tool_start, tool_result, tool_error; Text is what it said, or of a long input the start
	ID    string          `json:"id,omitempty"`
	Tool  string          `json:"tool,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`
	Code  string          `json:"code,omitempty"`

	// retry; Text says why. A tool's WaitMS is how long it took.
	Attempt int   `json:"attempt,omitempty"` // that comes
	WaitMS  int64 `json:"ms,omitempty"`
	Status  int   `json:"status,omitempty"`

	// usage, of one turn; the cost is that of all so far
	Turn    int64    `json:"turn,omitempty"`
	Usage   *Usage   `json:"usage,omitempty"`
	CostUSD *float64 `json:"cost_usd,omitempty"`

	Result *Result `json:"result,omitempty"`
}

// Bounds on what an event shows: a model may say anything.
const (
	maxShown = 4 << 10   // of an input or a result
	maxSaid  = 256 << 10 // of the model's text
	maxName  = 200       // of a call's id, or its tool
)

func startEvent(c Call, shown string) Event {
	e := Event{Type: "tool_start", ID: c.ID, Tool: shown, Input: c.Input}
	if len(c.Input) > maxShown {
		e.Input, e.Text = nil, headAndTail(string(c.Input), maxShown)
	}
	return e
}

// events numbers and writes them. The first error stands.
type events struct {
	mu  sync.Mutex
	w   io.Writer
	seq int64
	err error
}

func (s *events) emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	e.Seq, e.ID, e.Tool = s.seq, headAndTail(e.ID, maxName), headAndTail(e.Tool, maxName)
	line, err := json.Marshal(e)
	if err == nil && s.w != nil && s.err == nil {
		_, err = s.w.Write(append(line, '\n'))
	}
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("write an event: %w", err)
	}
}

// paragraphs hands on text that comes in pieces, as soon as a paragraph is whole.
type paragraphs struct {
	emit func(string)
	held strings.Builder
}

func (p *paragraphs) add(piece string) {
	if piece == "" {
		return
	}
	p.held.WriteString(piece)
	if i := strings.LastIndex(p.held.String(), "\n\n"); i >= 0 {
		text := p.held.String()
		p.held.Reset()
		p.held.WriteString(text[i+2:])
		p.say(text[:i])
	}
}

func (p *paragraphs) flush() { p.say(p.held.String()); p.held.Reset() }

func (p *paragraphs) say(text string) {
	if text = strings.Trim(text, "\n"); strings.TrimSpace(text) != "" {
		p.emit(text)
	}
}

// headAndTail is a text without its middle, if it is longer than n bytes.
func headAndTail(text string, n int) string {
	if len(text) <= n {
		return text
	}
	head, tail := n*2/3, len(text)-n/3
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[%d bytes are left out here]\n%s", text[:head], tail-head, text[tail:])
}
