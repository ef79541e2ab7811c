package modeltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Anthropic is an http.Handler that plays a script. Set the exported fields
// before use.
type Anthropic struct {
	Turns  []Turn
	Key    string    // required as x-api-key, unless empty
	Status int       // answered to every message with an error body, unless 0
	Fails  []Failure // the answers to the first messages, before the script begins

	// Hold, unless nil, is called in the middle of each streamed answer, with the
	// number of the turn.
	Hold func(turn int)

	script script
}

// Requests returns the requests so far.
func (a *Anthropic) Requests() []Request { return a.script.asked() }

// message is the part of a request's body that the server reads.
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
	body, err := readBody(r, &m)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	req := Request{
		Path: r.URL.Path, Key: r.Header.Get("X-Api-Key"), Auth: r.Header.Get("Authorization"), Model: m.Model, System: string(m.System), Body: body,
	}
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
	f, failing := a.script.note(req, a.Fails)
	switch {
	case a.Key != "" && req.Key != a.Key:
		fail(w, http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
	case a.Status != 0:
		fail(w, a.Status, "api_error", "scripted")
	case failing:
		if f.begin(w, r) {
			f.anthropic(w)
		}
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		answerJSON(w, http.StatusOK, object{"input_tokens": 100})
	default:
		turnOf(a.Turns, answered, len(m.Tools) > 0, "").write(w, m, answered, a.Hold)
	}
}

func fail(w http.ResponseWriter, status int, kind, text string) {
	answerJSON(w, status, object{"type": "error", "error": object{"type": kind, "message": text}})
}

// anthropicKinds are the types of errors, by status.
var anthropicKinds = map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 529: "overloaded_error"}

func (f Failure) anthropic(w http.ResponseWriter) {
	kind := cmp.Or(f.Kind, anthropicKinds[f.Status], "api_error")
	if f.Status != http.StatusOK {
		fail(w, f.Status, kind, "scripted")
		return
	}
	newEvents(w).send("error", object{"type": "error", "error": object{"type": kind, "message": "scripted"}})
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

// write sends the turn, as server-sent events if the request asked for them.
func (t Turn) write(w http.ResponseWriter, m message, turn int, hold func(int)) {
	blocks, stop := t.blocks(turn)
	msg := object{
		"id": fmt.Sprintf("msg_%03d", turn), "type": "message", "role": "assistant", "model": m.Model, "content": blocks,
		"stop_reason": stop, "stop_sequence": nil, "usage": object{"input_tokens": 100, "output_tokens": 20},
	}
	if !m.Stream {
		answerJSON(w, http.StatusOK, msg)
		return
	}
	out := newEvents(w)
	send := func(kind string, data object) {
		data["type"] = kind
		out.send(kind, data)
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
			start.Input = nil
			delta = object{"type": "input_json_delta", "partial_json": jsonText(b.Input)}
		}
		send("content_block_start", object{"index": i, "content_block": startOf(start)})
		if i == 0 && len(m.Tools) > 0 && hold != nil {
			hold(turn)
		}
		send("content_block_delta", object{"index": i, "delta": delta})
		if t.Cut {
			out.cut()
		}
		send("content_block_stop", object{"index": i})
	}
	send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 20}})
	send("message_stop", object{})
}

// startOf returns a block in the form of content_block_start: there a tool's input is an
// empty object, not absent.
func startOf(b block) object {
	if b.Type == "text" {
		return object{"type": "text", "text": ""}
	}
	return object{"type": b.Type, "id": b.ID, "name": b.Name, "input": object{}}
}
