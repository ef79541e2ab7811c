package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func newBackendCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backend",
		Short: "The servers elsewhere whose sprites jobs work in",
		Long: `A backend is a server of the Sprites protocol elsewhere: another cove, or the hosted
service. Name it in your own file of settings (cove config show says where that is):

  [backends.far]
  url = "https://sprites.example.org"
  token_command = ["pass", "show", "sprites"]

With --backend far, COVE_BACKEND=far, or backend = "far" in that file, every command goes
there. The token is that of --token, SPRITES_TOKEN, token_file or token_command, or what the
service's own client keeps in ~/.sprites/sprites.json.

Where the backend is a cove, its jobs are its own. Any other knows nothing of jobs: then
this machine's server looks after them, for which the first push gives it the token. It
keeps that as it keeps secrets. Connectors are not there: the agent's key goes inside.`,
		Example: `  cove push plan.md --backend far
  cove backend list
  cove backend rm far`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBackendListCommand(inv), asksFirst(inv, newBackendRmCommand(inv), eachLost("what this machine's server knows of the backend %s, with its token")))
	return cmd
}

func newBackendListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the backends that this machine's server has a token to",
		Long:    `Lists the backends that this machine's server looks after jobs at.`,
		Example: `  cove backend list
  cove backend list --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.ownClient(ctx, "")
			if err != nil {
				return err
			}
			list, err := c.Backends(ctx)
			if err != nil {
				return err
			}
			return inv.show(cove.BackendList{Backends: list}, func(w io.Writer) {
				if len(list) == 0 {
					inv.tell(w, "None yet: the first push to one makes it known. See: cove backend --help")
					return
				}
				rows := [][]string{{"BACKEND", "URL", "CHANGED"}}
				for _, b := range list {
					rows = append(rows, []string{b.Name, b.URL, ago(b.UpdatedAt, time.Now())})
				}
				table(w, rows)
			})
		}),
	}
}

func newBackendRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Have this machine's server forget a backend and its token",
		Long: `Has this machine's server forget a backend and the token to it. It refuses while jobs there
have not ended, or have work that nobody has pulled.`,
		Example: `  cove backend rm far`,
		Args:    exactArgs("the backend's name"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeBackend(cmd, nil, "")
		},
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.ownClient(ctx, "")
			if err != nil {
				return err
			}
			if err := c.DeleteBackend(ctx, args[0]); err != nil {
				return err
			}
			return inv.show(struct {
				Removed string `json:"removed"`
			}{args[0]}, printTo(inv, "Forgot the backend %s.", args[0]))
		}),
	}
}
