package agents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/cove-dev/cove"
)

// OpenCode is OpenCode, run headless by `opencode run`. It asks any of the providers'
// models, through its connector.
type OpenCode struct{}

// opencodePackages are the version that is installed, and its programs.
var opencodePackages = []npmPackage{
	{"opencode-ai@1.18.33", "sha512-58P1ffLRXiAY4QeoABqUjqf6DEzm1ihpovvn9Ad+oOLbLiwK/rf88wruT9IATJ7AtNjmi8iA7pC8tN4o5y799Q=="},
	{"opencode-linux-x64@1.18.33", "sha512-q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw=="},
	{"opencode-linux-x64-baseline@1.18.33", "sha512-1KQGBiiDDeL/VHHbHkOvvFo8Jr97WT5+C1tear+p7IcDTnXgVHXqIjU4O4jM4mHQzykTP2i884FCnW5LDa+zCA=="},
}

// Name is "opencode".
func (OpenCode) Name() string { return "opencode" }

// opencodeConfig is its configuration, which goes above the files of the person.
type opencodeConfig struct {
	Enabled    []string                    `json:"enabled_providers"`
	Provider   map[string]opencodeProvider `json:"provider,omitempty"`
	MCP        map[string]opencodeMCP      `json:"mcp,omitempty"`
	AutoUpdate bool                        `json:"autoupdate"`
	Share      string                      `json:"share"`
}

type opencodeMCP struct {
	Type    string   `json:"type"`
	Command []string `json:"command"`
	Enabled bool     `json:"enabled"`
}

type opencodeProvider struct {
	Options struct {
		BaseURL string `json:"baseURL"`
		APIKey  string `json:"apiKey"`
	} `json:"options"`
}

// Prepare gives the plan on the agent's standard input, and its configuration in
// the environment.
func (OpenCode) Prepare(t Task) (Work, error) {
	p, model, err := t.model()
	if err != nil {
		return Work{}, err
	}
	config := opencodeConfig{Enabled: []string{p.name}, Share: "disabled"}
	if !t.Direct {
		var there opencodeProvider
		there.Options.BaseURL, there.Options.APIKey = through(p.connector)+p.base, placeholderKey
		config.Provider = map[string]opencodeProvider{p.name: there}
	}
	of := Work{Files: map[string]File{}}
	for _, s := range t.startServers(&of) {
		if config.MCP == nil {
			config.MCP = map[string]opencodeMCP{}
		}
		config.MCP[s.name] = opencodeMCP{"local", []string{s.program}, true}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return Work{}, err
	}
	argv := []string{"opencode", "run", "--format", "json", "--auto"}
	interactive := []string{"opencode"}
	if model != "" {
		argv = append(argv, "-m", p.name+"/"+model)
		interactive = append(interactive, "-m", p.name+"/"+model)
	}
	if t.Session != "" {
		argv = append(argv, "-s", t.Session)
	}
	w, err := t.headless(argv, append(interactive, "--prompt"))
	if err != nil {
		return w, err
	}
	maps.Copy(w.Files, of.Files)
	w.Env = append(w.Env, "OPENCODE_CONFIG_CONTENT="+string(text), "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1")
	w.installFrom("opencode", 16, opencodePackages...)
	w.Needs = Needs{DiskMB: 354, MemoryMB: 620}
	w.Connectors, w.Keys = []string{p.connector}, []string{p.key}
	w.Turn = &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "step_start"}, Once: "part.messageID"}
	return w, nil
}

// Read begins the reading of a log.
func (OpenCode) Read() Reader { return &opencodeReader{} }

type opencodeReader struct {
	jsonLines
	ending
	usage cove.Usage
	said  string // last
}

// opencodeLine is a line of `opencode run --format json`, as much as is looked at.
type opencodeLine struct {
	Type      string `json:"type"`
	SessionID string `json:"sessionID"`
	Part      struct {
		Text   string  `json:"text"`
		Tool   string  `json:"tool"`
		CallID string  `json:"callID"`
		Reason string  `json:"reason"`
		Cost   float64 `json:"cost"`
		Tokens struct {
			Input     int64 `json:"input"`
			Output    int64 `json:"output"`
			Reasoning int64 `json:"reasoning"`
			Cache     struct {
				Read  int64 `json:"read"`
				Write int64 `json:"write"`
			} `json:"cache"`
		} `json:"tokens"`
		State struct {
			Status   string          `json:"status"`
			Input    json.RawMessage `json:"input"`
			Output   string          `json:"output"`
			Error    string          `json:"error"`
			Metadata struct {
				Exit int `json:"exit"`
			} `json:"metadata"`
		} `json:"state"`
	} `json:"part"`
	Error struct {
		Name string `json:"name"`
		Data struct {
			Message    string `json:"message"`
			StatusCode int    `json:"statusCode"`
		} `json:"data"`
	} `json:"error"`
}

func (r *opencodeReader) Event(ev cove.JobEvent) []Event {
	var l opencodeLine
	if !r.next(ev, &l) || l.Type == "" {
		return nil
	}
	first := r.session == ""
	r.name(l.SessionID)
	var out []Event
	if first && r.session != "" {
		out = []Event{{Kind: KindStart, Text: "session " + r.session}}
	}
	return append(out, r.events(l)...)
}

// events are what a line means.
func (r *opencodeReader) events(l opencodeLine) []Event {
	part, state := l.Part, l.Part.State
	switch l.Type {
	case "step_start":
		r.ending = ending{}
	case "reasoning":
		return []Event{{Kind: KindThought, Text: part.Text}}
	case "text":
		r.said = part.Text
		return []Event{{Kind: KindText, Text: part.Text}}
	case "tool_use": // it is told of when it is over
		return []Event{
			{Kind: KindToolStart, Tool: part.Tool, Text: short(string(state.Input)), ID: part.CallID, Full: string(state.Input)},
			{Kind: KindToolEnd, Text: short(cmp.Or(state.Error, state.Output)), ID: part.CallID, Full: cmp.Or(state.Error, state.Output), Failed: state.Status == "error" || state.Metadata.Exit != 0},
		}
	case "step_finish":
		tokens := part.Tokens
		r.usage.InputTokens += tokens.Input + tokens.Cache.Read + tokens.Cache.Write
		r.usage.OutputTokens += tokens.Output + tokens.Reasoning
		r.usage.CostUSD += part.Cost
		r.usage.Turns++
		switch part.Reason {
		case "tool-calls":
		case "length", "content-filter", "error":
			r.failed = "its model stopped: " + part.Reason
			return []Event{{Kind: KindResult, Text: r.failed, Failed: true}}
		default:
			r.done = true
			return []Event{{Kind: KindResult, Text: r.said}}
		}
	case "error":
		r.failed = cmp.Or(l.Error.Data.Message, l.Error.Name, "it reported an error")
		if status := l.Error.Data.StatusCode; status != 0 {
			r.failed += fmt.Sprintf(" (status %d)", status)
		}
		return []Event{{Kind: KindResult, Text: r.failed, Failed: true}}
	}
	return []Event{}
}

func (r *opencodeReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	return r.judge(end), used(r.usage)
}
