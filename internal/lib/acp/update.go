package acp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"
)

// update is the part of a session/update that cove reports. An unknown field or kind is not an
// error: agents are ahead of any version of the protocol.
type update struct {
	SessionID string `json:"sessionId"`
	Update    news   `json:"update"`
}

// news is the content of an update.
type news struct {
	SessionUpdate string `json:"sessionUpdate"`
	toolCall

	Entries []Entry `json:"entries"`
	Cost    *cost   `json:"cost"`
}

type cost struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// toolCall describes a tool, as updates and requests for permission do.
type toolCall struct {
	ToolCallID string          `json:"toolCallId"`
	Title      string          `json:"title"`
	Kind       string          `json:"kind"`
	Status     string          `json:"status"`
	Locations  []location      `json:"locations"`
	RawInput   json.RawMessage `json:"rawInput"`
	Content    json.RawMessage `json:"content"` // of an update of what the agent says, too
	RawOutput  json.RawMessage `json:"rawOutput"`

	left int // bytes of the input that are not kept
}

type location struct {
	Path string `json:"path"`
}

// block is a part of a content.
type block struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Path    string `json:"path"`
	URI     string `json:"uri"`
	Content *block `json:"content"`
}

// tell makes events of an update.
func (e *events) tell(u update) {
	switch up := u.Update; up.SessionUpdate {
	case "agent_message_chunk", "agent_thought_chunk":
		var b block
		_ = json.Unmarshal(up.Content, &b) // what can't be read has no text
		kind := "text"
		if up.SessionUpdate == "agent_thought_chunk" {
			kind = "thought"
		}
		if b.Text != "" {
			e.say(kind, b.Text)
		}
	case "user_message_chunk": // what was said to the agent
	case "tool_call", "tool_call_update":
		ev, _ := up.event()
		ev.Type = "tool_call"
		if up.SessionUpdate == "tool_call_update" {
			ev.Type = "tool_update"
			if ev.Text = contentText(up.Content); ev.Text == "" {
				ev.Text = short(rawText(up.RawOutput), maxText)
			}
		}
		e.add(ev)
	case "plan":
		ev := Event{Type: "plan", Entries: up.Entries[:min(len(up.Entries), maxList)]}
		for i := range ev.Entries {
			ev.Entries[i] = Entry{Content: short(ev.Entries[i].Content, maxName), Status: short(ev.Entries[i].Status, maxName)}
		}
		e.add(ev)
	case "usage_update":
		if up.Cost != nil && up.Cost.Currency == "USD" {
			e.add(Event{Type: "usage", Usage: &Usage{CostUSD: up.Cost.Amount}})
		}
	default:
		e.add(Event{Type: "update", Title: short(up.SessionUpdate, maxName)})
	}
}

// event returns the event for a tool that begins. left counts the bytes of its input that are left out.
func (t toolCall) event() (ev Event, left int) {
	ev = Event{
		ID: short(t.ToolCallID, maxName), Title: short(t.Title, maxName), Kind: short(t.Kind, maxName),
		Status: short(t.Status, maxName),
	}
	ev.Text, left = t.input()
	for _, l := range t.Locations[:min(len(t.Locations), maxList)] {
		ev.Paths = append(ev.Paths, short(l.Path, maxName))
	}
	return ev, left
}

// calls are the tools that work or are about to, by their ids, as their updates describe them.
type calls map[string]toolCall

const (
	maxCalls     = 100
	maxCallInput = 64 << 10 // bytes: a longer input is kept as it is told
)

// note takes in an update.
func (c *calls) note(n news) {
	if n.SessionUpdate != "tool_call" && n.SessionUpdate != "tool_call_update" {
		return
	}
	if n.Status == "completed" || n.Status == "failed" {
		delete(*c, n.ToolCallID)
		return
	}
	if *c == nil {
		*c = calls{}
	}
	if _, known := (*c)[n.ToolCallID]; !known && len(*c) >= maxCalls {
		return
	}
	t := c.fill(n.toolCall)
	if len(t.RawInput)+len(t.Content) > maxCallInput {
		var text string
		text, t.left = t.input()
		t.RawInput, t.Content = json.RawMessage(text), nil
		if !json.Valid(t.RawInput) {
			t.RawInput = json.RawMessage(encode(text))
		}
	}
	t.RawInput, t.Content, t.RawOutput = bytes.Clone(t.RawInput), bytes.Clone(t.Content), nil
	t.Title, t.Kind, t.Locations = short(t.Title, maxName), short(t.Kind, maxName), t.Locations[:min(len(t.Locations), maxList)]
	(*c)[n.ToolCallID] = t
}

// fill adds what earlier updates said of a tool. A request for permission need only name the tool.
func (c *calls) fill(t toolCall) toolCall {
	was := (*c)[t.ToolCallID]
	t.Title, t.Kind = cmp.Or(t.Title, was.Title), cmp.Or(t.Kind, was.Kind)
	if len(t.Locations) == 0 {
		t.Locations = was.Locations
	}
	if rawText(t.RawInput) == "" {
		t.RawInput, t.left = was.RawInput, was.left
	}
	if len(diffs(t.Content)) == 0 {
		t.Content = was.Content
	}
	return t
}

// contentText is the text of a tool's content.
func contentText(content json.RawMessage) string {
	var blocks []block
	if json.Unmarshal(content, &blocks) != nil {
		return ""
	}
	var parts []string
	for _, b := range blocks {
		switch {
		case b.Type == "content" && b.Content != nil && b.Content.Text != "":
			parts = append(parts, b.Content.Text)
		case b.Type == "diff":
			parts = append(parts, "changed "+b.Path)
		}
	}
	return short(strings.Join(parts, "\n"), maxText)
}

// rawText is any JSON as text: a string as it is, and an empty text for JSON without content.
func rawText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	switch text := string(raw); text {
	case "null", "{}", "[]":
		return ""
	default:
		return text
	}
}
