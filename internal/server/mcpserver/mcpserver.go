// Package mcpserver offers sprites to an MCP client, such as a coding agent outside
// that works inside. It has the tools of internal/lib/tools, and tools that manage
// sprites and jobs.
package mcpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxMessage = 128 << 20 // of a client on standard input
	maxCalls   = 64        // of one client at once
	maxOpen    = 256       // sprites whose tools one client has open
)

// Server offers tools to one client. Its fields are set before Run.
type Server struct {
	Client *cove.Client // its token bounds what the tools may do
	Within Bound
	Dir    string   // the tools' working directory; empty: the home of each sprite's user
	Roles  []string // as ParseRole has them
	Verbs  []string // of Client's token, to offer nothing that it can't do; nil: not known

	// Unread reports whether nobody reads the answers of Run any more; nil: somebody does.
	Unread func() bool

	calls atomic.Int32

	mu       sync.Mutex
	sessions map[string]*opening // by sprite
}

// opening is the one session of a sprite's tools, which may be on its way.
type opening struct {
	cancel  context.CancelFunc // ends it
	done    chan struct{}      // closed when session or err is set
	session *tools.Session
	err     error
}

// Run serves the client. Its messages are lines of JSON. Run returns when ctx ends, or when in
// has ended and all its requests are answered.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := s.start(ctx, nil, nil)
	if err != nil {
		return err
	}
	defer s.end()
	answers := &whole{WriteCloser: out}
	messages := struct {
		io.Reader
		io.Closer
	}{&lines{in: bufio.NewReader(in), out: answers}, in}
	err = server.Run(ctx, &draining{&mcp.IOTransport{Reader: messages, Writer: answers, MaxLineLength: maxMessage}, s.Unread})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// start makes the SDK's server. ctx lasts as long as the client's session. id, if not
// nil, gives the session its name. asked, if not nil, returns the context of a call's
// own request: the call ends with it.
func (s *Server) start(ctx context.Context, id func() string, asked func(mcp.Request) context.Context) (*mcp.Server, error) {
	role, err := ParseRole(s.Roles...)
	if err != nil {
		return nil, err
	}
	offered := map[string]bool{}
	server := mcp.NewServer(&mcp.Implementation{Name: "cove", Title: "cove: " + s.Within.String(), Version: sprites.Version}, &mcp.ServerOptions{
		Instructions: s.Within.instructions(),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		GetSessionID: id,
	})
	for _, t := range all() {
		if !role.Allows(t.name) || t.many && s.Within.Sprite != "" || s.Verbs != nil && !slices.Contains(s.Verbs, t.verb) {
			continue
		}
		offered[t.name] = true
		server.AddTool(t.describe(s.Within), s.handler(ctx, t, role))
	}
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			p, ok := req.GetParams().(*mcp.CallToolParamsRaw)
			if !ok || method != "tools/call" {
				return next(ctx, method, req)
			}
			if !offered[p.Name] {
				return failed(s.refuse(p.Name, role)), nil
			}
			defer s.calls.Add(-1)
			if s.calls.Add(1) > maxCalls {
				return failed(&fail.Error{Code: tools.CodeBusy, Message: "too many calls are under way."}), nil
			}
			if asked == nil {
				return next(ctx, method, req)
			}
			post := asked(req)
			ctx, cancel := both(withHoldOf(ctx, post), post)
			defer cancel()
			return next(ctx, method, req)
		}
	})
	return server, nil
}

// both is a context that ends when one of two does.
func both(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a)
	stop := context.AfterFunc(b, cancel)
	return ctx, func() { stop(); cancel() }
}

// refuse is the error of a call of a tool that is not offered.
func (s *Server) refuse(name string, role Role) *fail.Error {
	list := all()
	i := slices.IndexFunc(list, func(t *tool) bool { return t.name == name })
	e := &fail.Error{Code: tools.CodeDenied}
	switch {
	case i < 0:
		e.Message = "there is no tool " + quote(name) + "."
	case !role.Allows(name):
		e.Message = "the role " + quote(role.String()) + " does not allow " + name + "."
	case list[i].many && s.Within.Sprite != "":
		e.Message = name + " is not for who has the sandbox " + s.Within.Sprite + " alone."
	default:
		e.Message = "the token does not have the verb " + list[i].verb + ", which " + name + " needs."
	}
	return e
}

