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
		Long: `Copies a definition into your folder of agents, in place of one of the same name. It can be
used by its name from then on. A definition with a mistake in it is refused, with its line.

  name = "greeter"                                 the name for --agent
  description = "greets whom the plan names"
  version = "1.4.0"                                that install brings
  argv = ["greeter", "run", "--plan", "{prompt_file}"]
  resume = ["greeter", "resume", "{session}", "{prompt_file}"]   for job resume
  interactive = ["greeter", "{prompt_file}"]       with --interactive; else it can't be joined
  stdin = "none"                                   or: prompt
  install = [["npm", "install", "-g", "--prefix", "{home}/.local", "greeter@1.4.0"]]
  setup = [["sh", "-c", "cp {files}/config.json ~/.greeter.json"]]
  verify = ["greeter", "--version"]                succeeds where it is there
  connectors = ["anthropic"]                       that its jobs are granted
  keys = ["ANTHROPIC_API_KEY"]                     of which it needs one without connectors
  env = { ANTHROPIC_BASE_URL = "http://anthropic.connect.internal" }
  files = { "config.json" = '''{"colour": true}''' }
  needs = { disk = "200M", memory = "1G" }
  turn = { stream = "stdout", match = { type = "assistant" }, once = "message.id" }

  [events]                                         format none: the exit code decides
  format = "jsonl"                                 a line of JSON is an event
  stream = "stdout"                                or stderr, or events: file descriptor 3
  ok = { match = { type = "done" }, text = "summary" }
  failed = { match = { type = "error" }, text = "error.message" }
  usage = { match = { type = "usage" }, input_tokens = "in", output_tokens = "out",
            cost_usd = "cost", turns = "turns" }
  session = { match = { type = "start" }, id = "session_id" }    that resume goes on with
  [[events.rules]]                                 the first that matches
  match = { type = "tool" }
  kind = "tool_start"                              or start, text, step, step_end, tool_end,
  tool = "name"                                    retry, denied
  text = "input.command"
  failed = "is_error"

What stands in match is compared with what stands at a dotted path of the line, which has at
most 1 MiB. Where there are no connectors, variables with the URL of one are left out. A job
succeeds if the last line that is ok or failed was ok, and the exit code was 0. Install is run
where the agent may be missing, and may serve many sprites; setup is run before each job. In
braces: {prompt_file} is what the agent is told, skill and plan; {files} the folder with
files; {workdir} the clone; {home}; {session} a UUID that is the job's, in resume the name
that the agent gave its session.`,
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
		Short: "Say that an agent which this repository defines may be used",
		Long: `Says that the definition .cove/agents/NAME.toml of this repository may be used, as it is now:
when its text changes it has to be said again. Read it first (cove agent show NAME): it runs
in a sprite, and its jobs are granted the connectors that it names. cove agent rm takes it
back.`,
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
				inv.say("Agent %s may be used, as %s says now.", f.Name, f.File)
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
		Long: `Removes your definition of an agent. Where you have none, and this repository's is trusted,
it is not any more. Jobs that run go on: they have their definition with them.`,
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
