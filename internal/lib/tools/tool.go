package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// A Tool is the description of a tool for a model.
type Tool struct {
	Name        string
	Description string
	Input       *jsonschema.Schema // of the input, which has no other fields than these
	ReadOnly    bool               // it changes nothing

	run    func(ctx context.Context, w *workspace, c call) (any, error)
	render func(data []byte) (text string, picture *Image, err error)
}

// A call is a call as a tool gets it.
type call struct {
	input    []byte
	progress func(Progress) // never nil
}

// Progress is an interim report of a call that takes its time.
type Progress struct {
	Millis int64  `json:"ms"`    // since it began
	Bytes  int64  `json:"bytes"` // of output so far
	Line   string `json:"line"`  // the last one of it, cut to 200 bytes
}

// output is the answer of a tool.
type output interface {
	// text is the answer for a model.
	text() string
}

// all are the tools, sorted by their names.
var all = sync.OnceValue(func() []Tool {
	return []Tool{
		define("Bash", bashDescription, (*workspace).bash),
		define("Edit", editDescription, (*workspace).edit),
		define("Glob", globDescription, (*workspace).glob),
		define("Grep", grepDescription, (*workspace).grep),
		define("Read", readDescription, (*workspace).read),
		define("Write", writeDescription, (*workspace).write),
	}
})

// List returns the tools that a role allows, sorted by their names.
func List(role Role) []Tool {
	return slices.DeleteFunc(slices.Clone(all()), func(t Tool) bool { return !role.Allows(t.Name) })
}

func find(name string) (Tool, bool) {
	list := all()
	i := slices.IndexFunc(list, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return list[i], true
}

// define makes a tool of a method. Its input's schema comes from the type In.
func define[In any, Out output](name, description string, run func(*workspace, context.Context, In, func(Progress)) (Out, error)) Tool {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic("schema of " + name + ": " + err.Error()) // a type of this package's
	}
	return Tool{
		Name: name, Description: description, Input: schema,
		ReadOnly: slices.Contains(roles[ReadOnly], name),
		run: func(ctx context.Context, w *workspace, c call) (any, error) {
			var in In
			if err := Decode(c.input, &in, schema); err != nil {
				return nil, err
			}
			out, err := run(w, ctx, in, c.progress)
			if err != nil {
				return nil, err
			}
			return out, nil
		},
		render: func(data []byte) (string, *Image, error) {
			var out Out
			if err := json.Unmarshal(data, &out); err != nil {
				return "", nil, err
			}
			if string(data) == "null" { // a nil pointer
				return "", nil, errors.New("it is null")
			}
			var picture *Image
			if p, ok := any(out).(interface{ picture() *Image }); ok {
				picture = p.picture()
			}
			return out.text(), picture, picture.check()
		},
	}
}

// Decode reads an input, a JSON object, strictly. A field that the schema does not have is an
// error, and so is a required field that is missing. Its errors are *fail.Error.
func Decode(data []byte, in any, schema *jsonschema.Schema) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return errorf(CodeBadInput, "the input is no JSON object")
	}
	for name := range fields {
		if schema.Properties[name] == nil {
			return errorf(CodeBadInput, "there is no field %q; there are %s", name, strings.Join(schema.PropertyOrder, ", "))
		}
	}
	for _, name := range schema.Required {
		if _, ok := fields[name]; !ok {
			return errorf(CodeBadInput, "the field %q is missing", name)
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(in)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return nil
		}
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return errorf(CodeBadInput, "the field %q can't be a JSON %s", e.Field, e.Value)
	}
	return errorf(CodeBadInput, "the input can't be read: %v", err)
}

// A Result is the result of a call.
type Result struct {
	Tool string          // whose
	Data json.RawMessage // a ReadResult, BashResult and so on; nil: there is text alone

	rendered string
	picture  *Image
}

// Text is the result for a model.
func (r *Result) Text() string { return r.rendered }

// Image is the picture that a model gets, too; nil: none. Its first bytes are of its
// type. The rest is whatever the sprite has sent.
func (r *Result) Image() *Image { return r.picture }

// TextResult is the result of a tool outside this package that answers with text.
func TextResult(tool, text string) *Result { return &Result{Tool: tool, rendered: text} }

// newResult reads a sprite's answer.
func newResult(tool string, data json.RawMessage) (*Result, error) {
	t, ok := find(tool)
	if !ok {
		return nil, errorf(CodeProtocol, "the sprite answered a call of %q", tool)
	}
	text, picture, err := t.render(data)
	if err != nil {
		return nil, errorf(CodeProtocol, "the sprite's answer to %s can't be read: %v", tool, err)
	}
	return &Result{Tool: tool, Data: data, rendered: text, picture: picture}, nil
}
