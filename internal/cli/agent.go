package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

func newAgentCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "See which agents there are, and add others",
		Long: `An agent carries out a plan; --agent of push, run and others names one. Some agents are cove's
own, and no other agent replaces these. TOML files define others (see cove help agent-file):
yours are in the folder agents beside your settings, and a repository's are in .cove/agents. A
repository may come from a stranger. So cove uses its agents only after cove agent trust, and no
longer once their text changes.

A skill is the text that an agent gets before the plan; cove agent show prints it. If the
repository has a .cove/skill.md, the agent gets that instead. Lines between --- at its top may
give its version, and nothing else: the skill is text for a model, and changes no permissions.`,
		Example: `  cove agent list
  cove agent show claude
  cove agent check claude`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAgentListCommand(inv), newAgentShowCommand(inv), newAgentCheckCommand(inv), newAgentAddCommand(inv), newAgentTrustCommand(inv), asksFirst(inv, newAgentRmCommand(inv), eachLost("the agent %s: your definition of it, or your trust in this repository's")))
	return cmd
}

// registerAgent adds the flag --agent.
func registerAgent(cmd *cobra.Command, name *string, byDefault, usage string) {
	cmd.Flags().StringVar(name, "agent", byDefault, usage+strings.Join(agents.Names(), ", ")+", or another of cove agent list")
	must(cmd.RegisterFlagCompletionFunc("agent", completeAgent))
}

// completeAgent lists what may be used.
func completeAgent(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Annotations["agents"] != "" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := agents.Names()
	if places, err := findPlaces(cmd.Context()); err == nil {
		files, _ := places.AgentFiles() // those that can be listed
		for _, f := range files {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), cobra.ShellCompDirectiveNoFileComp
}

// findAgent is the agent of that name, which may be used.
func findAgent(cmd *cobra.Command, places config.Places, name string) (agents.Agent, error) {
	agent, err := places.Agent(name)
	_, wrong := errors.AsType[config.Problems](err)
	switch {
	case errors.Is(err, config.ErrUntrusted):
		return nil, fail.Wrap("agent_untrusted", err, "read it: cove agent show "+name+"; then: cove agent trust "+name)
	case wrong:
		return nil, agentProblems(err)
	case err != nil:
		return nil, usagef(cmd, "%v", err)
	}
	return agent, nil
}

// agentProblems joins all problems of a definition into one error for people.
func agentProblems(err error) error {
	problems, ok := errors.AsType[config.Problems](err)
	if !ok {
		return err
	}
	var all []string
	for _, p := range problems {
		all = append(all, p.Error())
	}
	return fail.New("bad_agent", strings.Join(all, "\n"), problems[0].Hint)
}

// definitionOf is what a job must bring of its agent; nil: the server knows it.
func definitionOf(agent agents.Agent) *cove.AgentDefinition {
	if custom, ok := agent.(*agents.Custom); ok {
		return custom.Definition()
	}
	return nil
}

// agentJSON is an agent as cove agent list prints it with --json.
type agentJSON struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	From        string           `json:"from"`
	File        string           `json:"file,omitempty"`
	State       string           `json:"state"`
	Problems    []config.Problem `json:"problems,omitempty"`
	Version     string           `json:"version,omitempty"`
	Needs       agents.Needs     `json:"needs"`
	Connectors  []connectorState `json:"connectors,omitempty"`
	Keys        []string         `json:"keys,omitempty"`

	Installs []cove.AgentInstall `json:"installs,omitempty"` // that jobs share, the newest first
}

// The states of an agent.
const (
	agentReady     = "ready"
	agentNoKey     = "no-key"    // a connector, or its secret, is missing
	agentUntrusted = "untrusted" // the person has not said that it may be used
	agentInvalid   = "invalid"   // its definition has mistakes
	agentHidden    = "hidden"    // the person has another one of that name
)

// connectorState is a connector that an agent asks its model through.
type connectorState struct {
	Name   string `json:"name"`
	Secret string `json:"secret"` // set, missing, none (it needs none), no connector, or unknown
	next   string // to type, if one of these is missing
}

// models are whether agents can ask their models, as far as a server can be asked.
type models struct {
	client  *cove.Client // nil: none answers
	secrets []cove.Secret

	installs []cove.AgentInstall
}

func findModels(ctx context.Context, inv *invocation) models {
	c, err := inv.server.runningClient(ctx)
	if err != nil {
		return models{}
	}
	m := models{}
	if m.installs, err = c.Installs(ctx); err != nil {
		inv.detail("%v", err) // another server of the protocol has none
	}
	if m.secrets, err = c.Secrets(ctx); err == nil { // else the token may not say
		m.client = c
	}
	return m
}

func (m models) connector(ctx context.Context, name string) connectorState {
	if m.client == nil {
		return connectorState{Name: name, Secret: "unknown"}
	}
	def, err := m.client.Connector(ctx, name)
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return connectorState{Name: name, Secret: "unknown"}
	}
	return m.stateOf(name, def, err == nil)
}

