package agents

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/cove-dev/cove"
)

// Codex is OpenAI's Codex CLI, run headless by `codex exec`. It asks the model
// through the connector "openai". Its own sandbox is off: it is in one.
type Codex struct{}

// codexPackages are the version that is installed, and its programs.
var codexPackages = []npmPackage{
	{"@openai/codex@0.169.0", "sha512-KhzYlkKPxoNssR8CEm45IjqnFWn7UtlF4CiD3tOJPea51xBs7MaHy0UQG9GSbCqk6Lrjn5QdJDV0QD1/FgWlGw=="},
	{"@openai/codex@0.169.0-linux-x64", "sha512-o05NyAOCDygSPRo1yinzxvkRSdmsZyBD9E7mbpmjRanSfM8lypqWtQgEo4XfNkwhuCR2aFu8mlGOsQGFXVbVww=="},
	{"@openai/codex@0.169.0-linux-arm64", "sha512-NZ/DaQUpcQmxmqee7Z9uC1rzw3GhSbooawcaTe1LN5Yk+WlinUKGdTXJgClRT/9ogQEEM9TWxYzvxPfj5G/xFg=="},
}

// Name is "codex".
func (Codex) Name() string { return "codex" }

// Prepare gives the plan on the agent's standard input. It replaces only the model's provider
// in the person's own configuration in the sprite.
func (Codex) Prepare(t Task) (Work, error) {
	base, connector := through("openai")+"/v1", "openai"
	switch {
	case t.Login == cove.LoginOutside:
		connector = Codex{}.Login().Connector
		base = through(connector)
	case t.Direct:
		base = "https://api.openai.com/v1"
	}
	options := []string{
		"--dangerously-bypass-approvals-and-sandbox",
		"-c", "check_for_update_on_startup=false",
		"-c", "analytics.enabled=false",
	}
	if t.Login != cove.LoginInside { // then the provider is its own, and its login
		url, err := json.Marshal(base) // also a string of TOML
		if err != nil {
			return Work{}, err
		}
		options = append(options, "-c", "model_provider=cove",
			"-c", fmt.Sprintf(`model_providers.cove={name="cove",base_url=%s,env_key="OPENAI_API_KEY",wire_api="responses"}`, url))
	}
	model, err := t.modelOf("codex", "openai")
	if err != nil {
		return Work{}, err
	}
	if model != "" {
		options = append(options, "-m", model)
	}
	of := Work{Files: map[string]File{}}
	for _, s := range t.startServers(&of) {
		program, err := json.Marshal(s.program)
		if err != nil {
			return Work{}, err
		}
		options = append(options, "-c", fmt.Sprintf("mcp_servers.%s={command=%s}", s.name, program))
	}
	argv := append([]string{"codex", "exec", "--json", "--skip-git-repo-check"}, options...)
	if t.Session != "" {
		argv = append([]string{"codex", "exec", "resume", "--json", "--skip-git-repo-check"}, append(options, t.Session)...)
	}
	w, err := t.headless(append(argv, "-"), append([]string{"codex"}, options...))
	if err != nil {
		return w, err
	}
	maps.Copy(w.Files, of.Files)
	w.installFrom("codex", 16, codexPackages...)
	w.Needs = Needs{DiskMB: 404, MemoryMB: 144}
	if t.Login == cove.LoginInside {
		return w, nil
	}
	w.Connectors, w.Keys = []string{connector}, []string{"OPENAI_API_KEY"}
	if !t.Direct {
		w.Env = append(w.Env, "OPENAI_API_KEY="+placeholderKey)
	}
	return w, nil
}

// Read begins the reading of a log.
func (Codex) Read() Reader { return &codexReader{} }

type codexReader struct {
	jsonLines
	ending
	usage cove.Usage
	said  string // last
}

