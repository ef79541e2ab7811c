package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newEnvCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "See the variables that sprites get",
		Long: `A job's agent, and a sprite that cove setup prepares, get variables from two files:
  - .cove/sandbox.env at the top of the repository's work tree
  - your own sandboxes/NAME.env beside your file of settings (see cove config show). NAME is the
    sprite's name, or job for sprites that are made for jobs

Yours override the repository's, and --env overrides both. An empty value removes a variable.
GITHUB_TOKEN is also set as GH_TOKEN, unless a file has that itself.

Each line is NAME=VALUE, with or without export before it; # begins a comment. 'Single quotes'
keep all as it is. In "double quotes", \n, \r, \t, \" and \\ have their usual meaning. Quoted
values may have several lines. Nothing is expanded: $ is a $.

All values are inside the sprite; connectors keep the keys of APIs outside. For jobs,
{secret:NAME} in your own files stands for a secret (cove help secret). Its value is in the
sprite from then on, and the server keeps only the reference.`,
		Example: `  cove env show paint`,
		Args:    subcommandOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEnvShowCommand(inv))
	return cmd
}

// envJSON is a variable as env show prints it with --json.
type envJSON struct {
	Name   string `json:"name"`
	Length int    `json:"length"` // of the value, in bytes
	From   string `json:"from"`
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"` // none: it mirrors another one
	Hint   string `json:"hint,omitempty"`
}

func newEnvShowCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show the variables that a sprite is given, without their values",
		Long: `Shows which variables the files give a sprite, and which file each is from. Without NAME, it
shows those for the sprites of jobs. It shows no value, also with --json, only its length.`,
		Example: `  cove env show
  cove env show paint --json`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.namedOr(cmd, args, config.JobEnv)
		if err != nil {
			return err
		}
		p, err := findPlaces(ctx)
		if err != nil {
			return err
		}
		vars, err := p.Environment(name)
		if err != nil {
			return configError(err)
		}
		return showEnv(inv, name, p, vars)
	})
	return cmd
}

func showEnv(inv *invocation, sprite string, p config.Places, vars []config.EnvVar) error {
	doc := struct {
		Sprite    string    `json:"sprite"`
		Variables []envJSON `json:"variables"`
	}{sprite, []envJSON{}}
	for _, v := range vars {
		doc.Variables = append(doc.Variables, envJSON{v.Name, len(v.Value), string(v.From), v.File, v.Line, keyHint(v)})
	}
	return inv.show(doc, func(w io.Writer) {
		if len(vars) == 0 {
			fmt.Fprintf(w, "No variables. Put them into %s/sandbox.env, or your own %s\n", config.Dir, printable.Line(p.PersonalEnv(sprite)))
			return
		}
		rows := [][]string{{"NAME", "VALUE", "FROM"}}
		for _, v := range doc.Variables {
			at := v.File
			if v.Line > 0 {
				at = fmt.Sprintf("%s:%d", v.File, v.Line)
			}
			rows = append(rows, []string{v.Name, fmt.Sprintf("(%s)", printable.Count(v.Length, "byte")), v.From + ", " + at})
		}
		table(w, rows)
		for _, v := range doc.Variables {
			if v.Hint != "" {
				inv.tell(w, "%s", printable.Line(v.Hint))
			}
		}
	})
}

// namedOr is the sprite that an optional argument, or -s, names; otherwise it is
// fallback.
func (s *chosenSprite) namedOr(cmd *cobra.Command, args []string, fallback string) (string, error) {
	if err := s.nameOnce(cmd, args); err != nil {
		return "", err
	}
	name := cmp.Or(s.global.sprite, fallback)
	if name == "" {
		return "", nil
	}
	s.hints.about = s.global.sprite
	return name, checkName(name)
}
