package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

func newAgentListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the agents",
		Long: `Lists the agents. It starts no server for that.

  VERSION    the version that is installed if there is none
  KEY        the connector to its model, and whether the connector's secret is set
  DISK       what it needs of the sprite's disk
  MEMORY     what it needs of the sprite's memory
  INSTALLED  the installation that the sprites of jobs begin with
  FROM       where it is defined`,
		Example: `  cove agent list
  cove agent list --json | jq -r '.agents[] | select(.state == "ready").name'`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			docs, err := listAgents(ctx, inv)
			if err != nil {
				return err
			}
			doc := struct {
				Agents []agentJSON `json:"agents"`
			}{docs}
			return inv.show(doc, func(w io.Writer) {
				rows := [][]string{{"NAME", "VERSION", "KEY", "DISK", "MEMORY", "INSTALLED", "FROM"}}
				for _, d := range docs {
					from := d.From
					if d.File != "" {
						from += ", " + d.File
					}
					rows = append(rows, []string{d.Name, printable.Line(orDash(d.Version)), keyText(d), needText(d.Needs.DiskMB), needText(d.Needs.MemoryMB), installedText(d), printable.Line(from)})
				}
				table(w, rows)
				for _, d := range docs {
					if text := stateText(d); text != "" {
						fmt.Fprintf(w, "%s: %s\n", d.Name, printable.Line(text))
					}
				}
			})
		}),
	}
}

func listAgents(ctx context.Context, inv *invocation) ([]agentJSON, error) {
	places, err := findPlaces(ctx)
	if err != nil {
		return nil, err
	}
	files, err := places.AgentFiles()
	if err != nil {
		return nil, configError(err)
	}
	m, docs := findModels(ctx, inv), []agentJSON{}
	for _, name := range agents.Names() {
		agent, err := agents.Find(name)
		if err != nil {
			return nil, err
		}
		doc, _, err := m.describe(ctx, agent)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	for _, f := range files {
		doc, _, err := m.describeFile(ctx, f)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}
