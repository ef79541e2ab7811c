package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/sprites"
)

// spriteArgument names the sprite in a call, if a client has more than one.
const spriteArgument = "sprite"

// A tool is a function that a client may call.
type tool struct {
	name, description string
	effect            effect
	verb              string   // that the client's token needs
	roles             []string // that have it
	one               bool     // it acts in, or on, one sprite
	many              bool     // it is only for clients with more than one sprite
	input, output     *jsonschema.Schema
	call              func(context.Context, call) (*mcp.CallToolResult, error)
}

// effect is the kind of change that a tool may make, for MCP's hints.
type effect int

const (
	reads    effect = iota
	adds            // and takes nothing away
	destroys        // or may
	anything        // also beyond the sprite
)

// A call is one as a tool gets it.
type call struct {
	server   *Server
	running  context.Context // of the client's session, for work that outlives the call
	role     Role
	sprite   string // empty: the tool is not about one
	args     json.RawMessage
	progress func(message string)
}

func (c call) handle() *sprites.Sprite { return c.server.Client.Sprite(c.sprite) }

// The named roles, from the one with the least on.
var (
	readers = tools.RoleNames
	editors = tools.RoleNames[1:]
	full    = tools.RoleNames[2:]
)

// all are the tools.
var all = sync.OnceValue(func() []*tool { return slices.Concat(fileTools(), spriteTools(), jobTools()) })

// Names are the tools' names.
func Names() []string {
	var names []string
	for _, t := range all() {
		names = append(names, t.name)
	}
	return names
}

// describe is the tool's description for a client.
func (t *tool) describe(within Bound) *mcp.Tool {
	input := t.input
	if t.one && within.Sprite == "" {
		input = input.CloneSchemas()
		properties := map[string]*jsonschema.Schema{spriteArgument: {Type: "string", Description: "The name of the sandbox."}}
		maps.Copy(properties, input.Properties)
		input.Properties = properties
		input.Required = append([]string{spriteArgument}, input.Required...)
		input.PropertyOrder = append([]string{spriteArgument}, input.PropertyOrder...)
	}
	described := &mcp.Tool{
		Name: t.name, Description: t.description, InputSchema: input,
		Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint: t.effect == reads, DestructiveHint: new(t.effect >= destroys), OpenWorldHint: new(t.effect == anything),
		},
	}
	if t.output != nil {
		described.OutputSchema = t.output
	}
	return described
}

// define makes a tool of a function. Its schemas come from the types, and what it
// answers is data.
func define[In, Out any](t tool, run func(context.Context, call, In) (Out, error)) *tool {
	t.input, t.output = schemaOf[In](), schemaOf[Out]()
	t.call = func(ctx context.Context, c call) (*mcp.CallToolResult, error) {
		var in In
		if len(c.args) == 0 || string(c.args) == "null" {
			c.args = json.RawMessage("{}")
		}
		if err := tools.Decode(c.args, &in, t.input); err != nil {
			return nil, err
		}
		out, err := run(ctx, c, in)
		if err != nil {
			return nil, err
		}
		data := raw(out)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(data)}}, StructuredContent: data}, nil
	}
	return &t
}

func schemaOf[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // of a type of this package's
	}
	return schema
}

// fileTools are those that internal/lib/tools has, which act in a sprite, and exec.
func fileTools() (list []*tool) {
	role, err := tools.ParseRole(tools.Full)
	if err != nil {
		panic(err)
	}
	for _, t := range tools.List(role) {
		made := &tool{
			name: t.Name, description: t.Description + " It acts in the sandbox.", effect: destroys,
			verb: cove.VerbExec, one: true, input: t.Input,
			call: func(ctx context.Context, c call) (*mcp.CallToolResult, error) { return inside(ctx, c, t.Name) },
		}
		if t.ReadOnly {
			made.effect = reads
		}
		for _, name := range tools.RoleNames {
			if role, err := tools.ParseRole(name); err == nil && role.Allows(t.Name) {
				made.roles = append(made.roles, name)
			}
		}
		if t.Name == "Bash" {
			made.effect = anything
		}
		list = append(list, made)
	}
	return append(list, &tool{
		name: "exec", effect: anything, verb: cove.VerbExec, roles: full, one: true, input: schemaOf[execArgs](),
		description: "Run a program with arguments, which no shell interprets. Otherwise as Bash. It acts in the sandbox.",
		call: func(ctx context.Context, c call) (*mcp.CallToolResult, error) {
			var err error
			if c.args, err = execInput(c.args); err != nil {
				return nil, err
			}
			return inside(ctx, c, "Bash")
		},
	})
}

func isFileTool(name string) bool {
	role, _ := tools.ParseRole(tools.Full) // it is one
	return role.Allows(name)
}

// inside calls a tool in the sprite.
func inside(ctx context.Context, c call, name string) (*mcp.CallToolResult, error) {
	session, err := c.server.open(ctx, c.running, c.sprite, c.role)
	if err != nil {
		return nil, err
	}
	r, err := session.CallProgress(ctx, name, c.args, func(p tools.Progress) {
		c.progress(fmt.Sprintf("%d s, %d bytes of output: %s", p.Millis/1000, p.Bytes, p.Line))
	})
	if err != nil {
		return nil, err
	}
	result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Text()}}}
	if i := r.Image(); i != nil {
		result.Content = append(result.Content, &mcp.ImageContent{Data: i.Data, MIMEType: i.MIME})
	}
	return result, nil
}

// execArgs is the input of exec.
type execArgs struct {
	Argv            []string          `json:"argv" jsonschema:"The program and its arguments."`
	Cwd             string            `json:"cwd,omitempty" jsonschema:"The folder to run it in. Default: the working directory."`
	Env             map[string]string `json:"env,omitempty" jsonschema:"Variables of its environment, besides those that are there."`
	TimeoutMS       int64             `json:"timeout_ms,omitempty" jsonschema:"After how many milliseconds it is ended. Default 120000, at most 3600000."`
	RunInBackground bool              `json:"run_in_background,omitempty" jsonschema:"Answer at once, and let it run; Bash polls and kills it."`
}

// execInput makes a call of Bash of one of exec: each argument quoted as a whole.
func execInput(data []byte) (json.RawMessage, error) {
	var in execArgs
	if err := tools.Decode(data, &in, schemaOf[execArgs]()); err != nil {
		return nil, err
	}
	if len(in.Argv) == 0 || in.Argv[0] == "" {
		return nil, &fail.Error{Code: tools.CodeBadInput, Message: "argv names no program"}
	}
	words := []string{"exec", "--"}
	for _, arg := range in.Argv {
		words = append(words, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return raw(tools.BashInput{
		Command: strings.Join(words, " "), Cwd: in.Cwd, Env: in.Env, TimeoutMS: in.TimeoutMS, RunInBackground: in.RunInBackground,
	}), nil
}
