package loop

import (
	"context"
	"encoding/json"

	"github.com/cove-dev/cove/internal/lib/tools"
)

// A Message is a message of a conversation: the model's, or one to it, with a text or the
// results of its calls.
type Message struct {
	Model   bool         `json:"model,omitempty"` // it is the model's
	Text    string       `json:"text,omitempty"`
	Calls   []Call       `json:"calls,omitempty"`   // the model's
	Results []ToolResult `json:"results,omitempty"` // of the calls before

	// Native is the model's message as its provider wants it back, with parts that no other
	// provider would understand.
	Native json.RawMessage `json:"native,omitempty"`
}

// A Call is one that a model makes.
type Call struct {
	ID    string          `json:"id"`
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input"` // empty: what it gave is no JSON
}

// A ToolResult is the result of a call, as the model gets it.
type ToolResult struct {
	ID     string `json:"id"`
	Tool   string `json:"tool"`
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`

	Image *tools.Image `json:"image,omitempty"` // that the model is shown besides; nil: none
}

// Usage is what one answer has used, or all of them. Input has what was read from,
// or written to, a cache.
type Usage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

// Price is what a million tokens cost, in dollars.
type Price struct{ Input, Output float64 }

func (p Price) of(u Usage) float64 {
	return (float64(u.Input)*p.Input + float64(u.Output)*p.Output) / 1e6
}

// A Stop is why an answer ended.
type Stop string

// The reasons.
const (
	StopEnd       Stop = "end"       // the model has nothing to add
	StopTools     Stop = "tools"     // it waits for what its calls come to
	StopLength    Stop = "length"    // it was cut off
	StopRefused   Stop = "refused"   // the model, or its API, does not answer that
	StopMalformed Stop = "malformed" // what it said can't be read
)

// A Request asks a model for the next message of a conversation.
type Request struct {
	Model     string // as its provider calls it
	System    string
	Messages  []Message
	Tools     []tools.Tool
	MaxOutput int64 // tokens
}

// An Answer is a whole one: a stream that was cut never is.
type Answer struct {
	Message Message
	Stop    Stop
	Usage   Usage
}

// A Piece is a part of an answer that is still coming.
type Piece struct {
	Text  string // of the answer
	Bytes int    // of what the model makes, text or not
	Usage *Usage // so far, where the API says so
}

// A Provider asks the models of one API. It asks once, and does not retry. Its errors are
// *APIError.
type Provider interface {
	// Ask returns the next message, and hands on pieces as they come.
	Ask(ctx context.Context, req Request, heard func(Piece)) (Answer, error)
}
