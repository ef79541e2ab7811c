package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

func newBackendCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backend",
		Short: "Use servers elsewhere for sprites and their jobs",
		Long: `A backend is another server of the Sprites protocol: another cove, or the hosted service. Name it
in your own file of settings (cove config show says where that is):

  [backends.far]
  url = "https://sprites.example.org"
  token_command = ["pass", "show", "sprites"]

With --backend far, COVE_BACKEND=far, or backend = "far" in that file, every command goes there.
The token is that of --token, SPRITES_TOKEN, token_file or token_command, or the one that the
service's own client keeps in ~/.sprites/sprites.json.

If the backend is a cove, its jobs are its own. Any other backend knows nothing of jobs, so this
machine's server looks after them. The first push gives it the token, which it keeps as it keeps
secrets. Such a backend has no connectors, so the agent's key goes into the sprite.`,
		Example: `  cove push plan.md --backend far
  cove backend put far
  cove backend list
  cove backend rm far`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBackendListCommand(inv), newBackendPutCommand(inv), asksFirst(inv, newBackendRmCommand(inv), eachLost("what this machine's server knows of the backend %s, with its token")))
	return cmd
}

func newBackendListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the backends that this machine's server has a token for",
		Long:    `Lists the backends whose jobs this machine's server looks after.`,
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
					inv.tell(w, "No backends yet: the first push to one adds it. See: cove backend --help")
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

func newBackendPutCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put NAME [URL]",
		Short: "Give this machine's server a backend, or another token for one",
		Long: `Gives this machine's server a backend, or another token for one that it knows. It reads the token
from standard input, or asks for it on a terminal. If nothing comes, it takes SPRITES_TOKEN.
Without URL, it takes the URL from your file of settings, or else the one that the server knows.

Then the server asks the backend for its sprites (10 seconds at most). If the backend refuses the
token or does not answer, the command says so; the server keeps the token nevertheless.

A push to the backend gives the server the token that the push itself uses (cove help backend).`,
		Example: `  cove backend put far
  pass show sprites | cove backend put far https://sprites.example.org`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the backend's name is missing")
			}
			return maxArgs(2)(cmd, args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeBackend(cmd, nil, "")
		},
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		c, err := inv.server.ownClient(ctx, "")
		if err != nil {
			return err
		}
		req := cove.BackendRequest{}
		if len(args) > 1 {
			req.URL = args[1]
		} else if req.URL, err = knownBackend(ctx, c, args[0]); err != nil {
			return err
		}
		token, err := readSecret(ctx, inv, "the token of "+args[0], "such as: cove backend put "+args[0]+" < FILE; or set SPRITES_TOKEN")
		if given := givenToken(); given != "" && errors.Is(err, errNoValue) {
			token, err = given, nil
		}
		if err != nil {
			return err
		}
		req.Token = strings.TrimSpace(token)
		if err := c.PutBackend(ctx, args[0], req); err != nil {
			return err
		}
		doc := map[string]string{"backend": args[0], "url": req.URL}
		problem := tryBackend(ctx, c, args[0])
		if ctx.Err() != nil {
			return problem
		}
		if problem != nil {
			f := classify(problem)
			doc["problem"] = withHint(f.message, f.hint)
		}
		return inv.show(doc, func(io.Writer) {
			if problem != nil {
				inv.say("cove: this machine's server has the token now, but can't use it: %s", inv.hints.full(doc["problem"]))
				return
			}
			inv.say("This machine's server has a token for the backend %s at %s, which accepts it. Test all of it: cove test --backend %s --quick", args[0], req.URL, args[0])
		})
	})
	return cmd
}

// backendTry bounds the check whether a backend accepts a token.
const backendTry = 10 * time.Second

// tryBackend makes the server ask a backend for a page of its sprites, with its token for it.
func tryBackend(ctx context.Context, c *cove.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, backendTry)
	defer cancel()
	_, err := c.At(name).List(ctx, sprites.ListOptions{MaxResults: 1})
	if errors.Is(err, sprites.ErrForbidden) { // a token may do without the verb for it
		return nil
	}
	return err
}

// knownBackend is the URL of a backend, by the person's file of settings or by the server.
func knownBackend(ctx context.Context, c *cove.Client, name string) (string, error) {
	set, err := backends()
	if err != nil {
		return "", err
	}
	if b, ok := set.Backends[name]; ok {
		return b.URL, nil
	}
	list, err := c.Backends(ctx)
	if err != nil {
		return "", err
	}
	for _, b := range list {
		if b.Name == name {
			return b.URL, nil
		}
	}
	return "", fail.Newf("no_backend", "say where it is: cove backend put "+printable.Word(name)+" URL", "neither your file of settings nor this machine's server knows the backend %q", name)
}

func newBackendRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Make this machine's server forget a backend and its token",
		Long: `Makes this machine's server forget a backend and the token for it. The server refuses if jobs
there have not ended, or have work that nobody has pulled.`,
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