// codexLine is a line of `codex exec --json`, as much as is looked at.
type codexLine struct {
	Type     string    `json:"type"`
	ThreadID string    `json:"thread_id"` // thread.started
	Message  string    `json:"message"`   // error
	Item     codexItem `json:"item"`      // item.started, item.completed
	Error    struct {
		Message string `json:"message"`
	} `json:"error"` // turn.failed
	Usage struct {
		Input  int64 `json:"input_tokens"` // those read from a cache included
		Output int64 `json:"output_tokens"`
	} `json:"usage"` // turn.completed
}

// codexItem is something that the agent does or says.
type codexItem struct {
	Type     string `json:"type"`
	ID       string `json:"id"`
	Text     string `json:"text"`
	Command  string `json:"command"`
	Output   string `json:"aggregated_output"`
	ExitCode int    `json:"exit_code"`
	Status   string `json:"status"`
	Server   string `json:"server"`
	Tool     string `json:"tool"`
	Query    string `json:"query"`
	Message  string `json:"message"`
	Changes  []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"changes"`
}

func (r *codexReader) Event(ev cove.JobEvent) []Event {
	var l codexLine
	if !r.next(ev, &l) || l.Type == "" {
		return nil
	}
	switch l.Type {
	case "thread.started":
		r.name(l.ThreadID)
		return []Event{{Kind: KindStart, Text: "thread " + short(l.ThreadID)}}
	case "turn.started":
		r.ending = ending{}
	case "error":
		// It asks its model five times; the last error is that of turn.failed, too.
		if strings.HasPrefix(l.Message, "Reconnecting") {
			r.retry = l.Message
			return []Event{{Kind: KindRetry, Text: short(l.Message)}}
		}
	case "item.started", "item.completed":
		r.retry = ""
		if l.Item.Type == "agent_message" {
			r.said = l.Item.Text
		}
		return l.Item.events(l.Type == "item.completed")
	case "turn.completed":
		r.done, r.retry = true, ""
		r.usage.InputTokens, r.usage.OutputTokens = l.Usage.Input, l.Usage.Output
		return []Event{{Kind: KindResult, Text: r.said}}
	case "turn.failed":
		r.failed = l.Error.Message
		if r.failed == "" {
			r.failed = "it reported an error"
		}
		return []Event{{Kind: KindResult, Text: r.failed, Failed: true}}
	}
	return []Event{}
}

// events are what an item means that begins or is complete.
func (i codexItem) events(complete bool) []Event {
	tool, input, output := "", "", ""
	switch i.Type {
	case "agent_message":
		return []Event{{Kind: KindText, Text: i.Text}}
	case "reasoning":
		if !complete {
			return []Event{}
		}
		return []Event{{Kind: KindThought, Text: i.Text}}
	case "error": // a mere warning: turn.failed ends the work
		return []Event{{Kind: KindText, Text: "warning: " + i.Message}}
	case "command_execution":
		tool, input, output = "shell", i.Command, i.Output
	case "file_change":
		var paths []string
		for _, c := range i.Changes {
			paths = append(paths, c.Kind+" "+c.Path)
		}
		tool, input = "apply_patch", strings.Join(paths, ", ")
	case "mcp_tool_call":
		tool = i.Server + "." + i.Tool
	case "web_search":
		tool, input = "web_search", i.Query
	default:
		return []Event{}
	}
	if !complete {
		return []Event{{Kind: KindToolStart, Tool: tool, Text: short(input), ID: i.ID, Full: input}}
	}
	end := Event{Kind: KindToolEnd, Text: short(output), ID: i.ID, Full: output, Failed: i.Status == "failed" || i.Status == "declined" || i.ExitCode != 0}
	if i.Status == "declined" {
		if output == "" {
			end.Silent = silent("denied")
		}
		return []Event{{Kind: KindDenied, Tool: tool, Text: short(input)}, end}
	}
	return []Event{end}
}

// TotalUsage says that the agent reports its model's use for the session from its beginning.
func (*codexReader) TotalUsage() {}

func (r *codexReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	return r.judge(end), used(r.usage)
}
