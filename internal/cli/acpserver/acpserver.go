// Package acpserver serves an editor, by the Agent Client Protocol, with an agent that
// works in a sprite. It passes messages between the editor and the agent, and checks each
// one: the sprite may be hostile, and must get nothing of this machine. The agent's file
// and terminal methods are served in the sprite (package acp); a request for one that
// comes here is refused.
package acpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/cove-dev/cove/internal/lib/acp"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/sprites"
)

// endLimit is how long an agent may take to end, once the editor has. Its bridge kills it long
// before, unless the machine is busy.
const endLimit = time.Minute

// maxSaid is how many bytes of an agent's last output its end error has.
const maxSaid = 2 << 10

// The codes of Error.
const (
	CodeSandboxGone = "sandbox_gone" // the sprite was removed, its sandbox has ended, or the connection to it
	CodeAgentEnded  = "agent_ended"  // the agent, though its sandbox lives
)

// Server offers one agent in one sprite to one editor. Set the fields before Run.
type Server struct {
	Sprite  *sprites.Sprite
	Command string   // starts the agent: a command line for the sprite's sh
	Env     []string // KEY=VALUE, over the sprite's own
	Project Folders
	Stderr  io.Writer // gets what the agent prints on standard error, as it is
}

// Run starts the agent and carries messages until the editor's have ended. If the agent
// ends first, every open or later request is answered with an error. Run returns that
// error, a *fail.Error.
func (s *Server) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	program, err := guestbin.Find(ctx, s.Sprite)
	if err != nil {
		return err
	}
	lasting, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := s.Sprite.CommandContext(lasting, program, "acp", "bridge", "/bin/sh", "-c", s.Command)
	cmd.Dir, cmd.Env, cmd.Label = s.Project.There, s.Env, "the agent"
	said := &tail{w: s.Stderr}
	cmd.Stderr = said
	agentOut, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	agentIn, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := &relay{folders: s.Project, editor: &acp.Writer{W: out}, agent: &acp.Writer{W: agentIn}, pending: map[string]string{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := r.fromAgent(agentOut)
		if err != nil {
			cancel() // no honest agent sends such a message
		}
		_ = agentOut.Close()
		waited := cmd.Wait()
		if err == nil {
			err = ending(s.Sprite.Name(), waited, said.String())
		}
		r.end(err)
	}()
	editor := make(chan error, 1)
	go func() { editor <- r.fromEditor(in) }() // ends with the process, where the input does not
	select {
	case err = <-editor:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = agentIn.Close()
	select {
	case <-ended:
	case <-time.After(endLimit):
		cancel()
		<-ended
	}
	if err == nil && r.lost() != nil && !r.closed() {
		err = r.lost()
	}
	return err
}

// ending is why the agent has ended.
func ending(sprite string, err error, said string) *fail.Error {
	exit, exited := errors.AsType[*sprites.ExitError](err)
	if said != "" {
		said = ": " + said
	}
	switch {
	case err == nil:
		return fail.New(CodeAgentEnded, "the agent has ended"+said, "")
	case exited && exit.Code == 2 && strings.Contains(said, "usage: cove-guest"):
		return fail.New(CodeAgentEnded, fmt.Sprintf("the sprite's cove-guest is older than this cove; restart the sprite: cove restart %s", sprite), "")
	case exited && exit.Reason == "":
		return fail.New(CodeAgentEnded, fmt.Sprintf("the agent has ended (%v)%s", err, said), "")
	}
	return fail.New(CodeSandboxGone, fmt.Sprintf("the sandbox is gone, or cannot be reached (%v); nothing was done on this machine", err), "")
}

// A relay carries the messages of one editor and one agent.
type relay struct {
	folders       Folders
	editor, agent *acp.Writer

	mu      sync.Mutex
	pending map[string]string // requests of the editor that are not answered: their methods, by id
	err     *fail.Error       // the agent has ended
	done    bool              // the editor has
}

func (r *relay) lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return nil
	}
	return r.err
}

func (r *relay) closed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// end answers the requests that wait for an agent that has ended.
func (r *relay) end(err error) {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok {
		e = fail.New(CodeAgentEnded, err.Error(), "")
	}
	r.mu.Lock()
	r.err = e
	waiting := r.pending
	r.pending = nil
	r.mu.Unlock()
	for id := range waiting {
		_ = r.editor.Send(acp.Message{ID: json.RawMessage(id)}.Refuse(refusal(e))) // an editor that has gone needs no answer
	}
}

func refusal(e *fail.Error) *sdk.RequestError {
	return &sdk.RequestError{Code: -32603, Message: e.Message, Data: map[string]string{"code": e.Code}}
}

// fromEditor carries the editor's messages until they end.
func (r *relay) fromEditor(in io.Reader) error {
	messages := acp.NewReader(in)
	for {
		m, _, err := messages.Next()
		switch {
		case errors.Is(err, io.EOF):
			r.mu.Lock()
			r.done = r.err == nil
			r.mu.Unlock()
			return nil
		case errors.Is(err, acp.ErrGarbage):
			continue
		case errors.Is(err, acp.ErrLong):
			if m.Request() {
				_ = r.editor.Send(m.Refuse(sdk.NewInvalidRequest(map[string]string{"error": err.Error()})))
			}
			continue
		case err != nil:
			return fmt.Errorf("read the editor's messages: %w", err)
		}
		if refused := r.prepare(&m); refused != nil {
			if m.Request() {
				_ = r.editor.Send(m.Refuse(refused))
			}
			continue
		}
		if r.noted(m) {
			_ = r.agent.Send(m) // its end says why it fails
		}
	}
}

