// Package cli is cove's command line. Each verb has a constructor, newNameCommand. A file has one
// verb, or a few that belong together. addVerbs puts them into the tree. A verb works with an
// invocation. Its printer (output.go) completes hints (hints.go). It finds the server in use or
// starts it (server.go), and finds the sprite in use (spritefile.go). Exit codes are in exit.go.
// The package speaks to a server through the client package alone.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/children"
)

// Main runs one command line, args being without the program's name, and returns
// the exit code. The extra commands (serve, and hidden ones) are added as they
// are: they handle signals themselves. The caller installs no handler for SIGINT,
// SIGTERM and SIGHUP, because some verbs hand them on to a command in a sprite.
func Main(ctx context.Context, args []string, streams Streams, extra ...*cobra.Command) int {
	out := &result{Writer: streams.Out}
	streams.Out = out
	inv := newInvocation(streams)
	root := newRootCommand(inv)
	for _, c := range extra {
		if !c.Hidden {
			c.GroupID = "server"
		}
		root.AddCommand(c)
	}
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	if err := absoluteHome(); err != nil {
		return reportError(inv, root, err)
	}
	spriteFlagOf(root, args)
	cmd, err := root.ExecuteContextC(ctx)
	if err = lostResult(out, err); err != nil {
		inv.global.json = inv.global.json || wantsJSON(args)
		return reportError(inv, cmd, err)
	}
	return inv.child
}

// wantsJSON finds --json in a command line whose flags could not be parsed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--json", "--json=true":
			return true
		case "--":
			return false
		}
	}
	return false
}

func newRootCommand(inv *invocation) *cobra.Command {
	root := &cobra.Command{
		Use:   "cove",
		Short: "Computers of their own for coding agents",
		Long: `cove gives coding agents computers of their own: persistent Linux sandboxes, called
sprites, on this machine or another. It pushes a git repository into one, has an
agent carry out a plan there, and pulls the commits back.

Commands that make or use a sprite start a server if none runs (see cove server); --url
or COVE_URL names another server.

` + exitTable(),
		Example: `  cove push plan.md             send this repository and a plan into a new sprite
  cove pull a3f7b2 --wait       bring the commits back when they are ready

  cove create paint             make a sprite, and work in it
  cove exec -s paint uname -a
  cove console -s paint`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              subcommandOnly,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			inv.server.verb = commandName(cmd)
			aboutFlag(inv, cmd)
			tellUnusedSprite(inv, cmd)
		},
	}
	inv.hints.root = root
	root.Version = readVersions().Cove // for --version
	root.SetVersionTemplate("cove {{.Version}}\n")
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		showSpriteFlag(cmd)
		help(cmd, args)
		if cmd == root {
			listTopics(cmd.OutOrStdout())
		}
	})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag is that of a subcommand
			if unknown := cmd.ValidateArgs(args[:1]); unknown != nil {
				return unknown
			}
		}
		return flagError(cmd, err)
	})
	registerGlobals(root, inv)
	addVerbs(root, inv)
	root.SetHelpCommand(newHelpCommand())
	root.SetHelpCommandGroupID("server")
	return root
}

// registerGlobals adds the flags that every verb has.
func registerGlobals(root *cobra.Command, inv *invocation) {
	f := root.PersistentFlags()
	f.StringVar(&inv.global.url, "url", "", "the server's address (COVE_URL; otherwise the one of this machine)")
	f.StringVar(&inv.global.token, "token", "", "the server's token (COVE_TOKEN; otherwise the one in the data folder)")
	f.StringVar(&inv.global.backend, "backend", "", "the server, by its name in your settings; local: this machine's (COVE_BACKEND)")
	f.StringVar(&inv.global.data, "data", "", "data folder of this machine's server (COVE_DATA; cove server status shows it)")
	f.StringVarP(&inv.global.sprite, "sprite", "s", "", "the sprite (COVE_SPRITE; otherwise the one that cove use noted)")
	f.BoolVar(&inv.global.json, "json", false, "print one JSON document")
	f.BoolVarP(&inv.global.quiet, "quiet", "q", false, "no progress and no remarks")
	f.BoolVarP(&inv.global.verbose, "verbose", "v", false, "say more about what is done")
	must(root.RegisterFlagCompletionFunc("sprite", completeSprite(inv)))
	must(root.RegisterFlagCompletionFunc("backend", completeBackend))
}

