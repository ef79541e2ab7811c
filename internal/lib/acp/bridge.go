package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	acp "github.com/coder/acp-go-sdk"
)

// Bridge is `cove-guest acp bridge`: an agent in this sprite that talks with a client
// outside. It serves the agent's file and terminal methods here, whatever the client offers.
// Every other message passes. Set the fields before Run.
type Bridge struct {
	Argv   []string
	Dir    string   // where the agent starts
	Keeper []string // the command line of a keeper (tools.Keep)

	In  io.Reader // from the client
	Out io.Writer // to the client
	Err io.Writer // what the agent prints that is no message
}

// bridge is a Bridge at work. For the SDK it is the agent's client, for the methods that are
// served here.
type bridge struct {
	local
	agent *process
	out   *Writer
	err   io.Writer
	toSDK io.Writer
	shown map[string]*terminal // by the tool call that shows one
}

func (b *bridge) RequestPermission(context.Context, acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	return acp.RequestPermissionResponse{}, acp.NewMethodNotFound(acp.ClientMethodSessionRequestPermission) // the client has those
}

func (b *bridge) SessionUpdate(context.Context, acp.SessionNotification) error { return nil }

// Run starts the agent, and returns when the client's messages have ended and the agent
// with them. It is an error if the agent ends by itself, or if ctx ends.
func (br *Bridge) Run(ctx context.Context) error {
	agent, err := start(br.Argv, br.Dir)
	if err != nil {
		return err
	}
	messages, toSDK := io.Pipe()
	b := &bridge{
		local: local{dir: br.Dir, keeper: br.Keeper}, agent: agent, out: &Writer{W: br.Out}, err: br.Err, toSDK: toSDK, shown: map[string]*terminal{},
	}
	conn := acp.NewClientSideConnection(b, agent.in, messages)
	conn.SetLogger(quiet)
	go func() { <-conn.Done(); _ = messages.Close() }()
	printed := make(chan struct{})
	go func() {
		agent.lines(b.fromAgent, b.noise, b.lost)
		_ = toSDK.Close()
		close(printed)
	}()
	client := make(chan error, 1)
	go func() { client <- b.fromClient(br.In) }() // ends with the process, where the input does not
	select {
	case err = <-client:
	case <-printed:
		agent.quit()
		err = fmt.Errorf("the agent %s", agent.howEnded())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	agent.quit()
	b.close()
	<-printed
	<-conn.Done()
	return errors.Join(err, b.out.Err())
}

func (b *bridge) noise(text string) { _, _ = io.WriteString(b.err, text+"\n") }

// lost sends the client an error in place of an answer of the agent's that is too long.
func (b *bridge) lost(m Message) {
	_ = b.out.Send(m.Refuse(acp.NewInternalError(map[string]any{"error": "the agent's answer is too long"})))
}

// fromClient passes on what the client says, until it ends.
func (b *bridge) fromClient(in io.Reader) error {
	r := NewReader(in)
	for {
		m, line, err := r.Next()
		switch {
		case errors.Is(err, ErrGarbage):
			continue
		case errors.Is(err, ErrLong):
			if m.Request() {
				_ = b.out.Send(m.Refuse(acp.NewInvalidRequest(map[string]any{"error": err.Error()})))
			}
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if m.Method == acp.AgentMethodInitialize {
			if m.Params, err = withCapabilities(m.Params); err != nil {
				_ = b.out.Send(m.Refuse(acp.NewInvalidParams(map[string]any{"error": err.Error()})))
				continue
			}
			line = bytes.TrimSpace(m.Line())
		}
		if _, err := b.agent.in.Write(append(line, '\n')); err != nil {
			return nil //nolint:nilerr // the agent has ended, which says more
		}
	}
}

// withCapabilities adds the file and terminal methods to a client's greeting.
func withCapabilities(params json.RawMessage) (json.RawMessage, error) {
	var all, can map[string]json.RawMessage
	if err := json.Unmarshal(params, &all); err != nil {
		return nil, err
	}
	if text := all["clientCapabilities"]; len(text) > 0 {
		if err := json.Unmarshal(text, &can); err != nil {
			return nil, err
		}
	}
	if can == nil {
		can = map[string]json.RawMessage{}
	}
	can["fs"], can["terminal"] = json.RawMessage(`{"readTextFile":true,"writeTextFile":true}`), json.RawMessage("true")
	text, err := json.Marshal(can)
	if err != nil {
		return nil, err
	}
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	all["clientCapabilities"] = text
	return json.Marshal(all)
}

// fromAgent passes the agent's messages on, or has the SDK serve them here.
func (b *bridge) fromAgent(m Message, line []byte) {
	switch {
	case m.Request() && served(m.Method):
		_, _ = b.toSDK.Write(append(line, '\n')) // it fails when the connection has ended
		return
	case m.Method == cancelRequest:
		_, _ = b.toSDK.Write(append(bytes.Clone(line), '\n')) // which of the two has the request, they know
	case m.Method == acp.ClientMethodSessionUpdate:
		if params := b.showTerminals(m.Params); params != nil {
			m.Params = params
			line = bytes.TrimSpace(m.Line())
		}
	}
	_, _ = b.out.Write(append(line, '\n')) // its error is looked at in the end
}

// showTerminals replaces the ids of terminals, which the client does not know, by their
// output. It returns nil if there is nothing to change.
func (b *bridge) showTerminals(params json.RawMessage) json.RawMessage {
	var all struct {
		SessionID json.RawMessage            `json:"sessionId"`
		Update    map[string]json.RawMessage `json:"update"`
	}
	var call, status string
	if json.Unmarshal(params, &all) != nil || json.Unmarshal(all.Update["toolCallId"], &call) != nil {
		return nil
	}
	_ = json.Unmarshal(all.Update["status"], &status) // there may be none
	var content []json.RawMessage
	changed := false
	if json.Unmarshal(all.Update["content"], &content) == nil {
		for i, part := range content {
			var c struct {
				Type       string `json:"type"`
				TerminalID string `json:"terminalId"`
			}
			if json.Unmarshal(part, &c) != nil || c.Type != "terminal" {
				continue
			}
			text := ""
			if t, err := b.terminal(c.TerminalID); err == nil {
				text, _ = t.output.text()
				b.shown[call] = t
			}
			content[i], changed = textContent(text), true
		}
	}
	ended := status == "completed" || status == "failed"
	if t := b.shown[call]; t != nil && ended {
		if len(content) == 0 {
			text, _ := t.output.text()
			content, changed = []json.RawMessage{textContent(text)}, true
		}
		delete(b.shown, call)
	}
	if !changed {
		return nil
	}
	var err error
	if all.Update["content"], err = json.Marshal(content); err != nil {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil
	}
	return text
}

func textContent(text string) json.RawMessage {
	type inner struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	raw, err := json.Marshal(struct {
		Type    string `json:"type"`
		Content inner  `json:"content"`
	}{"content", inner{"text", short(text, maxText)}})
	if err != nil {
		return json.RawMessage("null")
	}
	return raw
}
