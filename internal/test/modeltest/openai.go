package modeltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// OpenAI is an http.Handler that plays a script by the Responses API (POST
// …/responses) and by chat completions (POST …/chat/completions). Set the exported
// fields before use.
type OpenAI struct {
	Turns  []Turn
	Key    string    // required as bearer token, unless empty
	Status int       // answered to every request with an error body, unless 0
	Fails  []Failure // the answers to the first requests, before the script begins
	Aside  string    // the answer to a request without tools; empty: ok

	// Hold, unless nil, is called in the middle of each streamed answer, with the
	// number of the turn.
	Hold func(turn int)

	script script
}

// Requests returns the requests so far.
func (o *OpenAI) Requests() []Request { return o.script.asked() }

// openaiBody is the part of a request of either kind that the server reads.
type openaiBody struct {
	Model         string          `json:"model"`
	Stream        bool            `json:"stream"`
	Instructions  string          `json:"instructions"`
	Input         json.RawMessage `json:"input"`
	Messages      []openaiItem    `json:"messages"`
	Tools         []openaiTool    `json:"tools"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// openaiTool is a tool, or a namespace of some.
type openaiTool struct {
	Type     string
	Name     string
	Function struct{ Name string }
	Tools    []openaiTool

	namespace string
}

// openaiItem is a message, or an item of an input.
type openaiItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	CallID  string          `json:"call_id"`
	Content json.RawMessage `json:"content"`
	Output  json.RawMessage `json:"output"`
	Tools   []openaiTool    `json:"tools"` // of additional_tools: an agent may give them so
}

// addTools adds tools. It adds those within a namespace one by one.
func (m *openaiBody) addTools(tools []openaiTool, namespace string) {
	for _, t := range tools {
		if t.Type == "namespace" {
			m.addTools(t.Tools, t.Name)
			continue
		}
		t.namespace = namespace
		m.Tools = append(m.Tools, t)
	}
}

// ServeHTTP answers the two calls, and an empty list of models to anything else.
func (o *OpenAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	chat := strings.HasSuffix(r.URL.Path, "/chat/completions")
	if r.Method != http.MethodPost || !chat && !strings.HasSuffix(r.URL.Path, "/responses") {
		answerJSON(w, http.StatusOK, object{"object": "list", "data": []string{}})
		return
	}
	var m openaiBody
	body, err := readBody(r, &m)
	if err != nil {
		openaiFail(w, http.StatusBadRequest, "", err.Error())
		return
	}
	req := Request{Path: r.URL.Path, Key: r.Header.Get("X-Api-Key"), Auth: r.Header.Get("Authorization"), Model: m.Model, System: m.Instructions, Body: body}
	answered := m.answered(&req)
	for _, t := range m.Tools {
		req.Tools = append(req.Tools, cmp.Or(t.Name, t.Function.Name))
	}
	f, failing := o.script.note(req, o.Fails)
	switch {
	case o.Key != "" && req.Auth != "Bearer "+o.Key:
		openaiFail(w, http.StatusUnauthorized, "", "Incorrect API key provided")
	case o.Status != 0:
		openaiFail(w, o.Status, "", "scripted")
	case failing:
		if f.begin(w, r) {
			f.openai(w)
		}
	case chat:
		turnOf(o.Turns, answered, len(m.Tools) > 0, o.Aside).chat(w, m, answered, o.Hold)
	default:
		turnOf(o.Turns, answered, len(m.Tools) > 0, o.Aside).responses(w, m, answered, o.Hold)
	}
}

// answered counts the model's answers in a request, and notes its last message.
func (m *openaiBody) answered(req *Request) int {
	items := m.Messages
	if m.Input != nil && json.Unmarshal(m.Input, &items) != nil {
		req.Last = string(m.Input) // a plain text
		return 0
	}
	n, within := 0, false
	for _, it := range items {
		if it.Type == "additional_tools" {
			m.addTools(it.Tools, "")
			continue
		}
		req.Last = string(it.Content)
		if it.Output != nil {
			req.Last = string(it.Output)
		}
		if it.Role == "system" || it.Role == "developer" {
			req.System += string(it.Content)
		}
		own := it.Role == "assistant" || it.Type == "reasoning" || it.Type == "function_call" || it.Type == "custom_tool_call"
		if own && !within {
			n++
		}
		within = own
		var turn int
		if _, err := fmt.Sscanf(it.CallID, "call_%03d", &turn); err == nil && own {
			n = turn + 1 // its calls and their outputs may alternate
		}
	}
	return n
}

// openaiFail answers an error.
func openaiFail(w http.ResponseWriter, status int, kind, text string) {
	answerJSON(w, status, object{"error": openaiError(status, kind, text)})
}

func openaiError(status int, kind, text string) object {
	kinds := map[int]string{400: "invalid_request_error", 401: "invalid_api_key", 429: "rate_limit_exceeded"}
	return object{"message": text, "type": cmp.Or(kind, kinds[status], "server_error"), "code": cmp.Or(kind, kinds[status], "server_error"), "param": nil}
}

func (f Failure) openai(w http.ResponseWriter) {
	if f.Status != http.StatusOK {
		openaiFail(w, f.Status, f.Kind, "scripted")
		return
	}
	newEvents(w).send("response.failed", object{"type": "response.failed", "sequence_number": 0, "response": object{
		"id": "resp_failed", "object": "response", "status": "failed", "output": []string{}, "error": openaiError(f.Status, f.Kind, "scripted"),
	}})
}

// tool returns the tool of a name. A tool of type custom takes a text instead of an
// object: the "input" of the call's input.
func (m *openaiBody) tool(name string) openaiTool {
	for _, t := range m.Tools {
		if t.Name == name {
			return t
		}
	}
	return openaiTool{}
}

// items returns a turn's output in the form of the Responses API.
func (t Turn) items(m openaiBody, turn int) []object {
	var out []object
	if t.Text != "" {
		out = append(out, object{"type": "message", "id": fmt.Sprintf("msg_%03d", turn), "role": "assistant", "status": "completed", "content": []object{
			{"type": "output_text", "text": t.Text, "annotations": []string{}},
		}})
	}
	for i, c := range t.Calls {
		item := object{"type": "function_call", "id": fmt.Sprintf("fc_%03d%03d", turn, i), "call_id": fmt.Sprintf("call_%03d%03d", turn, i), "name": c.Tool, "status": "completed"}
		tool := m.tool(c.Tool)
		if tool.namespace != "" {
			item["namespace"] = tool.namespace
		}
		if tool.Type == "custom" {
			item["type"], item["input"] = "custom_tool_call", c.Input["input"]
		} else {
			item["arguments"] = jsonText(c.Input)
		}
		out = append(out, item)
	}
	return out
}

// responses sends the turn by the Responses API.
func (t Turn) responses(w http.ResponseWriter, m openaiBody, turn int, hold func(int)) {
	items := t.items(m, turn)
	whole := func(status string, output []object) object {
		r := object{"id": fmt.Sprintf("resp_%03d", turn), "object": "response", "created_at": 1, "model": m.Model, "status": status, "output": output}
		if status == "completed" {
			r["usage"] = object{
				"input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
				"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0},
			}
		}
		return r
	}
	if !m.Stream {
		answerJSON(w, http.StatusOK, whole("completed", items))
		return
	}
	out, n := newEvents(w), 0
	send := func(kind string, data object) {
		data["type"], data["sequence_number"] = kind, n
		n++
		out.send(kind, data)
	}
	send("response.created", object{"response": whole("in_progress", []object{})})
	for i, item := range items {
		started := object{}
		for k, v := range item {
			started[k] = v
		}
		started["status"] = "in_progress"
		at := object{"output_index": i, "item_id": item["id"]}
		part := func(kind, key string, value any) {
			data := object{key: value}
			for k, v := range at {
				data[k] = v
			}
			send(kind, data)
		}
		if item["type"] == "message" {
			started["content"] = []object{}
			at["content_index"] = 0
		} else if item["arguments"] != nil {
			started["arguments"] = ""
		}
		send("response.output_item.added", object{"output_index": i, "item": started})
		if i == 0 && len(m.Tools) > 0 && hold != nil {
			hold(turn)
		}
		if item["type"] == "message" {
			part("response.content_part.added", "part", object{"type": "output_text", "text": "", "annotations": []string{}})
			part("response.output_text.delta", "delta", t.Text)
		} else if item["arguments"] != nil {
			part("response.function_call_arguments.delta", "delta", item["arguments"])
		}
		if t.Cut {
			out.cut()
		}
		if item["type"] == "message" {
			part("response.output_text.done", "text", t.Text)
			part("response.content_part.done", "part", object{"type": "output_text", "text": t.Text, "annotations": []string{}})
		} else if item["arguments"] != nil {
			part("response.function_call_arguments.done", "arguments", item["arguments"])
		}
		send("response.output_item.done", object{"output_index": i, "item": item})
	}
	send("response.completed", object{"response": whole("completed", items)})
}

// chat sends the turn by chat completions.
func (t Turn) chat(w http.ResponseWriter, m openaiBody, turn int, hold func(int)) {
	finish := "stop"
	message := object{"role": "assistant", "content": t.Text}
	var calls []object
	for i, c := range t.Calls {
		finish = "tool_calls"
		calls = append(calls, object{
			"index": i, "id": fmt.Sprintf("call_%03d%03d", turn, i), "type": "function",
			"function": object{"name": c.Tool, "arguments": jsonText(c.Input)},
		})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	whole := object{"id": fmt.Sprintf("chatcmpl-%03d", turn), "created": 1, "model": m.Model}
	usage := object{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
	if !m.Stream {
		whole["object"], whole["usage"] = "chat.completion", usage
		whole["choices"] = []object{{"index": 0, "message": message, "finish_reason": finish}}
		answerJSON(w, http.StatusOK, whole)
		return
	}
	out := newEvents(w)
	whole["object"] = "chat.completion.chunk"
	send := func(delta object, finish any) {
		whole["choices"] = []object{{"index": 0, "delta": delta, "finish_reason": finish}}
		out.send("", whole)
	}
	send(object{"role": "assistant", "content": ""}, nil)
	if len(m.Tools) > 0 && hold != nil {
		hold(turn)
	}
	if t.Text != "" {
		send(object{"content": t.Text}, nil)
	}
	if t.Cut {
		out.cut()
	}
	for _, c := range calls {
		send(object{"tool_calls": []object{c}}, nil)
	}
	send(object{}, finish)
	if m.StreamOptions.IncludeUsage {
		whole["choices"], whole["usage"] = []object{}, usage
		out.send("", whole)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
