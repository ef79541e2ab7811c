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
		Short: "See the environment that sprites are given",
		Long: `A job's agent, and a sprite that cove setup prepares, get variables from two files:
.cove/sandbox.env at the top of the repository's work tree, and your own
sandboxes/NAME.env beside your file of settings (cove config show says where that is), NAME
being the sprite's name, or job for the sprites that jobs have made for them. Yours stand
above the repository's; an empty value takes a variable away; --env stands above both.
GITHUB_TOKEN is there as GH_TOKEN, too, unless that is in a file itself.

A file has a NAME=VALUE on each line, with or without export in front; # begins a remark.
In 'single quotes' all is as it stands, in "double quotes" \n, \r, \t, \" and \\ mean what
they usually do, and either may go over several lines. Nothing is expanded: $ is a $.

All of it is inside the sprite. For the keys of APIs, connectors do without that. In
your own files {secret:NAME} stands for a secret (cove help secret), for jobs: it is in the
sprite from then on, and the server keeps the reference alone.`,
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
		Long: `Shows which variables the files give a sprite, and which file each is from; without a
name, those for the sprites of jobs. No value is shown, also with --json: only its length.`,
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
			fmt.Fprintf(w, "No variables. They stand in %s/sandbox.env, or your own %s\n", config.Dir, printable.Line(p.PersonalEnv(sprite)))
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