// stateOf says what a connector lacks. A job makes a connector that cove knows by name, if
// its secret is set.
func (m models) stateOf(name string, def cove.Connector, there bool) connectorState {
	if !there && slices.Contains(connect.Presets(), name) {
		def, there = cove.Connector{Secret: name, Headers: map[string]string{"Authorization": "{secret}"}}, true
	}
	unset := connect.Unset(def, m.secrets)
	switch {
	case !there:
		return connectorState{name, "no connector", "make its connector: cove connector put " + printable.Word(name) + " --upstream URL"}
	case len(connect.SecretsOf(def)) == 0:
		return connectorState{Name: name, Secret: "none"}
	case len(unset) == 0:
		return connectorState{Name: name, Secret: "set"}
	}
	return connectorState{name, "missing", "give it a key: cove secret set " + printable.Word(unset[0])}
}

// describe says what there is to know of an agent.
func (m models) describe(ctx context.Context, agent agents.Agent) (agentJSON, agents.Work, error) {
	doc := agentJSON{Name: agent.Name(), From: string(config.BuiltIn), State: agentReady}
	work, err := agents.Trial(agent, spriteHome)
	if err != nil {
		return doc, work, fmt.Errorf("the agent %s: %w", agent.Name(), err)
	}
	if custom, ok := agent.(*agents.Custom); ok {
		doc.Description = custom.Description()
	}
	for _, in := range m.installs {
		if in.Agent == doc.Name {
			doc.Installs = append(doc.Installs, in)
		}
	}
	doc.Version, doc.Needs, doc.Keys = work.Version, work.Needs, work.Keys
	for _, name := range work.Connectors {
		c := m.connector(ctx, name)
		if c.next != "" {
			doc.State = agentNoKey
		}
		doc.Connectors = append(doc.Connectors, c)
	}
	return doc, work, nil
}

// describeFile is describe for an agent that a file defines, which may be wrong.
func (m models) describeFile(ctx context.Context, f config.AgentFile) (agentJSON, agents.Work, error) {
	doc := agentJSON{Name: f.Name, State: agentInvalid}
	var work agents.Work
	if f.Err == nil {
		var err error
		if doc, work, err = m.describe(ctx, f.Agent); err != nil {
			return doc, work, err
		}
	} else if problems, ok := errors.AsType[config.Problems](f.Err); ok {
		doc.Problems = problems
	}
	doc.From, doc.File = string(f.Source), f.File
	switch {
	case f.Hidden:
		doc.State = agentHidden
	case f.Err == nil && !f.Trusted:
		doc.State = agentUntrusted
	}
	return doc, work, nil
}

// needText is a need for people.
func needText(mb int) string {
	if mb == 0 {
		return "-"
	}
	return printable.Bytes(int64(mb) << 20)
}

// installedText says which of an agent's installations jobs begin with.
func installedText(doc agentJSON) string {
	if len(doc.Installs) == 0 {
		return "-"
	}
	in := doc.Installs[0]
	text := ago(in.CreatedAt, time.Now())
	if in.Bytes > 0 {
		text = printable.Bytes(in.Bytes) + ", " + text
	}
	if in.Version != doc.Version {
		text = printable.Line(in.Version) + ", " + text
	}
	return text
}

// keyText is how an agent reaches its model, for people.
func keyText(doc agentJSON) string {
	var parts []string
	for _, c := range doc.Connectors {
		parts = append(parts, printable.Line(c.Name)+" ("+map[string]string{"set": "secret set", "missing": "secret not set", "none": "needs no secret", "no connector": "connector not made", "unknown": "not known"}[c.Secret]+")")
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// stateText is what to type next about an agent; empty: nothing.
func stateText(doc agentJSON) string {
	switch doc.State {
	case agentUntrusted:
		return "a repository defines it; to use it: cove agent show " + doc.Name + ", then cove agent trust " + doc.Name
	case agentInvalid:
		if len(doc.Problems) > 0 {
			return doc.Problems[0].Error()
		}
		return "its definition can't be read"
	case agentHidden:
		return "your own agent of that name is used instead"
	case agentNoKey:
		for _, c := range doc.Connectors {
			if c.next != "" {
				return c.next
			}
		}
	}
	return ""
}

// readAgentSettings reads the person's own settings for an agent. It tells the person which
// files go along with the job, and which do not.
func readAgentSettings(inv *invocation, agent agents.Agent) ([]cove.SettingsFile, error) {
	settled, ok := agent.(agents.Settled)
	if !ok {
		return nil, fail.Newf("no_settings", "leave out --agent-settings", "cove knows no settings of the agent %s", agent.Name())
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, hinted(fmt.Errorf("find your settings of the agent %s: %w", agent.Name(), err), "set HOME, or leave out --agent-settings")
	}
	files, left, err := config.AgentSettings(home, settled.Settings())
	if err != nil {
		return nil, err
	}
	for _, l := range left {
		inv.say("Not sent: ~/%s: %s.", printable.Line(l.File), l.Why)
	}
	inv.say("Sent along: %s of your settings for %s in ~/%s.", printable.Count(len(files), "file"), agent.Name(), settled.Settings().Folder)
	return files, nil
}
