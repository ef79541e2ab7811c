package mcpserver

import (
	"encoding/json"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// Bound says which sprites a client reaches: one, or those whose names begin with a
// prefix. The zero value is all.
type Bound struct {
	Sprite string // empty: Prefix counts
	Prefix string
}

// Has reports whether a sprite is within the bound.
func (b Bound) Has(name string) bool {
	if b.Sprite != "" {
		return name == b.Sprite
	}
	return name != "" && strings.HasPrefix(name, b.Prefix)
}

// Narrow is the part of b that other has asked for; false: some of that is outside.
func (b Bound) Narrow(other Bound) (Bound, bool) {
	switch {
	case other == Bound{}:
		return b, true
	case other.Sprite != "":
		return Bound{Sprite: other.Sprite}, b.Has(other.Sprite) && (other.Prefix == "" || strings.HasPrefix(other.Sprite, other.Prefix))
	}
	return other, b.Sprite == "" && strings.HasPrefix(other.Prefix, b.Prefix)
}

// String names the bound, for people.
func (b Bound) String() string {
	switch {
	case b.Sprite != "":
		return "the sandbox " + b.Sprite
	case b.Prefix != "":
		return "the sandboxes " + b.Prefix + "*"
	}
	return "all sandboxes"
}

// instructions is the text that a model is told about the tools as a whole.
func (b Bound) instructions() string {
	if b.Sprite != "" {
		return "These tools act in the sandbox " + b.Sprite + ", a Linux computer of its own, not on this machine. Paths are paths there."
	}
	text := "These tools make and use sandboxes, each a Linux computer of its own, not this machine. The argument sprite names one; paths are paths there."
	if b.Prefix != "" {
		text += " Their names begin with " + b.Prefix + "."
	}
	return text
}

// refuse is the error of a name that is outside.
func (b Bound) refuse(name string) *fail.Error {
	e := &fail.Error{Code: tools.CodeDenied, Message: "the sandbox " + quote(name) + " is out of bounds: there is only " + b.String() + "."}
	if b.Sprite == "" {
		e.Message = "the sandbox " + quote(name) + " is out of bounds: names begin with " + b.Prefix + "."
	}
	return e
}

// check refuses a name that is outside.
func (b Bound) check(name string) error {
	if !b.Has(name) {
		return b.refuse(name)
	}
	return nil
}

// ofJob refuses a job whose sprite is outside of b, as if there were no such job.
func (b Bound) ofJob(j cove.Job) error {
	if j.Backend != "" || !b.Has(j.Sprite) {
		return &fail.Error{Code: tools.CodeNotFound, Message: "there is no job " + quote(j.ID) + " in " + b.String() + "."}
	}
	return nil
}

// pick removes the argument sprite from a call's arguments, if b has more than one sprite.
func (b Bound) pick(args json.RawMessage) (name string, rest json.RawMessage, err error) {
	if b.Sprite != "" {
		return b.Sprite, args, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(args, &fields) != nil || json.Unmarshal(fields[spriteArgument], &name) != nil || name == "" {
		return "", nil, &fail.Error{Code: tools.CodeBadInput, Message: "the argument sprite names no sandbox; the tool list has those that there are."}
	}
	if err := b.check(name); err != nil {
		return "", nil, err
	}
	delete(fields, spriteArgument)
	return name, raw(fields), nil
}
