package agents

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// Claude is Claude Code, run headless by `claude -p`. It asks the model through
// the connector "anthropic", which adds the key outside of the sprite.
type Claude struct{}

//go:embed claude-setup.sh
var claudeSetup string

// claudePackages are the version that is installed, and its programs, which need no Node.js
// to run.
var claudePackages = []npmPackage{
	{"@anthropic-ai/claude-code@2.1.329", "sha512-WQ7RY331gsODjOoDBbeG1fjMfKY1Ur9yxWAOI9SgdLZvqA9sAREaezXt7e3uNbHlgjVAZg1IqlJT1J7WKViEFA=="},
	{"@anthropic-ai/claude-code-linux-x64@2.1.329", "sha512-+n4lu1ubYAp02Y0X/MAUnxw9yY6SHHZ77F+IoW+V0wVoFuiI9opdH6gofjf14gXJCEYMTNpks7Gn1i8XZTKAWA=="},
	{"@anthropic-ai/claude-code-linux-arm64@2.1.329", "sha512-IiG5umFToSCVWqB1lEsxxwIxKgxPXyZ3DRU915v8J4Bz5Q3JpslM0ew1m5yaT+lFXBPvYxmsEgi0XI68XHND0A=="},
}

// claudeKey is what the agent believes to be its key.
const claudeKey = "sk-ant-cove-the-real-key-is-added-outside"

// Name is "claude".
func (Claude) Name() string { return "claude" }

// Prepare gives the plan, below instructions for unattended work, on the agent's standard
// input. There its length does not matter.
func (Claude) Prepare(t Task) (Work, error) {
	if strings.TrimSpace(t.Plan) == "" {
		return Work{}, fmt.Errorf("the plan %s is empty", t.PlanName)
	}
	if t.Session != "" && !sessionID().MatchString(t.Session) {
		return Work{}, fmt.Errorf("%.40q can't be a session", t.Session)
	}
	prompt := t.Dir + "/prompt.md"
	w := Work{
		Files: map[string]File{"prompt.md": {[]byte(t.prompt()), 0o644}},
		Setup: [][]string{{"/bin/sh", "-c", claudeSetup}},
		Needs: Needs{DiskMB: 361, MemoryMB: 213},
		Env: []string{
			pathOf(t),
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			"CLAUDE_CODE_MAX_RETRIES=4",
			"DISABLE_AUTOUPDATER=1",
			"DISABLE_TELEMETRY=1",
		},
		Connectors: []string{"anthropic"},
		Keys:       []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
		Turn:       &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "assistant"}, Once: "message.id"},
	}
	w.installFrom("claude", 16, claudePackages...)
	model, err := t.modelOf("claude", "anthropic")
	if err != nil {
		return Work{}, err
	}
	if model != "" {
		w.Env = append(w.Env, "ANTHROPIC_MODEL="+model)
	}
	if t.Login == cove.LoginInside {
		w.Connectors, w.Keys = nil, nil
	} else if !t.Direct {
		w.Env = append(w.Env, "ANTHROPIC_BASE_URL=http://anthropic.connect.internal", "ANTHROPIC_API_KEY="+claudeKey)
	}
	var servers []string // arguments
	if started := t.startServers(&w); len(started) > 0 {
		const name = "mcp.json"
		if w.Files[name], err = mcpServersFile(started); err != nil {
			return Work{}, err
		}
		servers = []string{"--mcp-config=" + t.Dir + "/" + name}
	}
	if t.Converse {
		w, err = claudeConverse(t, w)
		w.Argv = append(w.Argv, servers...)
		return w, err
	}
	if t.Interactive {
		w.Argv = slices.Concat([]string{"claude"}, servers, []string{"--dangerously-skip-permissions", "Read " + prompt + " and carry out the plan in it."})
		return w, nil
	}
	w.Argv = []string{
		"/bin/sh", "-c", `in=$1; shift; exec "$@" <"$in"`, "claude", prompt,
		"claude", "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
	}
	w.Argv = append(w.Argv, servers...)
	if t.Session != "" {
		w.Argv = append(w.Argv, "--resume", t.Session)
	}
	return w, nil
}

// claudeConverse gives the agent its instructions and everything after them as messages. So
// the agent stays after its first answer.
func claudeConverse(t Task, w Work) (Work, error) {
	first, err := Claude{}.Message(t.instructions() + mustSkill("converse", converseSkill).Text + "\n# The plan\n\n" + t.Plan)
	if err != nil {
		return w, err
	}
	const name = "first.jsonl"
	delete(w.Files, "prompt.md")
	w.Files[name] = File{[]byte(first + "\n"), 0o600}
	w.Input = &cove.JobInput{
		First: t.Dir + "/" + name,
		Over:  cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "result"}},
	}
	w.Argv = []string{"claude", "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"}
	return w, nil
}

// Message is a message of stream-json.
func (Claude) Message(text string) (string, error) {
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	type message struct {
		Role    string    `json:"role"`
		Content []content `json:"content"`
	}
	line, err := json.Marshal(struct {
		Type    string  `json:"type"`
		Message message `json:"message"`
	}{"user", message{"user", []content{{"text", text}}}})
	return string(line), err
}

