package agents

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
)

// Gemini is Google's Gemini CLI, run headless. It asks the model through the
// connector "gemini".
type Gemini struct{}

// geminiPackages are the version that is installed.
var geminiPackages = []npmPackage{
	{"@google/gemini-cli@0.61.0", "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ=="},
}

//go:embed gemini-setup.sh
var geminiSetup string

// Name is "gemini".
func (Gemini) Name() string { return "gemini" }

// Prepare gives the plan on the agent's standard input.
func (Gemini) Prepare(t Task) (Work, error) {
	options := []string{"--yolo", "--skip-trust"}
	model, err := t.modelOf("gemini", "gemini")
	if err != nil {
		return Work{}, err
	}
	if model != "" {
		options = append(options, "-m", model)
	}
	argv := append([]string{"gemini", "-o", "stream-json"}, options...)
	if t.Session != "" {
		argv = append(argv, "--resume", t.Session)
	}
	w, err := t.headless(argv, append(append([]string{"gemini"}, options...), "-i"))
	if err != nil {
		return w, err
	}
	w.installFrom("gemini", 20, geminiPackages...)
	w.Needs = Needs{DiskMB: 100}
	w.Setup = [][]string{{"/bin/sh", "-c", geminiSetup}}
	w.Connectors, w.Keys = []string{"gemini"}, []string{"GEMINI_API_KEY"}
	if !t.Direct {
		w.Env = append(w.Env, "GOOGLE_GEMINI_BASE_URL="+through("gemini"), "GEMINI_API_KEY="+placeholderKey)
	}
	return w, nil
}

// Read begins the reading of a log.
func (Gemini) Read() Reader { return &geminiReader{} }

type geminiReader struct {
	jsonLines
	ending
	usage cove.Usage
	said  strings.Builder // of the model, in pieces, since something else was heard
	last  string
}

// geminiLine is a line of `gemini -o stream-json`, as much as is looked at.
type geminiLine struct {
	Type      string          `json:"type"`
	SessionID string          `json:"session_id"` // init
	Model     string          `json:"model"`
	Role      string          `json:"role"` // message
	Content   string          `json:"content"`
	Tool      string          `json:"tool_name"` // tool_use
	ToolID    string          `json:"tool_id"`
	Input     json.RawMessage `json:"parameters"`
	Status    string          `json:"status"` // tool_result, result
	Output    string          `json:"output"` // tool_result
	Message   string          `json:"message"`
	Error     struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	Stats struct {
		Input  int64 `json:"input_tokens"` // those read from a cache included
		Output int64 `json:"output_tokens"`
	} `json:"stats"` // result
}

// geminiRetry matches the agent's line on standard error when it asks its model again.
var geminiRetry = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^Attempt \d+ failed with status (\d+)\. Retrying`) })

func (r *geminiReader) Event(ev cove.JobEvent) []Event {
	if ev.Type == "output" && ev.Stream == "stderr" {
		if m := geminiRetry().FindString(ev.Text); m != "" {
			r.retry = m
			return []Event{{Kind: KindRetry, Text: m}}
		}
		return nil
	}
	var l geminiLine
	if !r.next(ev, &l) || l.Type == "" {
		return nil
	}
	if l.Type == "message" {
		if l.Role == "assistant" && r.said.Len() < maxHeld {
			r.said.WriteString(l.Content)
			r.retry = ""
		}
		return []Event{}
	}
	out := []Event{}
	if r.said.Len() > 0 {
		r.last = r.said.String()
		r.said.Reset()
		out = append(out, Event{Kind: KindText, Text: r.last})
	}
	return append(out, r.events(l)...)
}

// events are what a line means.
func (r *geminiReader) events(l geminiLine) []Event {
	switch l.Type {
	case "init":
		r.name(l.SessionID)
		return []Event{{Kind: KindStart, Text: short(l.Model)}}
	case "tool_use":
		return []Event{{Kind: KindToolStart, Tool: l.Tool, Text: short(string(l.Input)), ID: l.ToolID, Full: string(l.Input)}}
	case "tool_result":
		end := Event{Kind: KindToolEnd, Text: short(cmp.Or(l.Error.Message, l.Output)), ID: l.ToolID, Full: cmp.Or(l.Error.Message, l.Output), Failed: l.Status == "error"}
		if l.Error.Type == "policy_violation" {
			return []Event{{Kind: KindDenied, Text: end.Text}, end}
		}
		return []Event{end}
	case "error":
		return []Event{{Kind: KindText, Text: "warning: " + l.Message}}
	case "result":
		r.usage.InputTokens, r.usage.OutputTokens = l.Stats.Input, l.Stats.Output
		r.done = l.Status == "success"
		if !r.done {
			r.failed = cmp.Or(l.Error.Message, l.Error.Type, "it reported an error")
			return []Event{{Kind: KindResult, Text: r.failed, Failed: true}}
		}
		return []Event{{Kind: KindResult, Text: r.last}}
	}
	return nil
}

// geminiExits are the agent's exit codes if it ends before a result.
var geminiExits = map[int]string{
	41: "it has no login", 42: "it did not take its input", 44: "its own sandbox failed", 52: "its settings are wrong",
	53: "it reached its limit of turns", 54: "a tool failed", 55: "it does not trust the folder", 130: "it was interrupted",
}

func (r *geminiReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	o := r.judge(end)
	if why := geminiExits[end.ExitCode]; why != "" && (o.Kind == NoResult || o.Kind == AgentFailed && r.failed == "") {
		o.Reason = fmt.Sprintf("%s (exit code %d)", why, end.ExitCode)
	}
	return o, used(r.usage)
}
