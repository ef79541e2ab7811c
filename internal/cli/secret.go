package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

var secretPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

func newSecretCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Keep keys that never enter a sprite",
		Long: `A secret is a key or a token that the server keeps encrypted and never shows again. No sprite
sees it: a connector adds it to requests on their way out (see cove help connector). It is inside
only for a job that gets it as a variable: push --env NAME={secret:SECRET}.`,
		Example: `  cove secret set anthropic                  asks for the value
  gh auth token | cove secret set github
  cove secret list
  cove secret rm github`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSecretSetCommand(inv), newSecretListCommand(inv), asksFirst(inv, newSecretRmCommand(inv), eachLost("the value of the secret %s; connectors that need it serve nobody then")))
	return cmd
}

// maxSecret is more than a server takes.
const maxSecret = 1 << 20

func newSecretSetCommand(inv *invocation) *cobra.Command {
	var fromLogin bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Store a secret",
		Long: `Stores a secret, in place of one of the same name. Sprites that use it get the new value at once.
The value is read from standard input, or asked for on a terminal. It is never an argument, which
others could see. It is one line, of 8 bytes to 64 KiB.

With --from-login, the value is the token of your login with an agent's own program on this
machine. The name is chatgpt, for codex. Jobs of codex then use your ChatGPT subscription,
through the connector chatgpt, and need no key. The refresh token stays with codex, and only
codex renews the login. cove push --agent codex passes the new token on.

Anthropic's terms do not allow that for a Claude login. A job of claude has its token inside
instead: by --env CLAUDE_CODE_OAUTH_TOKEN={secret:NAME}, or by the login that you have made in
its sprite (--login inside). docs/network.md has more.`,
		Example: `  cove secret set anthropic
  gh auth token | cove secret set github
  cove secret set ci < key.txt
  cove secret set chatgpt --from-login`,
		Args:              exactArgs("a name for it"),
		ValidArgsFunction: completeSecret(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if !secretPattern().MatchString(args[0]) {
			return usagef(cmd, "%q can't be the name of a secret: it has letters, digits, _ and -", args[0])
		}
		if fromLogin {
			return setFromLogin(ctx, inv, cmd, args[0])
		}
		value, err := readSecret(ctx, inv, args[0], "such as: cove secret set "+args[0]+" < FILE")
		if err == nil {
			err = notClaude(args[0], value)
		}
		if err != nil {
			return err // before a server is started for it
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		if err := c.SetSecret(ctx, args[0], value); err != nil {
			return err
		}
		return inv.show(map[string]string{"name": args[0]}, func(io.Writer) { inv.say("Secret %s is set.", args[0]) })
	})
	cmd.Flags().BoolVar(&fromLogin, "from-login", false, "store the token of your login with an agent's own program (NAME: chatgpt)")
	return cmd
}

var errNoValue = errors.New("there is no value")

// readSecret reads a value that a terminal does not show. The hint is for one that is empty.
func readSecret(ctx context.Context, inv *invocation, name, hint string) (string, error) {
	read := func() ([]byte, error) { return io.ReadAll(io.LimitReader(inv.In, maxSecret)) }
	if f, ok := inv.In.(*os.File); ok && isTerminal(f) {
		fmt.Fprintf(inv.Err, "Value of %s (not shown): ", name)
		read = func() ([]byte, error) { return readHidden(ctx, f, inv.Err) }
	}
	value, err := read()
	switch {
	case err != nil:
		return "", fmt.Errorf("read the value: %w", err)
	case len(bytes.TrimSpace(value)) == 0:
		return "", hinted(errNoValue, hint)
	case !utf8.Valid(value):
		return "", errors.New("the value is not text")
	}
	return string(value), nil
}

// readHidden reads a line that the terminal does not show. When ctx ends, the terminal is
// as it was before.
func readHidden(ctx context.Context, f *os.File, out io.Writer) ([]byte, error) {
	fd := int(f.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	defer fmt.Fprintln(out)
	type line struct {
		text []byte
		err  error
	}
	typed := make(chan line, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		typed <- line{text, err}
	}()
	select {
	case l := <-typed:
		return l.text, l.err
	case <-ctx.Done(): // the program ends, and its reading with it
		return nil, errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}

func newSecretListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the secrets",
		Long: `Lists the secrets: their names, when each was set, and until when tokens of logins are valid.
Values are never shown, except for the last four characters of those with 24 or more.`,
		Example: `  cove secret list`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := c.Secrets(ctx)
			if err != nil {
				return err
			}
			if list == nil {
				list = []cove.Secret{}
			}
			return inv.show(cove.SecretList{Secrets: list}, func(w io.Writer) {
				rows, now := [][]string{{"NAME", "ENDS", "CREATED", "SET", "LOGIN"}}, time.Now()
				for _, s := range list {
					rows = append(rows, []string{s.Name, s.Ends, ago(s.CreatedAt, now), ago(s.UpdatedAt, now), loginText(s, now)})
				}
				table(w, rows)
				for _, s := range list {
					if s.Login.Expired(now) {
						inv.say("The token of %s has expired: %s", s.Name, connect.LoginHint(s.Name, *s.Login))
					}
				}
			})
		}),
	}
}

func newSecretRmCommand(inv *invocation) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete secrets",
		Long: `Deletes secrets. Without --force, it keeps secrets that a connector adds, or that a job refers to
which has not ended. With --force, such a connector serves no sprite, and such a job can't begin,
until you set the secret again.`,
		Example: `  cove secret rm github
  cove secret rm --force ci`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the secret's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeSecret(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(name string) error {
				err := c.DeleteSecret(ctx, name, sprites.DeleteOptions{Force: force})
				if errors.Is(err, sprites.ErrNotFound) {
					return hinted(err, "see which there are: cove secret list")
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete secrets that a connector or a job needs")
	return cmd
}

func completeSecret(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := c.Secrets(ctx)
			return candidates(list, err, prefix, func(s cove.Secret) (string, string, bool) {
				return s.Name, "", secretPattern().MatchString(s.Name)
			})
		})
	}
}
