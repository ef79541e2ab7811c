package agents

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// Cove is cove's own agent: the program cove-loop (package loop), which is brought into
// the sprite. It asks the model of one of three providers through the connector with the
// provider's name. The connector adds the key outside the sprite.
type Cove struct{}

// coveProviders are the providers that it can ask, in order of preference.
var coveProviders = []struct {
	name, model     string // the model that is asked by default
	urlVar, url     string
	keyVar, another string
}{
	{"anthropic", "claude-sonnet-5-5", "ANTHROPIC_BASE_URL", "http://anthropic.connect.internal", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"},
	{"openai", "gpt-5.5", "OPENAI_BASE_URL", "http://openai.connect.internal/v1", "OPENAI_API_KEY", ""},
	{"gemini", "gemini-pro-latest", "GOOGLE_GEMINI_BASE_URL", "http://gemini.connect.internal", "GEMINI_API_KEY", "GOOGLE_API_KEY"},
}

// coveProgram is the file of the program, beside the server's own.
const coveProgram = "cove-loop"

// Name is "cove".
func (Cove) Name() string { return "cove" }

// Models are the models that it asks if none is named, in order of preference.
func (Cove) Models() []string {
	var all []string
	for _, p := range coveProviders {
		all = append(all, p.name+"/"+p.model)
	}
	return all
}

// Prepare writes the plan, below instructions for unattended work, into a file.
func (c Cove) Prepare(t Task) (Work, error) {
	model := cmp.Or(t.Model, c.Models()[0])
	provider, name, _ := strings.Cut(model, "/")
	i := slices.IndexFunc(coveProviders, func(p struct{ name, model, urlVar, url, keyVar, another string }) bool { return p.name == provider })
	switch {
	case i < 0 || name == "":
		return Work{}, fmt.Errorf("the agent cove has no model %.80q: write PROVIDER/MODEL, such as %s", model, strings.Join(c.Models(), ", "))
	case strings.TrimSpace(t.Plan) == "":
		return Work{}, fmt.Errorf("the plan %s is empty", t.PlanName)
	case t.Session != "" && !sessionID().MatchString(t.Session):
		return Work{}, fmt.Errorf("%.40q can't be a session", t.Session)
	case t.Interactive:
		return Work{}, errors.New("the agent cove has nothing to show in a terminal; leave out --interactive")
	}
	p := coveProviders[i]
	w := Work{
		Files:      map[string]File{promptName: {[]byte(t.prompt()), 0o644}},
		Programs:   []string{coveProgram},
		Verify:     []string{coveProgram, "version"},
		Connectors: []string{p.name},
		Keys:       []string{p.keyVar},
		Turn:       &cove.LineRule{Stream: "stdout", Fields: map[string]string{"type": "usage"}},
		Argv:       []string{coveProgram, "run", "--model", model, "--prompt", t.Dir + "/" + promptName, "--sessions", t.Home + "/" + c.Transcripts(t.Workdir)},
	}
	if p.another != "" {
		w.Keys = append(w.Keys, p.another)
	}
	if t.Session != "" {
		w.Argv = append(w.Argv, "--resume", t.Session)
	}
	if t.Price != nil {
		w.Argv = append(w.Argv, "--price", number(t.Price.Input)+"/"+number(t.Price.Output))
	}
	if t.MaxUSD > 0 {
		w.Argv = append(w.Argv, "--max-cost", number(t.MaxUSD))
	}
	w.Argv = append(w.Argv, c.RoleArguments(t.Role)...)
	w.Argv = append(w.Argv, c.MCPArguments(outside(t.MCP))...)
	for _, s := range outside(t.MCP) {
		w.Connectors = append(w.Connectors, s.Connector)
	}
	for _, s := range t.startServers(&w) {
		w.Argv = append(w.Argv, "--mcp", "sprite:"+s.name+"="+s.program)
	}
	if !t.Direct {
		w.Env = []string{p.urlVar + "=" + p.url, p.keyVar + "=" + placeholderKey}
	}
	return w, nil
}

// RoleArguments name the role of the tools that a phase has.
func (Cove) RoleArguments(role string) []string {
	if role == "" || role == Build {
		return nil
	}
	return []string{"--role", "read-only"}
}

// MCPArguments name each server, and its tools that may be called.
func (Cove) MCPArguments(servers []cove.MCPServer) []string {
	var args []string
	for _, s := range servers {
		args = append(args, "--mcp", "host:"+s.Connector+"="+strings.Join(s.Tools, ","))
	}
	return args
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// Transcripts is where it keeps the sessions of a working directory.
func (Cove) Transcripts(workdir string) string {
	return ".local/share/cove/sessions/" + notInSlug().ReplaceAllString(workdir, "-")
}

// Read begins the reading of a log.
func (Cove) Read() Reader { return &coveReader{} }

type coveReader struct {
	jsonLines
	usage  *cove.Usage // so far
	result *coveResult
	retry  string // why the model is being asked again
}

// coveLine is a line of cove-loop's, as much as is looked at.
type coveLine struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	ID      string          `json:"id"`
	Session string          `json:"session_id"`
	Model   string          `json:"model"`
	Tools   []string        `json:"tools"`
	Tool    string          `json:"tool"`
	Input   json.RawMessage `json:"input"`
	Attempt int             `json:"attempt"`
	Code    string          `json:"code"`
	Usage   struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
	} `json:"usage"`
	Cost   float64     `json:"cost_usd"`
	Result *coveResult `json:"result"`
}