// notInSlug is what the agent replaces in the name of a folder.
var notInSlug = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9]`) })

// Transcripts is where the agent keeps the sessions of a working directory.
func (Claude) Transcripts(workdir string) string {
	return ".claude/projects/" + notInSlug().ReplaceAllString(workdir, "-")
}

// Read begins the reading of a log.
func (Claude) Read() Reader { return &claudeReader{} }

type claudeReader struct {
	jsonLines
	result *claudeLine
	usage  cove.Usage // of all results; the cost is that of all already
	retry  string     // why the model is being asked again
}

// claudeLine is a line of stream-json, as much as is looked at.
type claudeLine struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Message   struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`

	// system, init
	Model string            `json:"model"`
	Tools []json.RawMessage `json:"tools"`

	// result
	IsError        bool              `json:"is_error"`
	Result         string            `json:"result"`
	TerminalReason string            `json:"terminal_reason"`
	NumTurns       int64             `json:"num_turns"`
	Cost           float64           `json:"total_cost_usd"`
	Denials        []json.RawMessage `json:"permission_denials"`
	Usage          struct {
		Input      int64 `json:"input_tokens"`
		CacheWrite int64 `json:"cache_creation_input_tokens"`
		CacheRead  int64 `json:"cache_read_input_tokens"`
		Output     int64 `json:"output_tokens"`
	} `json:"usage"`

	// system, api_retry
	Attempt     int    `json:"attempt"`
	ErrorStatus int    `json:"error_status"`
	Error       string `json:"error"`
}

// claudeBlock is a part of a message's content.
type claudeBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Think   string          `json:"thinking"`
	ID      string          `json:"id"`
	Of      string          `json:"tool_use_id"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Content json.RawMessage `json:"content"`
	IsError bool            `json:"is_error"`
}

func (r *claudeReader) Event(ev cove.JobEvent) []Event {
	var l claudeLine
	if !r.next(ev, &l) || l.Type == "" {
		return nil
	}
	r.name(l.SessionID)
	switch l.Type {
	case "assistant", "user":
		if l.Type == "assistant" {
			r.retry = ""
		}
		return blockEvents(l)
	case "system":
		switch l.Subtype {
		case "api_retry":
			r.retry = fmt.Sprintf("%s (status %d)", l.Error, l.ErrorStatus)
			return []Event{{Kind: KindRetry, Text: fmt.Sprintf("attempt %d: %s", l.Attempt, r.retry)}}
		case "permission_denied":
			return []Event{{Kind: KindDenied, Text: short(r.line)}}
		case "init":
			return []Event{{Kind: KindStart, Text: l.Model + ", with " + printable.Count(len(l.Tools), "tool")}}
		}
	case "result":
		r.result = &l
		r.usage.InputTokens += l.Usage.Input + l.Usage.CacheRead + l.Usage.CacheWrite
		r.usage.OutputTokens += l.Usage.Output
		r.usage.Turns += l.NumTurns
		r.usage.CostUSD = max(r.usage.CostUSD, l.Cost)
		return []Event{{Kind: KindResult, Text: l.Result, Failed: l.IsError}}
	}
	return []Event{}
}

// blockEvents are the events of a message.
func blockEvents(l claudeLine) []Event {
	var blocks []claudeBlock
	out := []Event{}
	if json.Unmarshal(l.Message.Content, &blocks) != nil {
		return out
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if l.Type == "assistant" {
				out = append(out, Event{Kind: KindText, Text: b.Text})
			}
		case "thinking":
			if b.Think != "" {
				out = append(out, Event{Kind: KindThought, Text: b.Think})
			}
		case "tool_use":
			out = append(out, Event{Kind: KindToolStart, Tool: b.Name, Text: short(string(b.Input)), ID: b.ID, Full: string(b.Input)})
		case "tool_result":
			text := string(b.Content)
			var plain string
			if json.Unmarshal(b.Content, &plain) == nil {
				text = plain
			}
			out = append(out, Event{Kind: KindToolEnd, Text: short(text), Failed: b.IsError, ID: b.Of, Full: resultText(b.Content, text)})
		}
	}
	return out
}

// resultText is the text of a result's blocks, or otherwise if they have none.
func resultText(content json.RawMessage, otherwise string) string {
	var blocks []piBlock
	if json.Unmarshal(content, &blocks) == nil {
		if said := text(blocks); said != "" {
			return said
		}
	}
	return otherwise
}

func (r *claudeReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	var usage *cove.Usage
	if r.result != nil {
		usage = &r.usage
	}
	if o, ok := settled(end); ok {
		return o, usage
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch res := r.result; {
	case res == nil && r.retry != "":
		o.Kind, o.Reason = NoResult, "ended without a result; the model last answered "+r.retry
	case res == nil:
		o.Kind, o.Reason = NoResult, fmt.Sprintf("ended with exit code %d and without a result", end.ExitCode)
	case res.IsError && res.Subtype == "error_max_turns":
		o.Kind, o.Reason = AgentFailed, "stopped after "+printable.Count(res.NumTurns, "turn")+", the most it may take"
	case res.IsError:
		o.Kind, o.Reason = AgentFailed, cmp.Or(short(res.Result), res.TerminalReason, "it reported an error")
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d though it reported a result", end.ExitCode)
	case len(res.Denials) > 0:
		o.Reason = "done, though it was refused permission " + printable.Count(len(res.Denials), "time")
	}
	return o, usage
}
