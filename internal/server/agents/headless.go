package agents

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
)

// The agents that use this file are programs from npm. They read a text from their standard
// input, and print lines of JSON.

//go:embed npm-install.sh
var npmInstall string

// npmPackage is a version of a package, as npm writes it, with npm's integrity hash of its
// content.
type npmPackage struct{ spec, integrity string }

// installFrom makes w's agent a program of the first package, which runs on a Node.js of that
// major version.
func (w *Work) installFrom(program string, node int, packages ...npmPackage) {
	argv := []string{"/bin/sh", "-c", npmInstall, "npm-install", program, fmt.Sprint(node)}
	for _, p := range packages {
		argv = append(argv, p.spec, p.integrity)
	}
	_, w.Version, _ = strings.Cut(packages[0].spec[1:], "@") // after the scope's
	w.Program = program
	w.Install, w.Verify = [][]string{argv}, []string{program, "--version"}
}

// placeholderKey is what an agent believes to be its key.
const placeholderKey = "cove-adds-the-real-key-outside"

// pathOf is where an agent and its tools look for programs.
func pathOf(t Task) string {
	return "PATH=" + t.Home + "/.local/bin:/.sprite/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"
}

// promptName is the file of what an agent is told, in the task's Dir.
const promptName = "prompt.md"

// prompt is the text for the agent: the instructions and the plan. In a resumed session, which
// has the instructions, it is the message alone.
func (t Task) prompt() string {
	if t.Session != "" {
		return t.Plan
	}
	return t.instructions() + "\n# The plan\n\n" + t.Plan
}

// headless is the work of an agent that reads its prompt from a file on its standard input.
// There its length does not matter, and it has an end. In a terminal the agent is told to read
// the file.
func (t Task) headless(argv, interactive []string) (Work, error) {
	if strings.TrimSpace(t.Plan) == "" {
		return Work{}, fmt.Errorf("the plan %s is empty", t.PlanName)
	}
	if t.Session != "" && !sessionID().MatchString(t.Session) {
		return Work{}, fmt.Errorf("%.40q can't be a session", t.Session)
	}
	w := Work{
		Files: map[string]File{promptName: {[]byte(t.prompt()), 0o644}},
		Env:   []string{pathOf(t)},
		Argv:  append([]string{"/bin/sh", "-c", `in=$1; shift; exec "$@" <"$in"`, argv[0], t.Dir + "/" + promptName}, argv...),
	}
	if t.Interactive {
		w.Argv = append(slices.Clip(interactive), "Read "+t.Dir+"/"+promptName+" and carry out the plan in it.")
	}
	return w, nil
}

// A provider has models that an agent may ask.
type provider struct {
	name      string // that agents have for it
	connector string
	key       string // the variable
	base      string // below the connector's upstream
}

// providers are the providers that have a connector, by their name in a task's model.
var providers = map[string]provider{
	"anthropic": {"anthropic", "anthropic", "ANTHROPIC_API_KEY", "/v1"},
	"openai":    {"openai", "openai", "OPENAI_API_KEY", "/v1"},
	"gemini":    {"google", "gemini", "GEMINI_API_KEY", "/v1beta"},
}

// model is the task's provider and model, for an agent that can ask several providers. The
// model is empty if the task names none, and the provider is then anthropic.
func (t Task) model() (p provider, model string, err error) {
	name, model, _ := strings.Cut(cmp.Or(t.Model, "anthropic"), "/")
	p, ok := providers[name]
	if !ok {
		return p, "", fmt.Errorf("%.80q is not a model; write PROVIDER/MODEL, with anthropic, openai or gemini as provider", t.Model)
	}
	return p, model, nil
}

// through is the URL of a connector, seen from a sprite.
func through(connector string) string { return "http://" + connector + ".connect.internal" }

// sessionID matches the names that an agent may give a session. The name comes from a place
// where an agent worked, and becomes an argument.
var sessionID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`) })

// jsonLines reads an agent's report: lines of JSON on its standard output.
type jsonLines struct {
	out     lines
	line    string // the last one of it
	session string
}

// next decodes the line that the event ends. Other lines than those of the report are
// passed over: warnings of a runtime's, say. A field of another type than was
// expected is left as it is.
func (j *jsonLines) next(ev cove.JobEvent, into any) bool {
	if ev.Type != "output" || ev.Stream != "stdout" {
		return false
	}
	text, ok := j.out.next(ev)
	if !ok || !strings.HasPrefix(text, "{") {
		return false
	}
	j.line = text
	err := json.Unmarshal([]byte(text), into)
	_, other := errors.AsType[*json.UnmarshalTypeError](err)
	return err == nil || other
}

// name takes in what the agent calls its session.
func (j *jsonLines) name(session string) {
	if sessionID().MatchString(session) {
		j.session = session
	}
}

// Session implements Rememberer.
func (j *jsonLines) Session() string { return j.session }

// ending is what an agent has said of the end of its work.
type ending struct {
	done   bool   // it says that it is
	failed string // why it failed; empty: it did not, or did not say
	retry  string // why its model was asked again, if it did not answer since
}

// judge decides by what the agent said and by how it ended.
func (e ending) judge(end cove.JobEnd) cove.Outcome {
	if o, ok := settled(end); ok {
		return o
	}
	o := cove.Outcome{Kind: Success, ExitCode: end.ExitCode}
	switch {
	case e.failed != "":
		o.Kind, o.Reason = AgentFailed, short(e.failed)
	case !e.done && e.retry != "":
		o.Kind, o.Reason = NoResult, "ended without a result; the model last answered "+short(e.retry)
	case !e.done:
		o.Kind, o.Reason = NoResult, fmt.Sprintf("ended with exit code %d and without a result", end.ExitCode)
	case end.ExitCode != 0:
		o.Kind, o.Reason = AgentFailed, fmt.Sprintf("exited with %d though it reported a result", end.ExitCode)
	}
	return o
}

// used is what an agent has reported, if it has reported anything.
func used(u cove.Usage) *cove.Usage {
	if u == (cove.Usage{}) {
		return nil
	}
	return &u
}
