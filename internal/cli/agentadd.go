package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/fail"
)

func newAgentAddCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "add FILE.toml",
		Short: "Add an agent that a file defines",
		Long: `Copies the definition of an agent into your folder of agents, in place of one of the same name.
From then on --agent takes its name. A definition with a mistake is refused, and the error
names the line. cove help agent-file has all keys of a definition.`,
		Example: `  cove agent add greeter.toml
  cove agent check greeter`,
		Args: exactArgs("the definition's file"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"toml"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: verb(func(ctx context.Context, args []string) error {
			places, err := findPlaces(ctx)
			if err != nil {
				return err
			}
			agent, file, err := places.AddAgent(args[0])
			if err != nil {
				return agentProblems(err)
			}
			doc := map[string]string{"name": agent.Name(), "file": file}
			return inv.show(doc, func(io.Writer) {
				inv.say("Agent %s is in %s. See that it works: cove agent check %s", agent.Name(), file, agent.Name())
			})
		}),
	}
}

func newAgentTrustCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "trust NAME",
		Short: "Allow an agent that this repository defines",
		Long: `Allows the definition .cove/agents/NAME.toml of this repository, as it is now. If its text
changes, you have to trust it again. Read it first (cove agent show NAME): it runs in a sprite,
and its jobs are granted the connectors that it names. cove agent rm takes the trust back.`,
		Example: `  cove agent show greeter
  cove agent trust greeter`,
		Args:              exactArgs("the agent's name"),
		Annotations:       map[string]string{"agents": "one"},
		ValidArgsFunction: completeAgent,
		RunE: verb(func(ctx context.Context, args []string) error {
			places, err := findPlaces(ctx)
			if err != nil {
				return err
			}
			f, ok, err := repositoryAgent(places, args[0])
			switch {
			case err != nil:
				return err
			case !ok:
				return fail.Newf("no_agent", "see which there are: cove agent list", "this repository defines no agent %q", args[0])
			case f.Err != nil:
				return agentProblems(f.Err)
			case f.Hidden:
				return fail.Newf("agent_hidden", "cove agent rm "+f.Name+", and then trust this one", "your own agent %s is used instead", f.Name)
			}
			if err := places.TrustAgent(f, false); err != nil {
				return err
			}
			return inv.show(map[string]string{"name": f.Name, "file": f.File}, func(io.Writer) {
				inv.say("Agent %s may be used, as %s defines it now.", f.Name, f.File)
			})
		}),
	}
}

// repositoryAgent is the repository's definition of that name.
func repositoryAgent(places config.Places, name string) (config.AgentFile, bool, error) {
	files, err := places.AgentFiles()
	for _, f := range files {
		if f.Name == name && f.Source == config.FromRepository {
			return f, true, nil
		}
	}
	return config.AgentFile{}, false, configError(err)
}

func newAgentRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove an agent of yours, or take trust back",
		Long: `Removes your definition of an agent. If you have none, and have trusted this repository's, it
takes that trust back. Running jobs go on: they have their definition with them.`,
		Example:           `  cove agent rm greeter`,
		Args:              exactArgs("the agent's name"),
		Annotations:       map[string]string{"agents": "one"},
		ValidArgsFunction: completeAgent,
		RunE: verb(func(ctx context.Context, args []string) error {
			places, err := findPlaces(ctx)
			if err != nil {
				return err
			}
			f, ok, err := agentFile(places, args[0])
			if err != nil {
				return err
			}
			switch {
			case ok && f.Source == config.FromPersonal:
				if err = places.RemoveAgent(f.Name); errors.Is(err, fs.ErrNotExist) {
					err = nil // somebody else was faster
				}
			case ok && f.Trusted:
				err = places.TrustAgent(f, true)
			default:
				return fail.Newf("no_agent", "see which there are: cove agent list", "there is no agent %q that could be removed", args[0])
			}
			if err != nil {
				return err
			}
			return inv.show(map[string]string{"name": f.Name}, func(io.Writer) { inv.say("Agent %s is not used any more.", f.Name) })
		}),
	}
}
