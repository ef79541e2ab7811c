// Package agents knows the coding agents, one file per agent. It gives each its plan, says how
// it is started in a sprite, reads its output, and judges whether it did its work.
package agents

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
)

// A Task is what an agent must do, and where. Paths are the sprite's.
type Task struct {
	Plan        string // the plan's text
	PlanName    string // its file name, for people
	Dir         string // the job's folder
	Workdir     string // the clone
	Branch      string
	Home        string // of the sprite's user
	Interactive bool   // a person will sit at the agent's terminal
	Converse    bool   // a person may send messages; only for a Converser
	Command     string // starts the agent, where it is any that speaks ACP: a command line for sh
	Permissions string // the answer to its requests for permission: allow (as empty), ask or deny
	Direct      bool   // there are no connectors: the agent asks the model itself, with a key of its own
	Login       string // how it asks the model: cove.LoginKey (as empty), LoginOutside or LoginInside; the latter only of a Subscriber
	Session     string // the agent's own, which is to go on; Plan is the next message. Only of a Rememberer
	Model       string // PROVIDER/MODEL; empty: the agent's default. Agents have their own ways besides

	Role string // limits the agent's tools: one of Roles, empty as build; only of a Limiter

	MCP []cove.MCPServer // the agent gets their tools: an MCPClient those of servers outside, an MCPStarter those of servers inside

	Price  *cove.ConnectorPrice // of that model, where it is known; only a Chooser looks
	MaxUSD float64              // that the model may cost; 0: any sum. Only with Price

	// Skill is what the agent is told before the plan; nil: DefaultSkill.
	Skill *cove.Skill
}

// Work is how an agent carries out a task.
type Work struct {
	Files map[string]File // to be put into the task's Dir, by path below it
	Setup [][]string      // commands before the agent starts; one that fails ends the job

	// Install are commands that install the agent if it is missing, before Setup. Their effect
	// depends only on the sprite's base and on themselves: one run of them may serve many
	// sprites.
	Install [][]string

	Program string // from npm, that Install installs; empty: it installs none, or its needs are unknown

	Argv []string

	// Programs are cove's own that it consists of, which are brought into the sprite.
	// Argv and Verify begin with the bare name of one; Place says where it is.
	Programs []string

	Env []string // KEY=VALUE, over the sprite's own

	// Verify is a command that succeeds if the agent is there, and prints its version.
	Verify []string

	Version string // that Install brings; empty: it brings none
	Needs   Needs

	// Turn are the lines that tell of a turn of the agent's model; nil: none do.
	Turn *cove.LineRule

	// Input is how the agent takes messages, in a task with Converse.
	Input *cove.JobInput

	// Connectors are those that the agent asks its model through, if there are connectors.
	// They are the job's as long as it runs.
	Connectors []string

	// Keys are variables. If there are no connectors, the agent needs one of them; none: it
	// needs no key.
	Keys []string
}

// Commands are all commands before the agent's own, in a sprite where it may be missing.
func (w Work) Commands() [][]string { return slices.Concat(w.Install, w.Setup) }

// Needs are what an agent takes of a sprite besides the work's own, in MiB; 0: next
// to nothing, or nobody knows.
type Needs struct {
	DiskMB   int `json:"disk_mb"`
	MemoryMB int `json:"memory_mb"`
}

// File is one of the files that an agent is given.
type File struct {
	Data []byte
	Mode fs.FileMode
}

// An Agent is one coding agent. Its methods may be called from any goroutine.
type Agent interface {
	// Name is what --agent takes.
	Name() string

	// Prepare says how to run the agent on a task. Its errors are about the
	// plan, for the person who wrote it.
	Prepare(t Task) (Work, error)

	// Read begins the reading of a job's log.
	Read() Reader
}

// A Converser is an Agent that takes messages while it runs, and can wait for more.
type Converser interface {
	// Message is a person's text as a line for the agent's standard input,
	// without the line's end.
	Message(text string) (string, error)
}

// A Chooser is an Agent that can ask the models of several providers, each through the
// connector of the provider's name. It keeps to a limit of their cost.
type Chooser interface {
	// Models are the defaults (PROVIDER/MODEL). If none is named, it asks the first that has a
	// connector.
	Models() []string
}

// An MCPClient is an Agent that can be given MCP servers of the host's.
type MCPClient interface {
	// MCPArguments are the arguments that give it the servers.
	MCPArguments(servers []cove.MCPServer) []string
}

// An MCPStarter is an Agent that starts MCP servers in the sprite, those of Task.MCP.
type MCPStarter interface{ StartsMCP() }