// noted notes a request. If the agent has ended, it answers the request with an error.
func (r *relay) noted(m acp.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err == nil && m.Request():
		r.pending[string(m.ID)] = m.Method
	case r.err != nil && m.Request():
		_ = r.editor.Send(m.Refuse(refusal(r.err)))
	}
	return r.err == nil
}

// prepare changes a message of the editor's into the one that the agent gets.
func (r *relay) prepare(m *acp.Message) *sdk.RequestError {
	var params map[string]any
	if m.Method != "" && len(m.Params) > 0 && decode(m.Params, &params) != nil {
		return sdk.NewInvalidParams(map[string]string{"error": "they are not an object"})
	}
	if m.Method == "" {
		return nil // the answer to a request for permission: it names an option
	}
	if m.Method == sdk.AgentMethodInitialize && params != nil {
		// No agent is told what the editor can do on this machine.
		params["clientCapabilities"] = map[string]any{}
	}
	if cwd, ok := params["cwd"].(string); ok {
		if _, inside := r.folders.there(cwd); !inside {
			return sdk.NewInvalidParams(map[string]string{"error": fmt.Sprintf(
				"the folder %s is not in %s, which is the sprite's %s; start cove acp with --project %s", cwd, r.folders.Here, r.folders.There, cwd)})
		}
	}
	if strings.HasPrefix(m.Method, "session/") {
		// They would be started in the sprite, with this machine's paths and secrets.
		if _, ok := params["mcpServers"]; ok {
			params["mcpServers"] = []any{}
		}
		delete(params, "additionalDirectories")
	}
	r.folders.rewrite(params, r.folders.toSprite)
	if params != nil {
		m.Params = encode(params)
	}
	return nil
}

// fromAgent carries the agent's messages until they end.
func (r *relay) fromAgent(out io.Reader) error {
	messages := acp.NewReader(out)
	for {
		m, _, err := messages.Next()
		switch {
		case errors.Is(err, acp.ErrGarbage):
			continue
		case errors.Is(err, acp.ErrLong):
			return fail.New(CodeAgentEnded, "the agent was stopped: "+err.Error(), "")
		case err != nil:
			return nil //nolint:nilerr // the command's end says more
		}
		r.take(m)
	}
}

// take handles a message of the agent's. It passes answers to the editor's requests,
// updates, and requests for permission, and nothing else.
func (r *relay) take(m acp.Message) {
	switch {
	case m.Answer():
		r.mu.Lock()
		method, asked := r.pending[string(m.ID)]
		delete(r.pending, string(m.ID))
		r.mu.Unlock()
		if !asked {
			return
		}
		answer := acp.Message{ID: m.ID, Result: m.Result, Error: m.Error}
		if len(m.Error) > 0 {
			answer.Error, answer.Result = r.plainError(m.Error), nil
		} else {
			answer.Result = r.fromSprite(m.Result, method)
		}
		_ = r.editor.Send(answer)
	case m.Request() && m.Method == sdk.ClientMethodSessionRequestPermission,
		!m.Request() && (m.Method == sdk.ClientMethodSessionUpdate || m.Method == "$/cancel_request"):
		_ = r.editor.Send(acp.Message{ID: m.ID, Method: m.Method, Params: r.fromSprite(m.Params, m.Method)})
	case m.Request():
		_ = r.agent.Send(m.Refuse(sdk.NewMethodNotFound(m.Method)))
	}
}

// fromSprite changes params or a result of the agent's into those that the editor gets.
func (r *relay) fromSprite(raw json.RawMessage, method string) json.RawMessage {
	var v any
	if len(raw) == 0 || decode(raw, &v) != nil {
		return json.RawMessage("null")
	}
	dropMeta(v)
	r.folders.rewrite(v, r.folders.toEditor)
	if hello, ok := v.(map[string]any); ok && method == sdk.AgentMethodInitialize {
		// A way to log in may be a command that the editor runs, here.
		hello["authMethods"] = []any{}
		if can, ok := hello["agentCapabilities"].(map[string]any); ok {
			delete(can, "mcpCapabilities") // it is given no servers
			delete(can, "auth")
		}
	}
	return encode(v)
}

// plainError is an error of the agent's with its data as text in the message. An editor
// could read structured data as instructions to do something on this machine.
func (r *relay) plainError(raw json.RawMessage) json.RawMessage {
	var e struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if json.Unmarshal(raw, &e) != nil {
		e.Code, e.Message = -32603, "Internal error"
	}
	plain := sdk.RequestError{Code: e.Code, Message: e.Message}
	if len(e.Data) > 0 && string(e.Data) != "null" {
		plain.Message += ": " + string(e.Data)
	}
	return encode(plain)
}

// tail passes on what is written, and keeps the end.
type tail struct {
	w io.Writer

	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxSaid):]
	t.mu.Unlock()
	return t.w.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.buf), "\uFFFD"))
}
