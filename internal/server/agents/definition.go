package agents

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"github.com/cove-dev/cove"
)

// A Problem is one thing that is wrong in a file. Key and Line are empty if it is not about a
// key or a line.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (p Problem) Error() string {
	text := p.File
	if p.Line > 0 {
		text += ":" + strconv.Itoa(p.Line)
	}
	if p.Key != "" {
		text += ": " + p.Key
	}
	return text + ": " + p.Message
}

// Problems are all that is wrong, in the order of the files.
type Problems []Problem

func (p Problems) Error() string {
	text := p[0].Error()
	if more := len(p) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// Bounds of a definition.
const (
	MaxDefinition = 64 << 10 // bytes of its text
	maxListed     = 64       // commands, arguments, rules, files …
	maxNeedMB     = 1 << 20
)

// definition is what a file says of an agent. The tables' keys are in the help of
// cove agent add.
type definition struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Version     string            `toml:"version"`
	Argv        []string          `toml:"argv"`
	Resume      []string          `toml:"resume"`
	Interactive []string          `toml:"interactive"`
	Stdin       string            `toml:"stdin"`
	Install     [][]string        `toml:"install"`
	Setup       [][]string        `toml:"setup"`
	Verify      []string          `toml:"verify"`
	Connectors  []string          `toml:"connectors"`
	Keys        []string          `toml:"keys"`
	Env         map[string]string `toml:"env"`
	Files       map[string]string `toml:"files"`
	Needs       struct {
		Disk   string `toml:"disk"`
		Memory string `toml:"memory"`
	} `toml:"needs"`
	Turn   *lineMatch `toml:"turn"`
	Events eventRules `toml:"events"`
}

// lineMatch is a cove.LineRule, in a file.
type lineMatch struct {
	Stream string            `toml:"stream"`
	Match  map[string]string `toml:"match"`
	Once   string            `toml:"once"`
}

// eventRules say what the lines of an agent's output mean. Paths are dotted.
type eventRules struct {
	Format string      `toml:"format"` // none or jsonl
	Stream string      `toml:"stream"`
	Rules  []eventRule `toml:"rules"`
	OK     *eventRule  `toml:"ok"`
	Failed *eventRule  `toml:"failed"`
	Usage  *usageRule  `toml:"usage"`

	Session *sessionRule `toml:"session"`
}

// sessionRule says where the lines that match have the name of the agent's session.
type sessionRule struct {
	Match map[string]string `toml:"match"`
	ID    string            `toml:"id"`
}

// eventRule makes an event of each line that has the values of Match.
type eventRule struct {
	Match  map[string]string `toml:"match"`
	Kind   Kind              `toml:"kind"`
	Text   string            `toml:"text"`
	Tool   string            `toml:"tool"`
	Failed string            `toml:"failed"`
}

// usageRule says where the lines that match have numbers, which are added up.
type usageRule struct {
	Match        map[string]string `toml:"match"`
	InputTokens  string            `toml:"input_tokens"`
	OutputTokens string            `toml:"output_tokens"`
	CostUSD      string            `toml:"cost_usd"`
	Turns        string            `toml:"turns"`
}

// The streams of an agent's lines.
var lineStreams = []string{"stdout", "stderr", "events"}

// eventKinds are the kinds of events that a rule may make.
var eventKinds = []Kind{KindStart, KindText, KindStep, KindStepEnd, KindToolStart, KindToolEnd, KindRetry, KindDenied}

