package agents

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
)

// Custom is an agent that a definition describes (ParseDefinition).
type Custom struct {
	def    definition
	source cove.AgentDefinition
}

// Name is the one in the definition.
func (c *Custom) Name() string { return c.def.Name }

// Description is for people; it may be empty.
func (c *Custom) Description() string { return c.def.Description }

// Definition is the definition that the agent was made from.
func (c *Custom) Definition() *cove.AgentDefinition {
	source := c.source
	return &source
}

// connectorHost is the end of the host in the URLs of connectors.
const connectorHost = ".connect.internal"

// places are what the names in braces stand for.
func places(t Task) map[string]string {
	return map[string]string{
		"{prompt_file}": t.Dir + "/prompt.md", "{files}": t.Dir + "/agent", "{workdir}": t.Workdir, "{home}": t.Home, "{session}": cmp.Or(t.Session, ownSession(t.Dir)),
	}
}

// ownSession is a UUID that is the job's own, for agents that want one.
func ownSession(dir string) string {
	sum := sha256.Sum256([]byte("cove session of " + dir))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: of whoever makes it
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// Prepare fills in the names in braces.
func (c *Custom) Prepare(t Task) (Work, error) {
	d := c.def
	if strings.TrimSpace(t.Plan) == "" {
		return Work{}, fmt.Errorf("the plan %s is empty", t.PlanName)
	}
	if t.Model != "" {
		return Work{}, fmt.Errorf("the agent %s has its model in its definition; leave out --model", d.Name)
	}
	if t.Interactive && len(d.Interactive) == 0 {
		return Work{}, fmt.Errorf("the agent %s has no command for a terminal", d.Name)
	}
	if t.Session != "" && !sessionID().MatchString(t.Session) {
		return Work{}, fmt.Errorf("%.40q can't be a session", t.Session)
	}
	argv := d.Argv
	if t.Session != "" {
		if argv = d.Resume; len(argv) == 0 {
			return Work{}, fmt.Errorf("the agent %s has no command that resumes a session", d.Name)
		}
	}
	var pairs []string
	for name, value := range places(t) {
		pairs = append(pairs, name, value)
	}
	fill := strings.NewReplacer(pairs...)
	w := Work{
		Files:   map[string]File{"prompt.md": {[]byte(t.prompt()), 0o644}},
		Install: filled(fill, d.Install...), Setup: filled(fill, d.Setup...), Verify: filled(fill, d.Verify)[0],
		Version: d.Version, Needs: Needs{DiskMB: megabytes(d.Needs.Disk), MemoryMB: megabytes(d.Needs.Memory)},
		Connectors: d.Connectors, Keys: d.Keys,
	}
	if d.Turn != nil {
		w.Turn = &cove.LineRule{Stream: d.Turn.Stream, Fields: d.Turn.Match, Once: d.Turn.Once}
	}
	for name, text := range d.Files {
		w.Files["agent/"+name] = File{[]byte(fill.Replace(text)), 0o644}
	}
	for name, value := range d.Env {
		if !t.Direct || !strings.Contains(value, connectorHost) { // else nobody answers there
			w.Env = append(w.Env, name+"="+fill.Replace(value))
		}
	}
	slices.Sort(w.Env)
	switch {
	case t.Interactive:
		w.Argv = filled(fill, d.Interactive)[0]
	case d.Stdin == "prompt":
		w.Argv = append([]string{"/bin/sh", "-c", `in=$1; shift; exec "$@" <"$in"`, d.Name, t.Dir + "/prompt.md"}, filled(fill, argv)[0]...)
	default:
		w.Argv = filled(fill, argv)[0]
	}
	return w, nil
}

func filled(fill *strings.Replacer, commands ...[]string) [][]string {
	var all [][]string
	for _, argv := range commands {
		var full []string
		for _, arg := range argv {
			full = append(full, fill.Replace(arg))
		}
		all = append(all, full)
	}
	return all
}

// Read begins the reading of a log. The Reader is a Rememberer if the agent can resume a
// session.
func (c *Custom) Read() Reader {
	r := &customReader{rules: c.def.Events}
	if len(c.def.Resume) > 0 {
		return &sessionReader{r}
	}
	return r
}

// sessionReader is of an agent that can resume a session.
type sessionReader struct{ *customReader }

// Session implements Rememberer.
func (r *sessionReader) Session() string { return r.session }

type customReader struct {
	rules  eventRules
	out    lines
	ended  bool // it has said how it ended
	failed bool // and that it did not do its work
	text   string
	usage  *cove.Usage

	session string // the last that can be one
}

// maxEventLine bounds a line that is decoded: decoded, it takes many times its size in memory.
const maxEventLine = 1 << 20

func (r *customReader) Event(ev cove.JobEvent) []Event {
	line, ok := r.line(ev)
	if !ok {
		return nil
	}
	var all map[string]any
	if len(line) > maxEventLine || json.Unmarshal([]byte(line), &all) != nil {
		return nil // not one of its events
	}
	r.count(all)
	if s := r.rules.Session; s != nil && matchesAll(all, s.Match) {
		if id := at(all, s.ID); sessionID().MatchString(id) {
			r.session = id
		}
	}
	for _, end := range []*eventRule{r.rules.Failed, r.rules.OK} {
		if end == nil || !matchesAll(all, end.Match) {
			continue
		}
		r.ended, r.failed, r.text = true, end == r.rules.Failed, at(all, end.Text)
		return []Event{{Kind: KindResult, Text: r.text, Failed: r.failed}}
	}
	for _, rule := range r.rules.Rules {
		if matchesAll(all, rule.Match) {
			return []Event{{Kind: rule.Kind, Text: eventText(rule.Kind, at(all, rule.Text)), Tool: at(all, rule.Tool), Failed: at(all, rule.Failed) == "true", Full: at(all, rule.Text)}}
		}
	}
	return []Event{}
}

// line is a whole line of the stream that has the events.
func (r *customReader) line(ev cove.JobEvent) (string, bool) {
	switch {
	case r.rules.Format != "jsonl":
		return "", false
	case r.rules.Stream == "events":
		return ev.Text, ev.Type == "event"
	case ev.Type != "output" || ev.Stream != r.rules.Stream:
		return "", false
	}
	return r.out.next(ev)
}

// eventText is the text of an event: whole if the agent says it, else its first line.
func eventText(kind Kind, text string) string {
	if kind == KindText {
		return text
	}
	return short(text)
}

// matchesAll reports whether a line has everything that a rule wants.
func matchesAll(line map[string]any, match map[string]string) bool {
	for path, want := range match {
		switch got, ok := find(line, path); got.(type) {
		case map[string]any, []any:
			return false
		default:
			if !ok || show(got) != want {
				return false
			}
		}
	}
	return true
}

// at is the value at a dotted path, as text; empty: there is none.
func at(line map[string]any, path string) string {
	if path == "" {
		return ""
	}
	value, _ := find(line, path)
	return show(value)
}

func find(line map[string]any, path string) (any, bool) {
	var value any = line
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = object[name]; !ok {
			return nil, false
		}
	}
	return value, true
}