type coveResult struct {
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
	Turns   int64  `json:"turns"`

	// Broken-off answers are included.
	Input  int64   `json:"input_tokens"`
	Output int64   `json:"output_tokens"`
	Cost   float64 `json:"cost_usd"`
}

func (r *coveReader) Event(ev cove.JobEvent) []Event {
	var l coveLine
	if !r.next(ev, &l) || l.Type == "" || l.Seq == 0 {
		return nil
	}
	if l.Type != "retry" {
		r.retry = ""
	}
	switch l.Type {
	case "start":
		r.name(l.Session)
		return []Event{{Kind: KindStart, Text: l.Model + ", with " + printable.Count(len(l.Tools), "tool")}}
	case "text":
		return []Event{{Kind: KindText, Text: l.Text}}
	case "tool_start":
		return []Event{{Kind: KindToolStart, Tool: l.Tool, Text: short(cmp.Or(string(l.Input), l.Text)), ID: l.ID, Full: cmp.Or(string(l.Input), l.Text)}}
	case "tool_result":
		return []Event{{Kind: KindToolEnd, Tool: l.Tool, Text: short(l.Text), ID: l.ID, Full: l.Text}}
	case "tool_error":
		kind := KindToolEnd
		if l.Code == "denied" {
			kind = KindDenied
		}
		return []Event{{Kind: kind, Tool: l.Tool, Text: short(l.Text), Failed: true, ID: l.ID, Full: l.Text}}
	case "retry":
		r.retry = short(l.Text)
		return []Event{{Kind: KindRetry, Text: fmt.Sprintf("attempt %d: %s", l.Attempt, r.retry)}}
	case "usage":
		if r.usage == nil {
			r.usage = &cove.Usage{}
		}
		r.usage.Turns++
		r.usage.InputTokens += l.Usage.Input
		r.usage.OutputTokens += l.Usage.Output
		r.usage.CostUSD = max(r.usage.CostUSD, l.Cost)
	case "result":
		r.result = l.Result
		if res := l.Result; res != nil {
			r.usage = &cove.Usage{Turns: res.Turns, InputTokens: res.Input, OutputTokens: res.Output, CostUSD: res.Cost}
			return []Event{{Kind: KindResult, Text: l.Result.Text, Failed: l.Result.Outcome != "done"}}
		}
	}
	return []Event{}
}

func (r *coveReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	if o, ok := settled(end); ok {
		return o, r.usage
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch res := r.result; {
	case res == nil && r.retry != "":
		o.Kind, o.Reason = NoResult, "ended without a result; the model last answered "+r.retry
	case res == nil:
		o.Kind, o.Reason = NoResult, fmt.Sprintf("ended with exit code %d and without a result", end.ExitCode)
	case res.Outcome == "max_cost":
		o.Kind, o.Reason = CostLimit, "guard cost: "+short(res.Text)
	case res.Outcome == "max_turns":
		o.Kind, o.Reason = TurnLimit, short(res.Text)
	case res.Outcome != "done":
		o.Kind, o.Reason = AgentFailed, cmp.Or(short(res.Text), res.Outcome)
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d though it reported a result", end.ExitCode)
	}
	return o, r.usage
}