// handler calls a tool. running lasts as long as the client's session.
func (s *Server) handler(running context.Context, t *tool, role Role) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := both(ctx, running)
		defer cancel()
		c := call{server: s, running: running, role: role, args: req.Params.Arguments}
		if t.one {
			var err error
			if c.sprite, c.args, err = s.Within.pick(c.args); err != nil {
				return failed(err), nil
			}
		}
		var stop func()
		c.progress, stop = tell(ctx, req)
		defer stop()
		result, err := t.call(ctx, c)
		if err == nil {
			err = room(ctx, result)
		}
		if err != nil {
			return failed(coded(ctx, err)), nil
		}
		return result, nil
	}
}

// failed is the result that tells a model an error.
func failed(err error) *mcp.CallToolResult {
	text := err.Error()
	if e, ok := errors.AsType[*fail.Error](err); ok {
		text = tools.Told(e)
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// coded gives an error a code: that of a server's answer, or one that says how ctx ended.
func coded(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*fail.Error](err); ok {
		return err
	}
	if ctx.Err() != nil {
		return &fail.Error{Code: tools.CodeCancelled, Message: "the call was cancelled."}
	}
	e, ok := errors.AsType[*sprites.Error](err)
	switch {
	case errors.Is(err, sprites.ErrUnauthorized), errors.Is(err, sprites.ErrForbidden):
		return &fail.Error{Code: tools.CodeDenied, Message: err.Error()}
	case errors.Is(err, sprites.ErrBadName):
		return &fail.Error{Code: tools.CodeBadInput, Message: err.Error()}
	case errors.Is(err, sprites.ErrLimited):
		return &fail.Error{Code: tools.CodeBusy, Message: err.Error()}
	case ok && e.Code != "":
		return &fail.Error{Code: e.Code, Message: err.Error()}
	case ok:
		return &fail.Error{Code: tools.CodeFailed, Message: err.Error()}
	}
	return &fail.Error{Code: tools.CodeUnreachable, Message: err.Error()}
}

// open returns the session of a sprite's tools. It begins a new one if there is none, or if
// the last one has ended. A session lasts as long as running. ctx is that of the call that
// waits for the session.
func (s *Server) open(ctx, running context.Context, sprite string, role Role) (*tools.Session, error) {
	o, err := s.place(running, sprite, role)
	if err != nil {
		return nil, err
	}
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, ctx.Err() // others may wait for it
	}
}

// place is where a sprite's session is. Those that have ended make room.
func (s *Server) place(running context.Context, sprite string, role Role) (*opening, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.sessions[sprite]; o != nil && !o.over() {
		return o, nil
	}
	if s.sessions == nil {
		s.sessions = map[string]*opening{}
	}
	delete(s.sessions, sprite)
	if len(s.sessions) >= maxOpen {
		maps.DeleteFunc(s.sessions, func(_ string, o *opening) bool { return o.over() })
	}
	if len(s.sessions) >= maxOpen {
		return nil, &fail.Error{Code: tools.CodeBusy, Message: fmt.Sprintf("%d sandboxes are in use; remove some, or begin another session.", maxOpen)}
	}
	ctx, cancel := context.WithCancel(running)
	o := &opening{cancel: cancel, done: make(chan struct{})}
	s.sessions[sprite] = o
	go func() { // end waits for it
		defer close(o.done)
		if o.session, o.err = tools.Open(ctx, s.Client.Sprite(sprite), s.Dir, role.inside()); o.err != nil {
			cancel()
		}
	}()
	return o, nil
}

// over reports whether there is no session, and none is being opened.
func (o *opening) over() bool {
	select {
	case <-o.done:
		return o.err != nil || o.session.Ended()
	default:
		return false
	}
}

// end closes the sessions. The client is gone, and with it all calls.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var closing sync.WaitGroup
	for _, o := range s.sessions {
		closing.Go(func() {
			defer o.cancel()
			select {
			case <-o.done:
			default: // nobody waits for it any more
				o.cancel()
				<-o.done
			}
			if o.err == nil {
				_ = o.session.Close() // nobody is left to be told
			}
		})
	}
	closing.Wait()
}

// quote makes what a client sent fit for a message.
func quote(text string) string {
	if len(text) > 100 {
		text = text[:100] + "…"
	}
	return `"` + strings.ToValidUTF8(text, "?") + `"`
}

// raw is v as JSON. v is of a type of this package's.
func raw(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