// show is a value of JSON as text: a string as it is, nothing for null.
func show(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(text)
}

// maxCount bounds the counts of lines, which are untrusted.
const maxCount = 1 << 50

// count adds up what a line says of the model's use.
func (r *customReader) count(line map[string]any) {
	u := r.rules.Usage
	if u == nil || !matchesAll(line, u.Match) {
		return
	}
	if r.usage == nil {
		r.usage = &cove.Usage{}
	}
	number := func(path string) float64 {
		value, _ := find(line, path)
		n, _ := value.(float64)
		return min(max(n, 0), maxCount)
	}
	add := func(sum *int64, path string) { *sum = min(*sum+int64(number(path)), maxCount) }
	add(&r.usage.InputTokens, u.InputTokens)
	add(&r.usage.OutputTokens, u.OutputTokens)
	add(&r.usage.Turns, u.Turns)
	r.usage.CostUSD = min(r.usage.CostUSD+number(u.CostUSD), maxCount)
}

// Judge trusts the exit code alone only if the agent has no events.
func (r *customReader) Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage) {
	if o, ok := settled(end); ok {
		return o, r.usage
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch {
	case r.failed:
		o.Kind, o.Reason = AgentFailed, short(r.text)
		if o.Reason == "" {
			o.Reason = "it reported that it failed"
		}
	case end.ExitCode != 0 && r.ended:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d though it reported that it was done", end.ExitCode)
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d", end.ExitCode)
	case r.rules.Format == "jsonl" && !r.ended:
		o.Kind, o.Reason = NoResult, "ended without saying that it was done"
	}
	return o, r.usage
}
