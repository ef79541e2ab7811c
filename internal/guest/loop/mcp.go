package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
)

// MCPServer is an MCP server on the host's side, reached by streamable HTTP, or a program in
// the sprite, reached by its standard streams. A model knows its tools as host__NAME__TOOL or
// sprite__NAME__TOOL, people as host:NAME.TOOL or sprite:NAME.TOOL.
type MCPServer struct {
	Name    string
	URL     string   // of one on the host's side
	Program string   // of one in the sprite: its path
	Tools   []string // that may be called; AllTools alone: any. None: none
}

// side is where a server is.
func (s MCPServer) side() string {
	if s.Program != "" {
		return "sprite"
	}
	return "host"
}

// AllTools stands for every tool of a server.
const AllTools = "*"

// Bounds on what a server may say and how long it may take: its answers are not trusted.
const (
	mcpConnect     = 30 * time.Second // to answer, and to list its tools
	mcpCall        = 10 * time.Minute
	mcpAnswer      = 8 << 20 // bytes
	mcpTools       = 500     // that it has, listed or not
	mcpDescription = 8 << 10
	mcpSchema      = 64 << 10
)

// sdkCodes is the last of the codes, from -32000 on, that the SDK uses for errors of a
// connection.
const sdkCodes = -32099

// offeredName is what every provider takes as the name of a tool.
var offeredName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`) })

// withHosts is a Toolbox and the tools of MCP servers. The Toolbox refuses calls of tools that
// neither has.
type withHosts struct {
	Toolbox
	hosts []*mcpHost
	tools []tools.Tool
	calls map[string]hostTool // by the name that is offered
}

type hostTool struct {
	host *mcpHost
	name string // the server's own
}

// openHosts connects to servers, and adds those of their tools that may be called to a
// toolbox. It is an error if a tool that was asked for by name is missing.
func openHosts(ctx context.Context, box Toolbox, servers []MCPServer) (*withHosts, error) {
	b := &withHosts{Toolbox: box, calls: map[string]hostTool{}}
	for _, s := range servers {
		h := &mcpHost{MCPServer: s}
		b.hosts = append(b.hosts, h)
		all, err := h.list(ctx)
		if err == nil {
			err = b.add(h, all)
		}
		if err != nil {
			b.close()
			return nil, fmt.Errorf("%s:%s: %w", s.side(), s.Name, err)
		}
	}
	return b, nil
}

// add offers those of a server's tools that may be called.
func (b *withHosts) add(h *mcpHost, all []*mcp.Tool) error {
	var names []string
	for _, t := range all {
		if slices.Contains(names, t.Name) {
			return fmt.Errorf("two tools are called %.80q", t.Name)
		}
		names = append(names, t.Name)
		if !slices.Contains(h.Tools, t.Name) && !slices.Equal(h.Tools, []string{AllTools}) {
			continue
		}
		offered, err := offer(h.side()+"__"+h.Name, t)
		if err != nil {
			return fmt.Errorf("the tool %.80q can't be offered: %w", t.Name, err)
		}
		b.tools = append(b.tools, offered)
		b.calls[offered.Name] = hostTool{h, t.Name}
	}
	for _, name := range h.Tools {
		if name != AllTools && !slices.Contains(names, name) {
			return fmt.Errorf("there is no tool %.80q; there are: %.1000q", name, names)
		}
	}
	return nil
}

// offer returns a server's tool in the form that a model gets.
func offer(server string, t *mcp.Tool) (tools.Tool, error) {
	offered := tools.Tool{Name: server + "__" + t.Name, Description: headAndTail(t.Description, mcpDescription)}
	if !offeredName().MatchString(offered.Name) {
		return offered, fmt.Errorf("no model takes the name %.200q", offered.Name)
	}
	text, err := json.Marshal(t.InputSchema)
	if err == nil && len(text) > mcpSchema {
		err = fmt.Errorf("its schema has %d bytes", len(text))
	}
	if err == nil {
		offered.Input = &jsonschema.Schema{}
		err = json.Unmarshal(text, offered.Input)
	}
	if err == nil && offered.Input.Type != "object" {
		err = errors.New("its schema is not that of an object")
	}
	return offered, err
}

// Offers are the Toolbox's, and the servers'.
func (b *withHosts) Offers() []tools.Tool { return slices.Concat(b.Toolbox.Offers(), b.tools) }

// Call carries out a call.
func (b *withHosts) Call(ctx context.Context, tool string, input json.RawMessage) (*tools.Result, error) {
	if t, ok := b.calls[tool]; ok {
		return t.host.call(ctx, tool, t.name, input)
	}
	return b.Toolbox.Call(ctx, tool, input)
}

// Ended is the Toolbox's.
func (b *withHosts) Ended() bool {
	box, ok := b.Toolbox.(interface{ Ended() bool })
	return ok && box.Ended()
}

// shown is a tool's name for people, with its place and server.
func (b *withHosts) shown(tool string) string {
	if t, ok := b.calls[tool]; ok {
		return t.host.side() + ":" + t.host.Name + "." + t.name
	}
	return tool
}

func (b *withHosts) close() {
	for _, h := range b.hosts {
		h.drop(h.session)
	}
}

// mcpHost is a connection to a server, which is made anew when it was lost.
type mcpHost struct {
	MCPServer

	mu      sync.Mutex
	session *mcp.ClientSession // nil: there is none
}

// connect returns the session, or begins one.
func (h *mcpHost) connect(ctx context.Context) (*mcp.ClientSession, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil {
		return h.session, nil
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "cove", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	session, err := client.Connect(ctx, h.transport(), nil)
	h.session = session
	return session, err
}

// transport returns the way to the server. A program gets the agent's standard error.
func (h *mcpHost) transport() mcp.Transport {
	if h.Program != "" {
		program := exec.Command(h.Program) // ends with its session, not with a call
		program.Stderr = os.Stderr
		return &mcp.CommandTransport{Command: program}
	}
	return &mcp.StreamableClientTransport{
		Endpoint: h.URL, MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: mcpAnswer,
		HTTPClient: &http.Client{
			Transport:     bounded{http.DefaultTransport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it is asked where the person said
		},
	}
}

// drop ends a session, unless another has begun.
func (h *mcpHost) drop(session *mcp.ClientSession) {
	h.mu.Lock()
	if h.session == session {
		h.session = nil
	}
	h.mu.Unlock()
	if session != nil {
		_ = session.Close() // which the server may not hear
	}
}

// list are all of a server's tools.
func (h *mcpHost) list(ctx context.Context) ([]*mcp.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, mcpConnect)
	defer cancel()
	session, err := h.connect(ctx)
	if err != nil {
		return nil, err
	}
	var all []*mcp.Tool
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if all = append(all, t); len(all) > mcpTools {
			return nil, fmt.Errorf("it has more than %d tools", mcpTools)
		}
	}
	return all, nil
}

// call makes a call on a server. It does not retry: nobody knows whether a lost server has
// carried the call out.
func (h *mcpHost) call(ctx context.Context, offered, name string, input json.RawMessage) (*tools.Result, error) {
	var arguments map[string]json.RawMessage
	if err := json.Unmarshal(input, &arguments); err != nil || arguments == nil {
		return nil, &fail.Error{Code: tools.CodeBadInput, Message: "the input is no JSON object"}
	}
	ctx, cancel := context.WithTimeout(ctx, mcpCall)
	defer cancel()
	session, err := h.connect(ctx)
	var r *mcp.CallToolResult
	if err == nil {
		r, err = session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
	}
	switch {
	case err == nil && !r.IsError:
		return tools.TextResult(offered, textOf(r)), nil
	case err == nil:
		return nil, &fail.Error{Code: tools.CodeFailed, Message: headAndTail(textOf(r), maxResult)}
	case ctx.Err() != nil:
		return nil, &fail.Error{Code: tools.CodeCancelled, Message: "the call was ended: " + context.Cause(ctx).Error()}
	}
	text := headAndTail(err.Error(), maxShown)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && session != nil && (e.Code < sdkCodes || e.Code > -32000) { // the server's own word
		return nil, &fail.Error{Code: tools.CodeFailed, Message: text}
	}
	h.drop(session)
	return nil, &fail.Error{Code: tools.CodeUnreachable, Message: h.side() + ":" + h.Name + " does not answer: " + text}
}

// textOf returns the text of a result for the model.
func textOf(r *mcp.CallToolResult) string {
	var parts []string
	for _, c := range r.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.EmbeddedResource:
			if c.Resource != nil && c.Resource.Text != "" {
				parts = append(parts, c.Resource.Text)
				continue
			}
			parts = append(parts, "[a resource that is no text]")
		case *mcp.ResourceLink:
			parts = append(parts, fmt.Sprintf("[a resource: %s]", c.URI))
		default:
			parts = append(parts, "[what is no text is left out]")
		}
	}
	if len(parts) == 0 && r.StructuredContent != nil {
		if text, err := json.Marshal(r.StructuredContent); err == nil {
			return string(text)
		}
	}
	return strings.Join(parts, "\n")
}

// bounded is a transport that bounds the bytes of an answer.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, mcpAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", mcpAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
