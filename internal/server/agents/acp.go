package agents

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// ACP is any agent that speaks the Agent Client Protocol on its standard streams. Task.Command
// starts the agent. cove-guest is the client, inside the sprite; the events that it prints
// (internal/lib/acp's Event) are the agent's report.
type ACP struct{}

// PermissionChoices are what Task.Permissions may be; empty is the first.
var PermissionChoices = []string{"allow", PermissionAsk, "deny"}

// PermissionAsk makes the client ask a person, and wait for the answer.
const PermissionAsk = "ask"

// Name is "acp".
func (ACP) Name() string { return "acp" }

// Prepare puts instructions for unattended work, and the plan below them, into a file that the
// client reads. In a file the plan's length does not matter.
func (ACP) Prepare(t Task) (Work, error) {
	if strings.TrimSpace(t.Plan) == "" {
		return Work{}, fmt.Errorf("the plan %s is empty", t.PlanName)
	}
	if t.Model != "" {
		return Work{}, errors.New("an agent that speaks ACP gets its model from its own command; leave out --model")
	}
	if t.Interactive {
		return Work{}, errors.New("an agent that speaks ACP has no terminal; leave out --interactive")
	}
	if t.Session != "" && !plainSession(t.Session) {
		return Work{}, fmt.Errorf("%.40q can't be a session", t.Session)
	}
	prompt := t.Dir + "/" + promptName
	w := Work{
		Files:      map[string]File{promptName: {[]byte(t.prompt()), 0o644}},
		Env:        acpEnv(t),
		Verify:     []string{cove.Guest, "version"}, // the agent's client; nothing else can tell whether the command works
		Connectors: []string{"anthropic", "openai", "gemini"},
		Argv:       []string{cove.Guest, "acp", "run", "--prompt=" + prompt, "--permissions=" + t.Permissions},
		Input: &cove.JobInput{
			Over:  cove.LineRule{Stream: "events", Fields: map[string]string{"type": "permission_request"}},
			Again: &cove.LineRule{Stream: "events", Fields: map[string]string{"type": "permission"}},
		},
	}
	if t.Session != "" {
		w.Argv = append(w.Argv, "--session="+t.Session)
	}
	for _, s := range t.startServers(&w) {
		w.Argv = append(w.Argv, "--mcp="+s.name+"="+s.program)
	}
	w.Argv = append(w.Argv, "--", "/bin/sh", "-c", t.Command)
	return w, nil
}

// plainSession reports whether an agent's name for a session is one that can be shown
// and handed back.
func plainSession(id string) bool {
	return len(id) <= 500 && !strings.ContainsFunc(id, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}

// acpEnv leads those agents that ask for a model by these variables to the connectors.
func acpEnv(t Task) []string {
	env := []string{
		pathOf(t),
		"DISABLE_AUTOUPDATER=1",
		"DISABLE_TELEMETRY=1",
	}
	if !t.Direct {
		env = append(env, "ANTHROPIC_BASE_URL=http://anthropic.connect.internal", "ANTHROPIC_API_KEY="+claudeKey)
	}
	return env
}

// Editor returns how `cove acp` starts an agent for an editor: a command line for the sprite's
// sh, and variables. Only the agent acp uses command.
func Editor(name, command, home string) (line string, env []string, err error) {
	switch name {
	case "acp":
		if strings.TrimSpace(command) == "" {
			return "", nil, errors.New(`the agent acp needs the command that starts it: --agent-command "opencode acp"`)
		}
	case "claude":
		command = "claude-agent-acp"
	default:
		return "", nil, fmt.Errorf("the agent %q does not speak ACP; name the command of one that does: --agent acp --agent-command COMMAND", name)
	}
	return command, acpEnv(Task{Home: home}), nil
}

// A Questioner is an Agent that may ask a person something, and wait.
type Questioner interface {
	// Question is what an event asks; nil: nothing.
	Question(ev cove.JobEvent) *cove.JobQuestion

	// Answer is a person's choice as a line for the agent's standard input, without
	// the line's end.
	Answer(a cove.JobAnswer) (string, error)
}

// Bounds on what is kept of a question. Its writer keeps to them, if it is honest.
const (
	maxOptions  = 20
	maxQuestion = 4 << 10
	maxDetail   = 17 << 10 // bytes of its tool's input
)

// Question reads a permission_request.
func (ACP) Question(ev cove.JobEvent) *cove.JobQuestion {
	if ev.Type != "event" || ev.Cut || !strings.HasPrefix(ev.Text, `{"type":"permission_request"`) {
		return nil
	}
	var e acpEvent
	if json.Unmarshal([]byte(ev.Text), &e) != nil || len(e.Options) == 0 || len(e.Options) > maxOptions || len(e.ID) > 20 {
		return nil
	}
	q := &cove.JobQuestion{ID: e.ID, Title: clip(e.Title), Kind: clip(e.Kind)}
	detail, left := printable.Middle(e.Text, maxDetail)
	q.Detail, q.Incomplete = detail, incomplete(e, left)
	if len(e.Paths) > 0 {
		q.Path = clip(e.Paths[0])
	}
	for i, o := range e.Options {
		if o.ID != strconv.Itoa(i+1) {
			return nil
		}
		q.Options = append(q.Options, cove.QuestionOption{ID: o.ID, Name: clip(o.Name), Kind: clip(o.Kind)})
	}
	return q
}

// incomplete says in words that a question does not have all that an answer allows; empty: it has.
func incomplete(e acpEvent, left int) string {
	switch left += e.Left; {
	case e.Text == "":
		return "The agent has not said what it will run or change: only its title for it is known."
	case left > 0:
		return fmt.Sprintf("Not all of what it will run or change is shown: %s are left out.", printable.Count(left, "byte"))
	case strings.HasSuffix(e.Text, "…") && !json.Valid([]byte(e.Text)): // of an earlier cove's guest
		return "Not all of what it will run or change is shown: the end is left out."
	}
	return ""
}

func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxQuestion)], "\uFFFD")
}