// A Limiter is an Agent whose tools are cove's own, so that a role can limit them. If the role
// does not allow a call, it is refused where the tool would run, whatever the model asks.
type Limiter interface {
	// RoleArguments are the arguments that give it one of Roles; empty: no role, which allows
	// all.
	RoleArguments(role string) []string
}

// Roles are the phases of work. The role selects a Limiter's tools.
var Roles = []string{"plan", Build, "review"}

// Build is the role that limits nothing.
const Build = "build"

// CheckRole returns an error if there is no such role, or the agent can't be limited to it.
// The role build limits nothing, so any agent may have it.
func CheckRole(agent Agent, role string) error {
	if role != "" && !slices.Contains(Roles, role) {
		return fmt.Errorf("the role %.40q is not one of %s", role, strings.Join(Roles, ", "))
	}
	if _, ok := agent.(Limiter); !ok && role != "" && role != Build {
		return fmt.Errorf("the agent %s has tools of its own, which cove can't limit to the role %s", agent.Name(), role)
	}
	return nil
}

// A Transcriber is an Agent that keeps a record of its own of what was said.
type Transcriber interface {
	// Transcripts is the folder, seen from the sprite's home, where the records of
	// work in a folder lie.
	Transcripts(workdir string) string
}

// A Reader follows the log of one job, in order. It is not for several goroutines.
type Reader interface {
	// Event reads the next line of the log, and returns its events. Nil means that the line is
	// not the agent's report; an empty slice, that the report's line has nothing to tell. The
	// agent's output is untrusted text.
	Event(ev cove.JobEvent) []Event

	// Judge decides, after the whole log, from what the agent said, how it ended
	// and what was collected. A nil usage means that the agent reported none.
	Judge(end cove.JobEnd) (cove.Outcome, *cove.Usage)
}

// A Rememberer is a Reader for an agent that can continue an earlier session.
type Rememberer interface {
	// Session is the agent's name for its session; empty: it has not given one, or can't
	// continue the session.
	Session() string
}

// A Totaller is a Reader whose usage, in a session that goes on, is that of the
// session from its beginning.
type Totaller interface{ TotalUsage() }

// Kind is what an Event is about.
type Kind string

// The kinds of events.
const (
	KindStart     Kind = "start"      // the agent is ready; Text says with what
	KindText      Kind = "text"       // the agent says Text
	KindThought   Kind = "thought"    // the agent's model thinks Text
	KindStep      Kind = "step"       // a step named Text begins
	KindStepEnd   Kind = "step_end"   // it ended, with Failed
	KindToolStart Kind = "tool_start" // Tool is called; Text is its input in short
	KindToolEnd   Kind = "tool_end"   // it ended, with Failed; Text is the start of its output
	KindRetry     Kind = "retry"      // the model is asked again; Text says why
	KindDenied    Kind = "denied"     // the agent was not allowed something
	KindAsk       Kind = "ask"        // a person is asked whether it may do Text
	KindNotice    Kind = "notice"     // something about the agent that is not in order
	KindResult    Kind = "result"     // the agent's own last word
)

// An Event is something that an agent did, in the same form for all of them.
type Event struct {
	Kind   Kind   `json:"kind"`
	Text   string `json:"text,omitempty"`
	Tool   string `json:"tool,omitempty"`
	Failed bool   `json:"failed,omitempty"`

	ID   string `json:"-"` // of the call, the same at its start and its end; empty: the agent has none
	Full string `json:"-"` // the whole input or output (Text is a short form); of a question, the input of its tool

	Missing string `json:"-"` // of a question: why Full is not all that an answer allows; empty: it is
	Repeats bool   `json:"-"` // of a question: the start of the tool has the same Full

	Silent string `json:"-"` // of the end of a tool without output: why it has none, as a sentence; empty: nobody knows
}

// Place puts in where a program of Programs is in the sprite.
func (w Work) Place(name, path string) {
	for _, argv := range [][]string{w.Argv, w.Verify} {
		if len(argv) > 0 && argv[0] == name {
			argv[0] = path
		}
	}
}

// modelOf is the name of the model that a task wants, for an agent that asks one
// provider alone; empty: it wants none in particular.
func (t Task) modelOf(agent, provider string) (string, error) {
	if t.Model == "" {
		return "", nil
	}
	of, name, ok := strings.Cut(t.Model, "/")
	if !ok || of != provider || name == "" {
		return "", fmt.Errorf("the agent %s has no model %.80q: write %s/MODEL", agent, t.Model, provider)
	}
	return name, nil
}

var all = []Agent{Claude{}, Codex{}, Gemini{}, OpenCode{}, Pi{}, ACP{}, Cove{}, Shell{}}

// TrialDir is the folder of a trial's files, below the home.
const TrialDir = ".cove/trial"

