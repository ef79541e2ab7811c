package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

// agentDetail is an agent as cove agent show prints it with --json.
type agentDetail struct {
	agentJSON
	Argv        []string       `json:"argv,omitempty"`
	Install     [][]string     `json:"install,omitempty"`
	Setup       [][]string     `json:"setup,omitempty"`
	Verify      []string       `json:"verify,omitempty"`
	Env         []string       `json:"env,omitempty"`
	Files       []string       `json:"files,omitempty"`
	Turn        *cove.LineRule `json:"turn,omitempty"`
	Interactive bool           `json:"interactive"` // it can be joined in a terminal
	Converse    bool           `json:"converse"`    // it takes messages
	Skill       *cove.Skill    `json:"skill,omitempty"`
	Definition  string         `json:"definition,omitempty"`
}

func newAgentShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show an agent: how it is installed and started, and its skill",
		Long: `Shows what cove knows of an agent: its commands, variables and files, as a job in this repository
would have them. It also shows the agent's skill, with its version: the text with which the agent
carries out a plan alone. If a file defines the agent, it shows the file, too.`,
		Example: `  cove agent show claude
  cove agent show claude --json | jq -r .skill.text`,
		Args:              exactArgs("the agent's name"),
		Annotations:       map[string]string{"agents": "one"},
		ValidArgsFunction: completeAgent,
		RunE: verb(func(ctx context.Context, args []string) error {
			doc, err := describeAgent(ctx, inv, args[0])
			if err != nil {
				return err
			}
			return inv.show(doc, func(w io.Writer) { printAgent(w, doc) })
		}),
	}
}

func describeAgent(ctx context.Context, inv *invocation, name string) (agentDetail, error) {
	var doc agentDetail
	places, err := findPlaces(ctx)
	if err != nil {
		return doc, err
	}
	agent, work, m := agents.Agent(nil), agents.Work{}, findModels(ctx, inv)
	if agent, err = agents.Find(name); err == nil {
		doc.agentJSON, work, err = m.describe(ctx, agent)
	} else if f, ok, listErr := agentFile(places, name); listErr != nil || !ok {
		if listErr == nil {
			_, err = places.Agent(name) // which names the others, too
		}
		return doc, notAnAgent(listErr, err)
	} else if f.Err != nil {
		return doc, agentProblems(f.Err)
	} else {
		agent, doc.Definition = f.Agent, f.Agent.Definition().Text
		doc.agentJSON, work, err = m.describeFile(ctx, f)
	}
	if err != nil {
		return doc, err
	}
	doc.Argv, doc.Install, doc.Setup, doc.Verify, doc.Env, doc.Turn = work.Argv, work.Install, work.Setup, work.Verify, slices.Sorted(slices.Values(work.Env)), work.Turn
	for file := range work.Files {
		doc.Files = append(doc.Files, file)
	}
	slices.Sort(doc.Files)
	_, doc.Converse = agent.(agents.Converser)
	_, err = agent.Prepare(agents.Task{Plan: "```sh\ntrue\n```\n", Dir: spriteHome, Workdir: spriteHome, Home: spriteHome, Interactive: true})
	doc.Interactive = err == nil
	if agents.ReadsSkill(name) {
		if doc.Skill, err = places.Skill(); err != nil {
			return doc, configError(err)
		}
		if doc.Skill == nil {
			skill := agents.DefaultSkill()
			doc.Skill = &skill
		}
	}
	return doc, nil
}

// agentFile is the definition of that name that would be used.
func agentFile(places config.Places, name string) (config.AgentFile, bool, error) {
	files, err := places.AgentFiles()
	if err != nil {
		return config.AgentFile{}, false, configError(err)
	}
	i := slices.IndexFunc(files, func(f config.AgentFile) bool { return f.Name == name })
	if i < 0 {
		return config.AgentFile{}, false, nil
	}
	return files[i], true, nil
}

func notAnAgent(listErr, err error) error {
	if listErr != nil {
		return listErr
	}
	return fail.Wrap("no_agent", err, "see which there are: cove agent list")
}

func printAgent(w io.Writer, doc agentDetail) {
	from := doc.From
	if doc.File != "" {
		from += ", " + doc.File
	}
	rows := []string{"agent", doc.Name, "about", doc.Description, "from", from, "state", doc.State, "version", doc.Version,
		"asks", keyText(doc.agentJSON), "keys", strings.Join(doc.Keys, ", "),
		"disk", needText(doc.Needs.DiskMB), "memory", needText(doc.Needs.MemoryMB), "installed", installedText(doc.agentJSON)}
	rows = append(rows, "starts", commandText(doc.Argv), "verified by", commandText(doc.Verify), "files", strings.Join(doc.Files, ", "), "in a terminal", yesNo(doc.Interactive), "takes messages", yesNo(doc.Converse))
	for i := 0; i < len(rows); i += 2 {
		if rows[i+1] != "" && rows[i+1] != "-" {
			fmt.Fprintf(w, "%-15s %s\n", rows[i], printable.Line(rows[i+1]))
		}
	}
	for _, kv := range doc.Env {
		fmt.Fprintf(w, "%-15s %s\n", "variable", printable.Line(kv))
	}
	for i, argv := range slices.Concat(doc.Install, doc.Setup) {
		what := "Installed by"
		if i >= len(doc.Install) {
			what = "Set up by"
		}
		fmt.Fprintf(w, "\n%s:\n\n%s\n", what, commandText(argv))
	}
	if text := stateText(doc.agentJSON); text != "" {
		fmt.Fprintf(w, "\n%s\n", printable.Line(text))
	}
	if doc.Definition != "" {
		fmt.Fprintf(w, "\nDefinition:\n\n%s\n", printable.Text(strings.TrimSpace(doc.Definition)))
	}
	if doc.Skill != nil {
		fmt.Fprintf(w, "\nSkill %s, version %s, sha256 %s:\n\n%s\n", printable.Line(doc.Skill.Name), printable.Line(orDash(doc.Skill.Version)), doc.Skill.SHA256[:12], printable.Text(strings.TrimSpace(doc.Skill.Text)))
	}
}

// commandText is a command as a person would type it. A script in it keeps its lines.
func commandText(argv []string) string {
	var words []string
	for _, arg := range argv {
		if strings.Contains(arg, "\n") {
			words = append(words, "'\n"+printable.Text(strings.TrimSpace(arg))+"\n'")
		} else {
			words = append(words, printable.Word(arg))
		}
	}
	return strings.Join(words, " ")
}
