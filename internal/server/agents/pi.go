package agents

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
)

// Pi is the coding agent pi, run headless by `pi -p --mode json`. It asks any of the
// providers' models, through its connector.
type Pi struct{}

//go:embed pi-setup.sh
var piSetup string

// piPackages are the version that is installed.
var piPackages = []npmPackage{
	{"@earendil-works/pi-coding-agent@0.87.1", "sha512-m8ArJUtVcQMSe1lLE/Ei7vX/JV7O39sWmWBsXV2NOU70F0qCp8GubA24pT3LnwTmM6LL2xV80/h6sQg85n69ew=="},
}

// Name is "pi".
func (Pi) Name() string { return "pi" }

// Prepare gives the plan on the agent's standard input. It takes the addresses of
// its models from a file only.
func (Pi) Prepare(t Task) (Work, error) {
	p, model, err := t.model()
	if err != nil {
		return Work{}, err
	}
	options := []string{"--provider", p.name}
	if model != "" {
		options = append(options, "--model", model)
	}
	argv := append([]string{"pi", "-p", "--mode", "json"}, options...)
	if t.Session != "" {
		argv = append(argv, "--session", t.Session)
	}
	w, err := t.headless(argv, append([]string{"pi"}, options...))
	if err != nil {
		return w, err
	}
	w.Env = append(w.Env, "PI_OFFLINE=1", "PI_TELEMETRY=0")
	w.installFrom("pi", 24, piPackages...)
	w.Needs = Needs{DiskMB: 195, MemoryMB: 121}
	w.Connectors, w.Keys = []string{p.connector}, []string{p.key}
	w.Turn = &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "turn_start"}}
	if !t.Direct {
		w.Env = append(w.Env, p.key+"="+placeholderKey)
		w.Setup = append(w.Setup, []string{"/bin/sh", "-c", piSetup})
	}
	return w, nil
}

// Transcripts is where the agent keeps the sessions of a working directory.
func (Pi) Transcripts(workdir string) string {
	return ".pi/agent/sessions/--" + strings.ReplaceAll(strings.Trim(workdir, "/"), "/", "-") + "--"
}

// Read begins the reading of a log.
func (Pi) Read() Reader { return &piReader{} }

type piReader struct {
	jsonLines
	ending
	usage cove.Usage
	last  piMessage // of the model
}

// piLine is a line of `pi --mode json`, as much as is looked at.
type piLine struct {
	Type    string    `json:"type"`
	ID      string    `json:"id"`      // session
	Message piMessage `json:"message"` // message_end

	// tool_execution_start, tool_execution_end
	Tool   string          `json:"toolName"`
	CallID string          `json:"toolCallId"`
	Args   json.RawMessage `json:"args"`
	Result struct {
		Content []piBlock `json:"content"`
	} `json:"result"`
	IsError bool `json:"isError"`

	// auto_retry_start, auto_retry_end, agent_end
	Attempt   int    `json:"attempt"`
	Error     string `json:"errorMessage"`
	WillRetry bool   `json:"willRetry"`
}

type piMessage struct {
	Role    string    `json:"role"`
	Content []piBlock `json:"content"`
	Stop    string    `json:"stopReason"`
	Error   string    `json:"errorMessage"`
	Model   string    `json:"model"`
	Usage   struct {
		Input      int64 `json:"input"`
		Output     int64 `json:"output"`
		CacheRead  int64 `json:"cacheRead"`
		CacheWrite int64 `json:"cacheWrite"`
		Cost       struct {
			Total float64 `json:"total"`
		} `json:"cost"`
	} `json:"usage"`
}

type piBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// text is the text of a message or a result.
func text(blocks []piBlock) string {
	var parts []string
	for _, b := range blocks {
		if b.Type == "text" && b.Text != "" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

func (r *piReader) Event(ev cove.JobEvent) []Event {
	var l piLine
	if !r.next(ev, &l) || l.Type == "" {
		return nil
	}
	switch l.Type {
	case "session":
		r.name(l.ID)
		return []Event{{Kind: KindStart, Text: "session " + short(l.ID)}}
	case "agent_start":
		r.done, r.failed = false, ""
	case "message_end":
		return r.message(l.Message)
	case "tool_execution_start":
		return []Event{{Kind: KindToolStart, Tool: l.Tool, Text: short(string(l.Args)), ID: l.CallID, Full: string(l.Args)}}
	case "tool_execution_end":
		return []Event{{Kind: KindToolEnd, Text: short(text(l.Result.Content)), ID: l.CallID, Full: text(l.Result.Content), Failed: l.IsError}}
	case "auto_retry_start":
		r.retry = l.Error
		return []Event{{Kind: KindRetry, Text: fmt.Sprintf("attempt %d: %s", l.Attempt, short(l.Error))}}
	case "agent_end":
		if !l.WillRetry {
			return r.end()
		}
	}
	return []Event{}
}

// message takes in a message that is complete.
func (r *piReader) message(m piMessage) []Event {
	if m.Role != "assistant" {
		return []Event{}
	}
	r.last = m
	if m.Stop != "error" && m.Stop != "aborted" {
		r.retry = ""
		r.usage.Turns++
	}
	u := m.Usage
	r.usage.InputTokens += u.Input + u.CacheRead + u.CacheWrite
	r.usage.OutputTokens += u.Output
	r.usage.CostUSD += u.Cost.Total
	if said := text(m.Content); said != "" {
		return []Event{{Kind: KindText, Text: said}}
	}
	return []Event{}
}

// end notes that the agent has ended. The agent exits with 0 even if its model did not answer:
// its last message tells.
func (r *piReader) end() []Event {
	switch r.last.Stop {
	case "stop":
		r.done = true
		return []Event{{Kind: KindResult, Text: text(r.last.Content)}}
	case "":
		r.failed = "it ended before its model said anything"
	case "error", "aborted":
		r.failed = cmp.Or(r.last.Error, "its model's answer ended: "+r.last.Stop)
	default:
		r.failed = "its model stopped: " + r.last.Stop
	}
	return []Event{{Kind: KindResult, Text: r.failed, Failed: true}}
}

func (r *piReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	return r.judge(end), used(r.usage)
}
