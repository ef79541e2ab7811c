// Package mcpserver offers the tools of one sprite to an MCP client, such as a
// coding agent outside that is to act inside.
package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/tools"
	"github.com/cove-dev/cove/sprites"
)

// maxMessage bounds one message of the client's.
const maxMessage = 128 << 20

// Server offers a sprite's tools. Its fields are set before Run.
type Server struct {
	Sprite *sprites.Sprite
	Dir    string   // the tools' working directory; empty: the home of the sprite's user
	Roles  []string // as tools.ParseRole has them; enforced in the sprite

	mu      sync.Mutex
	session *tools.Session // nil: none is open
}

// Run serves one client, whose messages are lines of JSON, until in ends or ctx does.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	role, err := tools.ParseRole(s.Roles...)
	if err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "cove", Title: "cove: the sandbox " + s.Sprite.Name(), Version: sprites.Version}, &mcp.ServerOptions{
		Instructions: "These tools act in the sandbox " + s.Sprite.Name() + ", a Linux computer of its own, not on this machine. Paths are paths there.",
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	for _, t := range tools.List(role) {
		server.AddTool(describe(t.Name, t.Description, t.Input, t.ReadOnly), s.handler(ctx, t.Name, nil))
	}
	if role.Allows("Bash") {
		server.AddTool(describe("exec", execDescription, execSchema, false), s.handler(ctx, "Bash", execInput))
	}
	err = server.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: maxMessage})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		_ = s.session.Close() // the client is gone
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func describe(name, description string, input *jsonschema.Schema, readOnly bool) *mcp.Tool {
	return &mcp.Tool{
		Name: name, Description: description + " It acts in the sandbox.", InputSchema: input,
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: readOnly, DestructiveHint: new(!readOnly), OpenWorldHint: new(!readOnly)},
	}
}

// handler calls a tool, in a session that lasts as long as running does. input,
// unless it is nil, makes the tool's input of the client's.
func (s *Server) handler(running context.Context, tool string, input func([]byte) (json.RawMessage, error)) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		args := req.Params.Arguments
		if input != nil {
			var err error
			if args, err = input(args); err != nil {
				return failed(err), nil
			}
		}
		session, err := s.open(running)
		if err != nil {
			return failed(err), nil
		}
		progress, stop := tell(ctx, req)
		defer stop()
		r, err := session.CallProgress(ctx, tool, args, progress)
		if err != nil {
			return failed(err), nil
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Text()}}}, nil
	}
}

// failed is an error as a model is told it.
func failed(err error) *mcp.CallToolResult {
	text := err.Error()
	if e, ok := errors.AsType[*tools.Error](err); ok {
		text = e.Text()
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// open returns the session, a new one where there is none or the last one has
// ended. ctx is the session's.
func (s *Server) open(ctx context.Context) (*tools.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && !s.session.Ended() {
		return s.session, nil
	}
	session, err := tools.Open(ctx, s.Sprite, s.Dir, s.Roles...)
	if err != nil {
		return nil, err
	}
	s.session = session
	return session, nil
}

// tell hands a call's progress to the client, if it asked for that. stop waits for
// what is on its way.
func tell(ctx context.Context, req *mcp.CallToolRequest) (progress func(tools.Progress), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil, func() {}
	}
	news, done := make(chan tools.Progress, 1), make(chan struct{})
	go func() {
		defer close(done)
		for p := range news {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // the call's answer tells of a lost client
				ProgressToken: token, Progress: float64(p.Millis) / 1000,
				Message: fmt.Sprintf("%d s, %d bytes of output: %s", p.Millis/1000, p.Bytes, p.Line),
			})
		}
	}()
	var mu sync.Mutex
	ended := false
	return func(p tools.Progress) {
			mu.Lock()
			defer mu.Unlock()
			if ended {
				return
			}
			select {
			case news <- p:
			default: // the client is slow: it gets the next
			}
		}, func() {
			mu.Lock()
			ended = true
			close(news)
			mu.Unlock()
			<-done
		}
}

const execDescription = `Run a program with arguments, which no shell interprets. Otherwise as Bash.`

// execArgs is the input of exec.
type execArgs struct {
	Argv            []string          `json:"argv" jsonschema:"The program and its arguments."`
	Cwd             string            `json:"cwd,omitempty" jsonschema:"The folder to run it in. Default: the working directory."`
	Env             map[string]string `json:"env,omitempty" jsonschema:"Variables of its environment, besides those that are there."`
	TimeoutMS       int64             `json:"timeout_ms,omitempty" jsonschema:"After how many milliseconds it is ended. Default 120000, at most 3600000."`
	RunInBackground bool              `json:"run_in_background,omitempty" jsonschema:"Answer at once, and let it run; Bash polls and kills it."`
}

var execSchema = func() *jsonschema.Schema {
	schema, err := jsonschema.For[execArgs](nil)
	if err != nil {
		panic(err) // of a type of this package's
	}
	return schema
}()

// execInput makes a call of Bash of one of exec: each argument quoted as a whole.
func execInput(data []byte) (json.RawMessage, error) {
	var in execArgs
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, &tools.Error{Code: tools.CodeBadInput, Message: "the input can't be read: " + err.Error()}
	}
	if len(in.Argv) == 0 || in.Argv[0] == "" {
		return nil, &tools.Error{Code: tools.CodeBadInput, Message: "argv names no program"}
	}
	words := []string{"exec", "--"}
	for _, arg := range in.Argv {
		words = append(words, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return json.Marshal(tools.BashInput{
		Command: strings.Join(words, " "), Cwd: in.Cwd, Env: in.Env, TimeoutMS: in.TimeoutMS, RunInBackground: in.RunInBackground,
	})
}
