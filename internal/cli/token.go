package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

var tokenVerbs = []string{cove.VerbRead, cove.VerbWrite, cove.VerbExec, cove.VerbAdmin}

func newTokenCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, list and remove the server's tokens",
		Long: `A token lets its holder use the server. It can be limited to some sprites, to some verbs, and in
time. The server keeps only a hash of it.`,
		Example: `  cove token create ci --prefix ci- --verbs read,write,exec --expires 24h
  cove token list
  cove token rm 4f1c`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenCreateCommand(inv), newTokenListCommand(inv), asksFirst(inv, newTokenRmCommand(inv), eachLost("the token %s; whoever has it is refused from then on")))
	return cmd
}

type tokenOptions struct {
	all     bool
	prefix  string
	profile string
	verbs   []string
	expires time.Duration
}

func newTokenCreateCommand(inv *invocation) *cobra.Command {
	var o tokenOptions
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a token",
		Long: `Makes a token and prints it, this once only. Say which sprites it reaches:

  --all          all sprites
  --prefix       those whose names begin so
  -s             one sprite
  --profile      those of its own jobs: it may only push by this profile, with its agent,
                 and work in the sprites of these jobs

--verbs says what it may do. No verb includes another:

  read           look at sprites, files and jobs
  write          change them
  exec           run commands and open connections; with write: begin jobs
  admin          the server itself, and all that it keeps for everybody: tokens, secrets,
                 connectors, webhooks, profiles, backends, images; and jobs that get such things`,
		Example: `  cove token create laptop --all
  cove token create ci --prefix ci- --verbs read,write,exec --expires 24h
  cove token create viewer -s paint --verbs read
  cove token create robot --profile nightly`,
		Args: exactArgs("a name for it"),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		req, err := o.request(cmd, args[0], inv.global.sprite)
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		token, err := c.CreateToken(ctx, req)
		if err != nil {
			return err
		}
		if !inv.global.quiet {
			inv.say("Token %s (%s). It is shown this once only.", token.Name, token.ID)
		}
		if err := inv.show(token, func(w io.Writer) { fmt.Fprintln(w, printable.Line(token.Secret)) }); err != nil {
			return err
		}
		if lost := lostOutput(inv.Out); lost != nil {
			return outputError(fmt.Sprintf("the token %s (%s) was made, and could not be shown", token.Name, token.ID), lost, "nobody has it; delete it: cove token rm "+token.ID)
		}
		return nil
	})
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "for all sprites")
	f.StringVar(&o.prefix, "prefix", "", "for the sprites whose names begin so")
	f.StringVar(&o.profile, "profile", "", "for pushes by this profile, and for their jobs and sprites")
	must(cmd.RegisterFlagCompletionFunc("profile", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return profileNames(inv, cmd, prefix)
	}))
	f.StringSliceVar(&o.verbs, "verbs", []string{cove.VerbRead, cove.VerbWrite, cove.VerbExec}, "what it allows: "+strings.Join(tokenVerbs, ", "))
	f.DurationVar(&o.expires, "expires", 0, "it expires after so long (default: never)")
	return cmd
}

func (o *tokenOptions) request(cmd *cobra.Command, name, sprite string) (cove.TokenRequest, error) {
	scopes := 0
	for _, given := range []bool{o.all, o.prefix != "", sprite != "", o.profile != ""} {
		if given {
			scopes++
		}
	}
	switch {
	case strings.TrimSpace(name) == "":
		return cove.TokenRequest{}, usagef(cmd, "the token needs a name")
	case scopes != 1:
		return cove.TokenRequest{}, usagef(cmd, "say which sprites it is for, by one of --all, --prefix, -s and --profile")
	case o.expires < 0 || o.expires > 0 && o.expires < time.Second:
		return cove.TokenRequest{}, usagef(cmd, "--expires %v: must be at least a second", o.expires)
	case len(o.verbs) == 0:
		return cove.TokenRequest{}, usagef(cmd, "--verbs: at least one of %s", strings.Join(tokenVerbs, ", "))
	}
	for _, v := range o.verbs {
		if !slices.Contains(tokenVerbs, v) {
			return cove.TokenRequest{}, usagef(cmd, "--verbs: %q is not one of %s", v, strings.Join(tokenVerbs, ", "))
		}
	}
	if o.profile != "" && !profilePattern().MatchString(o.profile) {
		return cove.TokenRequest{}, usagef(cmd, "--profile %q can't be the name of a profile", o.profile)
	}
	if sprite != "" {
		if err := checkName(sprite); err != nil {
			return cove.TokenRequest{}, err
		}
	}
	return cove.TokenRequest{
		Name:       name,
		Scope:      cove.TokenScope{All: o.all, Prefix: o.prefix, Sprite: sprite, Profile: o.profile},
		Verbs:      o.verbs,
		TTLSeconds: int64(o.expires / time.Second),
	}, nil
}

func newTokenListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the tokens",
		Long:    `Lists the tokens: their names and what they allow, never the tokens themselves.`,
		Example: `  cove token list`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := c.ListTokens(ctx)
			if err != nil {
				return err
			}
			if list == nil {
				list = []cove.Token{}
			}
			return inv.show(cove.TokenList{Tokens: list}, func(w io.Writer) { printTokens(w, list, time.Now()) })
		}),
	}
}

func printTokens(w io.Writer, list []cove.Token, now time.Time) {
	rows := [][]string{{"ID", "NAME", "FOR", "VERBS", "CREATED", "EXPIRES"}}
	for _, t := range list {
		scope := "all"
		switch {
		case t.Scope.Sprite != "":
			scope = t.Scope.Sprite
		case t.Scope.Prefix != "":
			scope = t.Scope.Prefix + "*"
		case t.Scope.Profile != "":
			scope = "profile " + printable.Line(t.Scope.Profile)
		}
		expires := "never"
		if t.ExpiresAt != nil {
			if expires = "in " + span(t.ExpiresAt.Sub(now)); t.ExpiresAt.Before(now) {
				expires = "expired"
			}
		}
		rows = append(rows, []string{t.ID, t.Name, scope, strings.Join(t.Verbs, ","), ago(t.CreatedAt, now), expires})
	}
	table(w, rows)
}

func newTokenRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID|NAME...",
		Short: "Remove tokens",
		Long:  `Removes tokens: they stop working at once. A name is enough if only one token has it.`,
		Example: `  cove token rm 4f1c
  cove token rm ci`,
		Args: someArgs("the token's id"),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := c.ListTokens(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(arg string) error {
				id, err := findToken(list, arg)
				if err == nil {
					err = c.DeleteToken(ctx, id)
				}
				return err
			})
		}),
	}
}

// findToken returns the id of the token that has it, or alone has the name.
func findToken(list []cove.Token, arg string) (string, error) {
	var ids []string
	for _, t := range list {
		if t.ID == arg {
			return arg, nil
		}
		if t.Name == arg {
			ids = append(ids, t.ID)
		}
	}
	const hint = "see which there are: cove token list"
	switch len(ids) {
	case 0:
		return "", fail.Newf("not_found", hint, "there is no token %q", arg)
	case 1:
		return ids[0], nil
	}
	return "", fail.Newf("ambiguous", hint, "%d tokens are named %s: %s", len(ids), arg, strings.Join(ids, ", "))
}
