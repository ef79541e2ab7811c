package acp

import (
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Event is a line of Run's report on an agent. Fields that a Type does not name are empty;
// texts are cut.
type Event struct {
	// Type is one of
	//
	//	session             the session has begun: SessionID, Agent, Loaded
	//	text, thought       whole lines, if possible, of what the agent says, or thinks: Text
	//	tool_call           a tool is called: ID, Title, Kind, Status, Text (its input), Paths
	//	tool_update         what became of it: ID, Status, Title, Text (its output), Paths
	//	plan                the agent's own plan: Entries
	//	usage               Usage, so far
	//	update              another update of the protocol's: Title
	//	permission_request  a person is asked: ID, Call (the tool's ID), Title, Kind, Text (the tool's input), Left, Paths, Options
	//	permission          a request was decided on: ID, Title, Status (allowed, denied, cancelled), Option
	//	notice              what the agent did wrong: Text
	//	result              the last line: StopReason, or Error; SessionID, Usage
	Type string `json:"type"`

	ID         string   `json:"id,omitempty"`
	Call       string   `json:"call,omitempty"`
	SessionID  string   `json:"session_id,omitempty"`
	Agent      string   `json:"agent,omitempty"` // its name and version
	Loaded     bool     `json:"loaded,omitempty"`
	Once       bool     `json:"once,omitempty"` // of a session: the agent can't continue it later
	Text       string   `json:"text,omitempty"`
	Left       int      `json:"left,omitempty"` // bytes that are left out of Text
	Title      string   `json:"title,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Status     string   `json:"status,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Entries    []Entry  `json:"entries,omitempty"`
	Options    []Option `json:"options,omitempty"`
	Option     string   `json:"option,omitempty"`
	StopReason string   `json:"stop_reason,omitempty"`
	Error      string   `json:"error,omitempty"`
	Usage      *Usage   `json:"usage,omitempty"`
}

// Entry is a part of an agent's plan.
type Entry struct {
	Content string `json:"content"`
	Status  string `json:"status"` // pending, in_progress, completed
}

// Option is one of the answers to a request for permission.
type Option struct {
	ID   string `json:"id"` // a number, from 1: the agent's own may be anything
	Name string `json:"name"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
}

// Usage is the use of its model, as the agent reports it.
type Usage struct {
	InputTokens  int64   `json:"input_tokens,omitempty"`
	OutputTokens int64   `json:"output_tokens,omitempty"`
	CostUSD      float64 `json:"cost_usd,omitempty"`
}

// Answer is a line of Run's input: a person's choice.
type Answer struct {
	ID     string `json:"id"`     // of the permission_request
	Option string `json:"option"` // the Option's ID
}

const (
	maxText    = 8 << 10 // bytes of a text of an event
	maxName    = 500     // of a title, an id, a path
	maxList    = 50
	textPause  = time.Second // after which a part of a line is told
	cutMark    = "…"
	typeResult = "result"
)

// short cuts a text at a character.
func short(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + cutMark
}

// events writes events. It joins the pieces of what an agent says to lines.
type events struct {
	w io.Writer

	mu    sync.Mutex
	kind  string // of held: text or thought
	held  strings.Builder
	timer *time.Timer
	err   error
}

// add writes an event, after what is held.
func (e *events) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flush()
	e.write(ev)
}

func (e *events) write(ev Event) {
	_, err := io.WriteString(e.w, encode(ev)+"\n")
	if e.err == nil {
		e.err = err
	}
}

// say takes a piece of a text.
func (e *events) say(kind, piece string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kind != e.kind {
		e.flush()
		e.kind = kind
	}
	e.held.WriteString(piece)
	if i := strings.LastIndexByte(piece, '\n'); i >= 0 || e.held.Len() > maxText {
		all := e.held.String()
		n := len(all)
		if i >= 0 && e.held.Len() <= maxText {
			n = len(all) - len(piece) + i + 1
		}
		rest := all[n:]
		e.held.Reset()
		e.held.WriteString(all[:n])
		e.flush()
		e.kind = kind
		e.held.WriteString(rest)
	}
	if e.held.Len() == 0 {
		return
	}
	if e.timer == nil {
		e.timer = time.AfterFunc(textPause, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.flush()
		})
	} else {
		e.timer.Reset(textPause)
	}
}

// flush writes what is held.
func (e *events) flush() {
	text := strings.Trim(e.held.String(), "\n")
	e.held.Reset()
	for text != "" {
		n := len(text)
		if n > maxText {
			for n = maxText; !utf8.RuneStart(text[n]); n-- {
			}
		}
		e.write(Event{Type: e.kind, Text: strings.ToValidUTF8(text[:n], "\uFFFD")})
		text = text[n:]
	}
}

// close writes what is held, for the last time.
func (e *events) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flush()
	if e.timer != nil {
		e.timer.Stop()
	}
	return e.err
}