// Answer is a line for cove-guest.
func (ACP) Answer(a cove.JobAnswer) (string, error) {
	line, err := json.Marshal(struct {
		ID     string `json:"id"`
		Option string `json:"option"`
	}{a.Question, a.Option})
	return string(line), err
}

// Read begins the reading of a log.
func (ACP) Read() Reader { return &acpReader{} }

// acpEvent is a line of cove-guest's, as much as is looked at.
type acpEvent struct {
	Type       string   `json:"type"`
	ID         string   `json:"id"`
	Call       string   `json:"call"`
	SessionID  string   `json:"session_id"`
	Agent      string   `json:"agent"`
	Loaded     bool     `json:"loaded"`
	Once       bool     `json:"once"`
	Text       string   `json:"text"`
	Left       int      `json:"left"`
	Title      string   `json:"title"`
	Kind       string   `json:"kind"`
	Status     string   `json:"status"`
	Paths      []string `json:"paths"`
	Option     string   `json:"option"`
	StopReason string   `json:"stop_reason"`
	Error      string   `json:"error"`
	Entries    []struct {
		Content string `json:"content"`
		Status  string `json:"status"`
	} `json:"entries"`
	Options []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"options"`
	Usage *struct {
		InputTokens  int64   `json:"input_tokens"`
		OutputTokens int64   `json:"output_tokens"`
		CostUSD      float64 `json:"cost_usd"`
	} `json:"usage"`
}

type acpReader struct {
	out     lines
	session string
	tools   map[string]acpTool // those at work, by their ids
	asked   map[string]string  // the tools that questions are about, by the questions' ids
	result  *acpEvent
	usage   *cove.Usage
	notice  string // the last thing that went wrong
	denied  int
}

// Session is the ID for continuing the agent's session; empty: none began, or the agent can't
// continue it.
func (r *acpReader) Session() string { return r.session }

func (r *acpReader) Event(ev cove.JobEvent) []Event {
	if ev.Type != "event" {
		return nil
	}
	text, ok := r.out.next(ev)
	if !ok {
		return nil
	}
	var e acpEvent
	if json.Unmarshal([]byte(text), &e) != nil || e.Type == "" {
		return nil
	}
	if u := e.Usage; u != nil {
		r.usage = &cove.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CostUSD: u.CostUSD}
	}
	switch e.Type {
	case "session":
		if plainSession(e.SessionID) && !e.Once {
			r.session = e.SessionID
		}
		verb := "session"
		if e.Loaded {
			verb = "continues session"
		}
		return []Event{{Kind: KindStart, Text: short(strings.TrimPrefix(strings.TrimSpace(e.Agent+", "+verb+" "+e.SessionID), ", "))}}
	case "text":
		return []Event{{Kind: KindText, Text: e.Text}}
	case "thought":
		return []Event{{Kind: KindThought, Text: e.Text}}
	case "tool_call", "tool_update":
		return r.tool(e)
	case "plan":
		if i := slices.IndexFunc(e.Entries, func(p struct {
			Content string `json:"content"`
			Status  string `json:"status"`
		}) bool {
			return p.Status == "in_progress"
		}); i >= 0 {
			return []Event{{Kind: KindStep, Text: short(e.Entries[i].Content)}}
		}
	case "permission_request":
		return r.ask(e)
	case "permission":
		r.decided(e)
		if e.Status != "allowed" {
			r.denied++
			return []Event{{Kind: KindDenied, Text: short(e.Title)}}
		}
	case "notice":
		r.notice = e.Text
		return []Event{{Kind: KindNotice, Text: short(e.Text)}}
	case "result":
		r.result = &e
		failed := e.Error != "" || e.StopReason != "end_turn"
		reason := e.Error
		if reason == "" && failed {
			reason = stopped(e.StopReason)
		}
		return []Event{{Kind: KindResult, Text: reason, Failed: failed}}
	}
	return []Event{}
}

// acpTool is a tool at work.
type acpTool struct {
	kind, title, text string
	told              bool
	decided           string // on the question about it: allowed, denied, cancelled
}

// tool tells of a tool's beginning and its end. Many agents say only in an update what a tool
// is about. So a pending tool is not told of before its update.
func (r *acpReader) tool(e acpEvent) []Event {
	ended := e.Status == "completed" || e.Status == "failed"
	t := r.tools[e.ID]
	t.kind, t.title = cmp.Or(e.Kind, t.kind), cmp.Or(e.Title, t.title)
	if e.Type == "tool_call" {
		t.text = e.Text
	}
	var out []Event
	if !t.told && (e.Type == "tool_update" || e.Status != "pending") {
		t.told = true
		out = append(out, t.start(e.ID))
	}
	r.keep(e.ID, t)
	if ended {
		delete(r.tools, e.ID)
		text := ""
		if e.Type == "tool_update" {
			text = e.Text
		}
		end := Event{Kind: KindToolEnd, Text: short(text), ID: e.ID, Full: text, Failed: e.Status == "failed"}
		if text == "" {
			end.Silent = silent(t.decided)
		}
		out = append(out, end)
	}
	if out == nil {
		return []Event{}
	}
	return out
}

// start tells of the tool's beginning.
func (t acpTool) start(id string) Event {
	return Event{Kind: KindToolStart, Tool: cmp.Or(t.kind, "tool"), Text: short(cmp.Or(t.title, t.text)), ID: id, Full: cmp.Or(t.text, t.title)}
}

// keep remembers a tool at work.
func (r *acpReader) keep(id string, t acpTool) {
	if _, known := r.tools[id]; !known && len(r.tools) >= maxTools {
		return
	}
	if r.tools == nil {
		r.tools = map[string]acpTool{}
	}
	r.tools[id] = t
}

// ask tells of a question after the tool that it is about. If the tool has not been told of,
// ask does so, even if it is still pending. The question repeats the tool's input.
func (r *acpReader) ask(e acpEvent) (out []Event) {
	ask := Event{Kind: KindAsk, Text: short(e.Title), Full: e.Text, Missing: incomplete(e, 0)}
	if e.Call == "" {
		return []Event{ask}
	}
	t := r.tools[e.Call]
	t.kind, t.title, t.text = cmp.Or(t.kind, e.Kind), cmp.Or(e.Title, t.title), cmp.Or(t.text, e.Text)
	if !t.told {
		t.told = true
		out = append(out, t.start(e.Call))
	}
	ask.Repeats = t.text == e.Text
	r.keep(e.Call, t)
	if len(r.asked) < maxTools {
		if r.asked == nil {
			r.asked = map[string]string{}
		}
		r.asked[e.ID] = e.Call
	}
	return append(out, ask)
}

// decided notes, for a tool, the decision on the question about it.
func (r *acpReader) decided(e acpEvent) {
	call, ok := r.asked[e.ID]
	delete(r.asked, e.ID)
	if t, at := r.tools[call]; ok && at {
		t.decided = e.Status
		r.tools[call] = t
	}
}

// silent says why a tool has no output, by the decision on the question about it.
func silent(decided string) string {
	switch decided {
	case "denied":
		return "It was refused."
	case "cancelled":
		return "It was cancelled."
	}
	return ""
}

// maxTools bounds the tools that are remembered to be at work.
const maxTools = 1000

// stopped says what a stop reason means, for people.
func stopped(reason string) string {
	switch reason {
	case "max_tokens":
		return "it reached its model's limit of tokens"
	case "max_turn_requests":
		return "it reached the limit of requests in a turn"
	case "refusal":
		return "its model refused to go on"
	case "cancelled":
		return "it says that it was cancelled"
	}
	return "it ended for the reason " + short(reason)
}

func (r *acpReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	if o, ok := settled(end); ok {
		return o, r.usage
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch res := r.result; {
	case res == nil && r.notice != "":
		o.Kind, o.Reason = NoResult, short(r.notice)
	case res == nil:
		o.Kind, o.Reason = NoResult, fmt.Sprintf("ended with exit code %d and without a result", end.ExitCode)
	case res.Error != "":
		o.Kind, o.Reason = AgentFailed, short(res.Error)
	case res.StopReason != "end_turn":
		o.Kind, o.Reason = AgentFailed, stopped(res.StopReason)
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d though it reported a result", end.ExitCode)
	case r.denied > 0:
		o.Reason = "done, though it was refused permission " + printable.Count(r.denied, "time")
	}
	return o, r.usage
}