// Trial returns the work that makes an agent ready and checks that it is there, in a sprite
// whose user has that home. Install, Setup, Verify, Env and Connectors are as in any work of
// the agent; Files, in TrialDir, are those that Setup may need. Its task does nothing.
func Trial(agent Agent, home string) (Work, error) {
	return agent.Prepare(Task{Plan: "# Nothing\n\n```sh\ntrue\n```\n", PlanName: "trial", Dir: home + "/" + TrialDir, Workdir: home, Branch: "main", Home: home})
}

// Names lists the agents.
func Names() []string {
	var names []string
	for _, a := range all {
		names = append(names, a.Name())
	}
	return names
}

// Find returns the agent of that name; the error lists those that there are.
func Find(name string) (Agent, error) {
	i := slices.IndexFunc(all, func(a Agent) bool { return a.Name() == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no agent %q; there are: %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}

// Of is the agent of a job: the one that its definition describes, or, without one,
// the one of that name. Errors in a definition are Problems.
func Of(name string, def *cove.AgentDefinition) (Agent, error) {
	if def == nil {
		return Find(name)
	}
	custom, err := ParseDefinition(def.File, def.Text)
	if err != nil {
		return nil, err
	}
	if custom.Name() != name {
		return nil, fmt.Errorf("%s defines the agent %s, not %s", def.File, custom.Name(), name)
	}
	return custom, nil
}

// Outcome kinds (cove.Outcome).
const (
	Success       = "success"
	AgentFailed   = "agent_failed"
	NoResult      = "no_result"
	TimedOut      = "timeout"
	TurnLimit     = "turn_limit"
	DiskLimit     = "disk_limit"
	MemoryLimit   = "memory_limit"
	CostLimit     = "cost_limit"
	Cancelled     = "cancelled"
	Lost          = "lost"
	PrepareFailed = "prepare_failed"
	CollectFailed = "collect_failed"
)

// settled decides the outcomes that no agent has a say in.
func settled(end cove.JobEnd) (cove.Outcome, bool) {
	o := cove.Outcome{ExitCode: end.ExitCode, Reason: end.Reason}
	switch {
	case end.Reason == "stopped":
		o.Kind, o.Reason = Cancelled, "stopped on request"
	case end.Reason == "lost":
		o.Kind, o.Reason = Lost, "its sandbox or its supervisor ended before it did"
	case end.Reason == "timeout":
		o.Kind, o.Reason, o.ExitCode = TimedOut, guard(end, "its time was up"), 124
	case end.Reason == "idle":
		o.Kind, o.Reason, o.ExitCode = TimedOut, guard(end, "no event for too long"), 124
	case end.Reason == "turns":
		o.Kind, o.Reason = TurnLimit, guard(end, "too many of its model's turns")
	case end.Reason == "disk":
		o.Kind, o.Reason = DiskLimit, guard(end, "its files have grown too much")
	case end.Reason == "oom":
		o.Kind, o.Reason = MemoryLimit, "out of memory: "+cmp.Or(short(end.Detail), "the agent was ended")
	case end.Phase == "prepare":
		o.Kind = PrepareFailed
	case end.Phase == "collect":
		o.Kind = CollectFailed
	case strings.HasPrefix(end.Reason, "signal:"):
		o.Kind, o.Reason = AgentFailed, "ended by signal "+strings.TrimPrefix(end.Reason, "signal:")
	case end.Reason != "":
		o.Kind = AgentFailed
	default:
		return o, false
	}
	return o, true
}

// guard names the guard that ended a job, and what it saw.
func guard(end cove.JobEnd, what string) string {
	return "guard " + end.Reason + ": " + cmp.Or(short(end.Detail), what)
}

// lines joins the parts of lines that were too long for one event.
type lines struct {
	held strings.Builder
	drop bool // the rest of a line that is too long
}

// maxHeld bounds what is held of a line whose end is awaited.
const maxHeld = 32 << 20

// next returns a whole line, if the event ends one that is not too long.
func (l *lines) next(ev cove.JobEvent) (string, bool) {
	if l.drop || l.held.Len()+len(ev.Text) > maxHeld {
		l.held.Reset()
		l.drop = ev.Cut
		return "", false
	}
	if !ev.Cut && l.held.Len() == 0 {
		return ev.Text, true
	}
	l.held.WriteString(ev.Text)
	if ev.Cut {
		return "", false
	}
	s := l.held.String()
	l.held.Reset()
	return s, true
}

// short is the first line of s, cut to a length that fits a line of a log.
func short(s string) string {
	s, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(s); len(r) > 160 {
		return string(r[:160]) + "…"
	}
	if more {
		return s + " …"
	}
	return s
}
