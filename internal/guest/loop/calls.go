package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// readOnly are the tools that change nothing.
var readOnly = func() map[string]bool {
	role, err := tools.ParseRole(tools.ReadOnly)
	if err != nil {
		panic(err) // a role that has a name
	}
	names := map[string]bool{}
	for _, name := range role.Tools() {
		names[name] = true
	}
	return names
}()

// finishInput is the input of the model's last call.
type finishInput struct {
	Outcome string `json:"outcome" jsonschema:"done, or incomplete where something of the task is missing"`
	Summary string `json:"summary" jsonschema:"what was done, and what is missing and why"`
}

// finishTool is the tool that a model calls when it has finished. It is the loop's own: no
// toolbox has it, and no role denies it.
var finishTool = func() tools.Tool {
	schema, err := jsonschema.For[finishInput](nil)
	if err != nil {
		panic(err) // a type of this package's
	}
	return tools.Tool{Name: "finish", Input: schema, Description: "Ends the work. Call it alone, when all is done or you can't go on."}
}()

// finish reads the model's end. One that can't be read is answered, and ends nothing.
func finish(c Call, r *ToolResult) *Result {
	var in finishInput
	err := json.Unmarshal(c.Input, &in)
	if err != nil || in.Outcome != string(Done) && in.Outcome != string(Incomplete) {
		r.Text = "Error (bad_input): the outcome is done or incomplete."
		return nil
	}
	r.Text, r.Failed = "Finished.", false
	return &Result{Outcome: Outcome(in.Outcome), Text: in.Summary}
}

// maxResult bounds what a model is told of one call.
const maxResult = 256 << 10

// goneText is the result of a call if nothing is left to carry it out.
const goneText = "Error (sandbox_gone): the sandbox is gone."

// call carries out a call, and writes its events.
func (l *Loop) call(ctx context.Context, c Call, r *ToolResult) {
	begun := time.Now()
	l.emit(startEvent(c, l.box.shown(c.Tool)))
	result, err := l.carry(ctx, c)
	e := Event{Type: "tool_result", ID: c.ID, Tool: l.box.shown(c.Tool), WaitMS: time.Since(begun).Milliseconds()}
	if err != nil {
		e.Type, e.Code, r.Text = "tool_error", err.Code, headAndTail(tools.Told(err), maxResult)
		if l.box.Ended() {
			r.Text = goneText
		}
	} else {
		r.Text, r.Image, r.Failed = headAndTail(result.Text(), maxResult), result.Image(), false
	}
	e.Text = headAndTail(r.Text, maxShown)
	l.emit(e)
}

func (l *Loop) carry(ctx context.Context, c Call) (*tools.Result, *fail.Error) {
	if c.Input == nil {
		return nil, &fail.Error{Code: tools.CodeBadInput, Message: "the input is no JSON"}
	}
	result, err := l.box.Call(ctx, c.Tool, c.Input)
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return nil, e
	}
	if err != nil {
		return nil, &fail.Error{Code: tools.CodeFailed, Message: err.Error()}
	}
	return result, nil
}

// schema is the schema of a tool's input, as JSON.
func schema(t tools.Tool) json.RawMessage {
	text, err := json.Marshal(t.Input)
	if err != nil {
		panic(fmt.Sprintf("the schema of %s: %v", t.Name, err)) // made of a type
	}
	return text
}

// valid returns a call's input; nil if it is not JSON. An empty input becomes an empty object.
func valid(input []byte) json.RawMessage {
	switch {
	case len(input) == 0:
		return json.RawMessage("{}")
	case json.Valid(input):
		return input
	}
	return nil
}