var (
	// AgentName matches the names that an agent may have.
	AgentName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) })

	// Compiled at the first use: that takes a millisecond, for which each call of cove would wait.
	variableName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`) })
	fieldPath    = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9_$-]{1,80}(\.[A-Za-z0-9_$-]{1,80}){0,9}$`)
	})
	fileName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]{1,80}(/[A-Za-z0-9_.-]{1,80}){0,5}$`) })
	needSize    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,7})([MG])$`) })
	placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{[a-z_]+\}`) })
)

// ParseDefinition reads the definition of an agent, which may be anybody's. Its errors
// are Problems, each with its line; nothing of a text that has any is used. file is for
// people.
func ParseDefinition(file, text string) (*Custom, error) {
	p := &definitionParser{file: file, lines: map[string]int{}}
	switch {
	case len(text) > MaxDefinition:
		p.add("", "", "a definition of %d bytes is more than %d", len(text), MaxDefinition)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		p.add("", "", "it is not UTF-8 text")
	default:
		p.parse(text)
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, p.problems
	}
	return &Custom{def: p.def, source: cove.AgentDefinition{File: file, Text: text}}, nil
}

type definitionParser struct {
	file     string
	def      definition
	lines    map[string]int // where keys stand
	problems Problems
}

func (p *definitionParser) add(key, hint, format string, args ...any) {
	line := p.lines[key]
	for at := key; line == 0 && at != ""; line = p.lines[at] { // of the table, or of the list
		at = at[:max(0, strings.LastIndexByte(at, '.'))]
	}
	p.problems = append(p.problems, Problem{File: p.file, Line: line, Key: key, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (p *definitionParser) parse(text string) {
	d := toml.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&p.def)
	if e, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range e.Errors {
			line, _ := e.Errors[i].Position()
			p.problems = append(p.problems, Problem{File: p.file, Line: line, Key: strings.Join(e.Errors[i].Key(), "."),
				Message: "there is no such key", Hint: "the keys are listed by: cove agent add --help"})
		}
		return
	}
	if err != nil {
		problem := Problem{File: p.file, Message: strings.TrimPrefix(err.Error(), "toml: ")}
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			problem.Line, _ = e.Position()
			problem.Key = strings.Join(e.Key(), ".")
		}
		p.problems = append(p.problems, problem)
		return
	}
	p.find([]byte(text))
	p.identity()
	p.commands()
	p.environment()
	p.events()
}

// find notes the lines of the keys. It decodes into a struct that knows only tables, so the
// decoder reports all keys, with their places, as unknown.
func (p *definitionParser) find(text []byte) {
	var tables struct {
		Env    struct{} `toml:"env"`
		Files  struct{} `toml:"files"`
		Needs  struct{} `toml:"needs"`
		Turn   struct{} `toml:"turn"`
		Events struct{} `toml:"events"`
	}
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&tables)
	if e, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range e.Errors {
			key := strings.Join(e.Errors[i].Key(), ".")
			table, _, _ := strings.Cut(key, ".")
			line, _ := e.Errors[i].Position()
			for _, name := range []string{key, table} {
				if p.lines[name] == 0 {
					p.lines[name] = line
				}
			}
		}
	}
}

// plainText reports whether a text can be shown, in a line.
func plainText(text string) bool {
	return len(text) <= 200 && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (p *definitionParser) identity() {
	d := &p.def
	switch {
	case !AgentName().MatchString(d.Name):
		p.add("name", "such as name = \"greeter\"", "%.60q can't be an agent's name: a name has up to 40 lower-case letters, digits and hyphens", d.Name)
	case slices.Contains(Names(), d.Name):
		p.add("name", "choose another name", "%s is the name of an agent of cove's own", d.Name)
	}
	for key, text := range map[string]string{"version": d.Version, "description": d.Description} {
		if !plainText(text) {
			p.add(key, "", "it must be a line of at most 200 printable characters")
		}
	}
	for _, name := range d.Connectors {
		if !AgentName().MatchString(name) {
			p.add("connectors", "cove connector list", "%.60q can't be a connector's name", name)
		}
	}
	for _, name := range d.Keys {
		if !variableName().MatchString(name) {
			p.add("keys", "", "%.60q can't be a variable's name", name)
		}
	}
	for key, size := range map[string]string{"needs.disk": d.Needs.Disk, "needs.memory": d.Needs.Memory} {
		if size != "" && megabytes(size) == 0 {
			p.add(key, "", "%.40q is not a size such as 400M or 2G", size)
		}
	}
}

// megabytes reads a size; 0: the text is not a size.
func megabytes(size string) int {
	m := needSize().FindStringSubmatch(size)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // seven digits
	if m[2] == "G" {
		n <<= 10
	}
	if n > maxNeedMB {
		return 0
	}
	return n
}

func (p *definitionParser) commands() {
	d := &p.def
	if len(d.Argv) == 0 {
		p.add("argv", "such as argv = [\"greeter\", \"--plan\", \"{prompt_file}\"]", "it has no command that starts the agent")
	}
	if len(d.Verify) == 0 {
		p.add("verify", "such as verify = [\"greeter\", \"--version\"]", "it has no command that checks whether the agent is there")
	}
	for key, argv := range map[string][]string{"argv": d.Argv, "resume": d.Resume, "interactive": d.Interactive, "verify": d.Verify} {
		p.command(key, argv)
	}
	for key, list := range map[string][][]string{"install": d.Install, "setup": d.Setup} {
		if len(list) > maxListed {
			p.add(key, "", "%d commands are more than %d", len(list), maxListed)
		}
		for _, argv := range list {
			if len(argv) == 0 {
				p.add(key, "", "a command is a list: the program and its arguments")
			}
			p.command(key, argv)
		}
	}
	for _, argv := range d.Install {
		for _, arg := range argv {
			for _, name := range placeholder().FindAllString(arg, -1) {
				if name != "{home}" {
					p.add("install", "move what needs it to setup", "%s belongs to one job, but an installation may serve many", name)
				}
			}
		}
	}
	if d.Stdin = cmp.Or(d.Stdin, "none"); d.Stdin != "none" && d.Stdin != "prompt" {
		p.add("stdin", "", "%.40q is neither none nor prompt", d.Stdin)
	}
	uses := func(argv []string, name string) bool {
		return slices.ContainsFunc(argv, func(arg string) bool { return strings.Contains(arg, name) })
	}
	for key, argv := range map[string][]string{"argv": d.Argv, "resume": d.Resume} {
		if d.Stdin == "none" && !uses(argv, "{prompt_file}") && len(argv) > 0 {
			p.add(key, "stdin = \"prompt\", or {prompt_file} in "+key, "the agent would never get its plan")
		}
	}
	switch {
	case len(d.Resume) > 0 && !uses(d.Resume, "{session}"):
		p.add("resume", "such as resume = [\"greeter\", \"--resume\", \"{session}\", \"{prompt_file}\"]", "it does not say which session to resume")
	case len(d.Resume) > 0 != (d.Events.Session != nil):
		p.add("resume", "in [events]: session = { match = { type = \"start\" }, id = \"session_id\" }", "resume and events.session, which names the session, go together")
	}
}

func (p *definitionParser) command(key string, argv []string) {
	switch {
	case len(argv) > maxListed:
		p.add(key, "", "%d arguments are more than %d", len(argv), maxListed)
	case len(argv) > 0 && argv[0] == "":
		p.add(key, "", "the program's name is empty")
	}
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			p.add(key, "", "an argument can't have a NUL")
		}
		p.placeholders(key, arg)
	}
}

// placeholders refuses a name in braces that stands for nothing.
func (p *definitionParser) placeholders(key, text string) {
	known := places(Task{})
	for _, name := range placeholder().FindAllString(text, -1) {
		if _, ok := known[name]; !ok {
			p.add(key, "the placeholders are {prompt_file}, {files}, {workdir}, {home} and {session}", "%s is not a placeholder", name)
		}
	}
}

func (p *definitionParser) environment() {
	d := &p.def
	if len(d.Env) > maxListed || len(d.Files) > maxListed {
		p.add("env", "", "more than %d variables or files", maxListed)
	}
	for name, value := range d.Env {
		if !variableName().MatchString(name) || strings.ContainsRune(value, 0) {
			p.add("env."+name, "", "%.60q can't be a variable", name)
		}
		p.placeholders("env."+name, value)
	}
	for name := range d.Files {
		if !fileName().MatchString(name) || path.Clean(name) != name || strings.HasPrefix(name, "..") {
			p.add("files."+name, "such as [files] \"config.json\" = '''…'''", "%.60q can't be a file's name: it must be relative, below {files}", name)
		}
	}
}

func (p *definitionParser) events() {
	e := &p.def.Events
	e.Format, e.Stream = cmp.Or(e.Format, "none"), cmp.Or(e.Stream, "stdout")
	switch {
	case e.Format != "none" && e.Format != "jsonl":
		p.add("events.format", "", "%.40q is neither none nor jsonl", e.Format)
	case e.Format == "none" && (len(e.Rules) > 0 || e.OK != nil || e.Failed != nil || e.Usage != nil || e.Session != nil):
		p.add("events", "format = \"jsonl\"", "there are rules for events, but the format is none")
	case e.Format == "jsonl" && e.OK == nil:
		p.add("events", "such as ok = { match = { type = \"result\" } }", "it has no rule ok, for the lines that say that the work is done; without one no job succeeds")
	case len(e.Rules) > maxListed:
		p.add("events.rules", "", "%d rules are more than %d", len(e.Rules), maxListed)
	}
	p.stream("events.stream", e.Stream)
	for _, r := range e.Rules {
		if !slices.Contains(eventKinds, r.Kind) {
			p.add("events.rules", "", "kind %.40q is not one of %v", r.Kind, eventKinds)
		}
		p.rule("events.rules", r.Match, r.Text, r.Tool, r.Failed)
	}
	for key, r := range map[string]*eventRule{"events.ok": e.OK, "events.failed": e.Failed} {
		if r == nil {
			continue
		}
		if r.Kind != "" || r.Tool != "" || r.Failed != "" {
			p.add(key, "", "it can have only match and text")
		}
		p.rule(key, r.Match, r.Text)
	}
	if s := e.Session; s != nil {
		if s.ID == "" {
			p.add("events.session", "such as id = \"session_id\"", "it does not say where the session's name is")
		}
		p.rule("events.session", s.Match, s.ID)
	}
	if u := e.Usage; u != nil {
		p.rule("events.usage", u.Match, u.InputTokens, u.OutputTokens, u.CostUSD, u.Turns)
	}
	if t := p.def.Turn; t != nil {
		t.Stream = cmp.Or(t.Stream, "stdout")
		p.stream("turn.stream", t.Stream)
		p.rule("turn", t.Match, t.Once)
	}
}

func (p *definitionParser) stream(key, name string) {
	if !slices.Contains(lineStreams, name) {
		p.add(key, "", "%.40q is not one of %s", name, strings.Join(lineStreams, ", "))
	}
}

// rule looks at what a rule matches, and at its paths.
func (p *definitionParser) rule(key string, match map[string]string, paths ...string) {
	if len(match) == 0 || len(match) > maxListed {
		p.add(key, "such as match = { type = \"text\" }", "a rule must say which lines it is for")
	}
	for field := range match {
		paths = append(paths, field)
	}
	for _, field := range paths {
		if field != "" && !fieldPath().MatchString(field) {
			p.add(key, "such as message.text", "%.60q is not a dotted path", field)
		}
	}
}