// addVerbs adds every verb, in the group of the help that it belongs to.
func addVerbs(root *cobra.Command, inv *invocation) {
	root.AddGroup(
		&cobra.Group{ID: "work", Title: "Work:"},
		&cobra.Group{ID: "sprite", Title: "Sprites:"},
		&cobra.Group{ID: "server", Title: "The server and this machine:"},
	)
	addGroup(root, "work",
		newPushCommand(inv),
		newPullCommand(inv),
		newRunCommand(inv),
		newJobCommand(inv),
		newEnvironmentCommand(inv),
		newSyncCommand(inv),
	)
	addGroup(root, "sprite",
		newCreateCommand(inv),
		newListCommand(inv),
		newInfoCommand(inv),
		newUpdateCommand(inv),
		newSetupCommand(inv),
		newRmCommand(inv),
		newUseCommand(inv),
		newExecCommand(inv),
		newToolCommand(inv),
		newMCPCommand(inv),
		newACPCommand(inv),
		newConsoleCommand(inv),
		newSessionCommand(inv),
		newServiceCommand(inv),
		newURLCommand(inv),
		newPolicyCommand(inv),
		newProxyCommand(inv),
		newCpCommand(inv),
		newCheckpointCommand(inv),
		newRestoreCommand(inv),
		newForkCommand(inv),
		newExportCommand(inv),
		newImportCommand(inv),
		newSuspendCommand(inv),
		newWakeCommand(inv),
		newRestartCommand(inv),
	)
	addGroup(root, "server",
		newServerCommand(inv),
		newWebCommand(inv),
		newAgentCommand(inv),
		newProfileCommand(inv),
		newConfigCommand(inv),
		newEnvCommand(inv),
		newTokenCommand(inv),
		newSecretCommand(inv),
		newConnectorCommand(inv),
		newWebhookCommand(inv),
		newBackendCommand(inv),
		newTestCommand(inv),
		newImageCommand(inv),
		newDoctorCommand(inv),
		newDiagnoseCommand(inv),
		newPingCommand(inv),
		newVersionCommand(inv),
		newAPICommand(inv),
		newCompletionCommand(inv),
	)
	root.AddCommand(newOverlayProbeCommand())
}

func addGroup(root *cobra.Command, id string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = id
		root.AddCommand(c)
	}
}

// newHelpCommand is the command help. It refuses a command that does not exist.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Describe a command or a topic",
		Long: `Describes a command, as COMMAND --help does, or a topic. cove --help lists the commands and the
topics.`,
		Example: `  cove help exec
  cove help service put
  cove help limits`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
			for _, t := range topics {
				if len(args) == 0 && strings.HasPrefix(t.Name, prefix) {
					names = append(names, t.Name+"\t"+t.Short)
				}
			}
			if parent, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, c := range parent.Commands() {
					if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), prefix) {
						names = append(names, c.Name()+"\t"+c.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if t := findTopic(args[0]); t != nil {
					_, err := fmt.Fprintln(cmd.OutOrStdout(), t.Long)
					return err
				}
			}
			found, rest, err := cmd.Root().Find(args)
			if err != nil || found == nil {
				found, rest = cmd.Root(), args
			}
			if len(rest) > 0 {
				return subcommandOnly(found, rest)
			}
			return found.Help()
		},
	}
}

// subcommandOnly refuses arguments of a command that only has subcommands.
func subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return didYouMean(cmd, args, usagef(cmd, "there is no command %q", cmd.CommandPath()+" "+args[0]))
}

// must panics for an error that only a mistake in the program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// endSignals are the signals that end a command. SIGHUP, which comes when a terminal is
// closed, is not among them if it is ignored, as under nohup.
func endSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// verb makes a cobra handler whose context ends with SIGINT, SIGTERM or SIGHUP. A second
// signal ends the process.
func verb(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals()...)
		defer stop()
		context.AfterFunc(ctx, stop)
		err := run(ctx, args)
		stopped := ctx.Err() != nil && cmd.Context().Err() == nil && errors.Is(err, context.Canceled)
		if stopped || children.Interrupted(err) {
			return interruptedError{}
		}
		return err
	}
}

// someArgs is a cobra argument check for one thing at least.
func someArgs(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef(cmd, "%s is missing", name)
		}
		return nil
	}
}

// exactArgs is a cobra argument check whose message names what is missing.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef(cmd, "%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			return orSprite(cmd, args, usagef(cmd, "%q is one argument too many", args[len(names)]))
		}
		return nil
	}
}
