// Package modeltest is a scripted model server for tests: it speaks as much of
// the Anthropic Messages API as a coding agent needs, and says what the script
// says, so that a real agent can be run without a real model.
package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// A Turn is one answer of the model: text, then calls of the agent's tools. A
// turn without calls ends the agent's work.
type Turn struct {
	Text  string
	Calls []Call
}

// A Call is one use of a tool.
type Call struct {
	Tool  string
	Input map[string]any
}

// A Request is what an agent asked.
type Request struct {
	Path   string
	Key    string // the x-api-key header
	Auth   string // the Authorization header
	Model  string
	Tools  []string
	System string
	Last   string // the text of the last message, tool results included
}

// Anthropic is an http.Handler that plays a script. Set the exported fields
// before use.
type Anthropic struct {
	Turns  []Turn
	Key    string // required as x-api-key, unless empty
	Status int    // answered to every message with an error body, unless 0

	// Hold, unless nil, is called in the middle of each streamed answer, with the
	// number of the turn.
	Hold func(turn int)

	mu       sync.Mutex
	requests []Request // guarded by mu
}

// Requests returns what was asked so far.
func (a *Anthropic) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Request(nil), a.requests...)
}

// message is the body of a request, as much of it as is looked at.
type message struct {
	Model    string          `json:"model"`
	Stream   bool            `json:"stream"`
	System   json.RawMessage `json:"system"`
	Tools    []struct{ Name string }
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
}

// ServeHTTP answers POST /v1/messages and its count_tokens, and 200 to anything else.
func (a *Anthropic) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/messages") {
		w.WriteHeader(http.StatusOK)
		return
	}
	var m message
	if err := json.NewDecoder(io.LimitReader(r.Body, 64<<20)).Decode(&m); err != nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	req := Request{Path: r.URL.Path, Key: r.Header.Get("X-Api-Key"), Auth: r.Header.Get("Authorization"), Model: m.Model, System: string(m.System)}
	for _, t := range m.Tools {
		req.Tools = append(req.Tools, t.Name)
	}
	answered := 0
	for _, msg := range m.Messages {
		if msg.Role == "assistant" {
			answered++
		}
		req.Last = string(msg.Content)
	}
	a.mu.Lock()
	a.requests = append(a.requests, req)
	a.mu.Unlock()

	switch {
	case a.Key != "" && req.Key != a.Key:
		fail(w, http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
	case a.Status != 0:
		fail(w, a.Status, "api_error", "scripted")
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"input_tokens":100}`)
	default:
		// A request without tools is one of the agent's own, such as for a title.
		turn := Turn{Text: "ok"}
		if len(m.Tools) > 0 && answered < len(a.Turns) {
			turn = a.Turns[answered]
		} else if len(m.Tools) > 0 {
			turn = Turn{Text: "Done."}
		}
		turn.write(w, m, answered, a.Hold)
	}
}

func fail(w http.ResponseWriter, status int, kind, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": text}})
}

// block is a part of an answer's content.
type block struct {
	Type  string         `json:"type"`
	Text  *string        `json:"text,omitempty"`
	ID    string         `json:"id,omitempty"`
	Name  string         `json:"name,omitempty"`
	Input map[string]any `json:"input,omitempty"`
}

func (t Turn) blocks(turn int) (blocks []block, stop string) {
	if t.Text != "" {
		blocks = append(blocks, block{Type: "text", Text: &t.Text})
	}
	for i, c := range t.Calls {
		blocks = append(blocks, block{Type: "tool_use", ID: fmt.Sprintf("toolu_%03d%03d", turn, i), Name: c.Tool, Input: c.Input})
	}
	if len(t.Calls) > 0 {
		return blocks, "tool_use"
	}
	return blocks, "end_turn"
}

type object = map[string]any

// write sends the turn, as server-sent events if the request asked for them.
func (t Turn) write(w http.ResponseWriter, m message, turn int, hold func(int)) {
	blocks, stop := t.blocks(turn)
	msg := object{
		"id": fmt.Sprintf("msg_%03d", turn), "type": "message", "role": "assistant", "model": m.Model, "content": blocks,
		"stop_reason": stop, "stop_sequence": nil, "usage": object{"input_tokens": 100, "output_tokens": 20},
	}
	if !m.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(msg)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, data object) {
		data["type"] = kind
		text, err := json.Marshal(data)
		if err != nil {
			panic(err) // of our own making
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, text)
		_ = http.NewResponseController(w).Flush()
	}
	msg["content"], msg["stop_reason"] = []block{}, nil
	send("message_start", object{"message": msg})
	for i, b := range blocks {
		start := b
		var delta object
		if b.Type == "text" {
			empty := ""
			start.Text = &empty
			delta = object{"type": "text_delta", "text": *b.Text}
		} else {
			input, err := json.Marshal(b.Input)
			if err != nil {
				panic(err)
			}
			start.Input = nil
			delta = object{"type": "input_json_delta", "partial_json": string(input)}
		}
		send("content_block_start", object{"index": i, "content_block": startOf(start)})
		if i == 0 && len(m.Tools) > 0 && hold != nil {
			hold(turn)
		}
		send("content_block_delta", object{"index": i, "delta": delta})
		send("content_block_stop", object{"index": i})
	}
	send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 20}})
	send("message_stop", object{})
}

// startOf is a block as it stands in content_block_start: a tool's input is an
// empty object there, not absent.
func startOf(b block) object {
	if b.Type == "text" {
		return object{"type": "text", "text": ""}
	}
	return object{"type": b.Type, "id": b.ID, "name": b.Name, "input": object{}}
}
