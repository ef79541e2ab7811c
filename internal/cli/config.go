package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/printable"
)

func newConfigCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and check the settings: the defaults of flags",
		Long: `Settings are the defaults of flags. They are in two TOML files:

  - .cove/config.toml at the top of a repository's work tree
  - your own, $XDG_CONFIG_HOME/cove/config.toml or ~/.config/cove/config.toml. COVE_CONFIG names
    another one

The first of these that has a value counts: the flag, the environment (COVE_AGENT and so on),
the repository's file, your own, the built-in default. cove help settings lists all settings.

A repository may come from a stranger, so its file can't give some settings: cove help settings
says which. An error in a file stops the commands that would have used it.`,
		Example: `  cove config show
  cove config check --json`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigShowCommand(inv), newConfigCheckCommand(inv))
	return cmd
}

// keyTable is the list of settings for the help.
func keyTable() string {
	var b strings.Builder
	for _, key := range config.Keys() {
		fmt.Fprintf(&b, "  %-15s %s", key, config.Usage(key))
		if f := flagOf[key]; f != "" && f != string(key) {
			fmt.Fprintf(&b, " (--%s)", f)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// settingJSON is a setting as config show prints it with --json.
type settingJSON struct {
	Key   string   `json:"key"`
	Value string   `json:"value"`
	List  []string `json:"list,omitempty"` // of one that is a list, instead of value
	From  string   `json:"from"`
	File  string   `json:"file,omitempty"`
	Line  int      `json:"line,omitempty"`
	Note  string   `json:"note,omitempty"`
}

type configFileJSON struct {
	From   string `json:"from"`
	File   string `json:"file"`
	Exists bool   `json:"exists"`
}

type backendJSON struct {
	Name  string `json:"name"`
	URL   string `json:"url"`
	Token string `json:"token"` // where it is from: file, command or none
}

func newConfigShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "show",
		Short:   "Show each setting, and where it is from",
		Long:    `Shows the settings that are in force here, where each is from, and the files.`,
		Example: `  cove config show`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			s, _, err := loadSettings(ctx)
			if err != nil {
				return err
			}
			return showConfig(inv, s)
		}),
	}
}

func showConfig(inv *invocation, s *config.Settings) error {
	doc := struct {
		Settings []settingJSON    `json:"settings"`
		Backends []backendJSON    `json:"backends"`
		Trees    []config.Tree    `json:"pull_sync"`
		Files    []configFileJSON `json:"files"`
	}{Backends: []backendJSON{}, Trees: append([]config.Tree{}, s.AllTrees...)}
	for _, key := range config.Keys() {
		v := s.Value(key)
		doc.Settings = append(doc.Settings, settingJSON{string(key), v.Text, v.List, string(v.From), v.File, v.Line, v.Note})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Backends)) {
		b := s.Backends[name]
		token := "none"
		if b.TokenFile != "" {
			token = "file " + b.TokenFile
		} else if len(b.TokenCommand) > 0 {
			token = "command " + b.TokenCommand[0]
		}
		doc.Backends = append(doc.Backends, backendJSON{name, b.URL, token})
	}
	for _, f := range s.Files {
		doc.Files = append(doc.Files, configFileJSON{string(f.Source), f.Name, f.Exists})
	}
	return inv.show(doc, func(w io.Writer) {
		rows := [][]string{{"KEY", "VALUE", "FROM"}}
		for _, v := range doc.Settings {
			from := v.From
			if v.File != "" {
				from = fmt.Sprintf("%s, %s:%d", v.From, v.File, v.Line)
			} else if v.From == string(config.FromEnvironment) {
				from += ", " + config.Variable(config.Key(v.Key))
			}
			rows = append(rows, []string{v.Key, cmp.Or(strings.Join(v.List, ", "), v.Value, "-"), from})
		}
		table(w, rows)
		for _, v := range doc.Settings {
			if v.Note != "" {
				fmt.Fprintln(w, printable.Line(v.Note))
			}
		}
		for _, b := range doc.Backends {
			fmt.Fprintf(w, "backend %s: %s, token: %s\n", b.Name, printable.Line(b.URL), printable.Line(b.Token))
		}
		for _, t := range doc.Trees {
			fmt.Fprintln(w, printable.Line("pull.sync "+treeText(t)))
		}
		for _, f := range doc.Files {
			there := ""
			if !f.Exists {
				there = " (there is none)"
			}
			fmt.Fprintf(w, "%s file: %s%s\n", f.From, printable.Line(f.File), there)
		}
	})
}

// treeText describes a folder that is pulled besides the commits.
func treeText(t config.Tree) string {
	text := fmt.Sprintf("%s to %s", t.From, t.To)
	for _, list := range []struct {
		name     string
		patterns []string
	}{{"include", t.Include}, {"exclude", t.Exclude}} {
		if len(list.patterns) > 0 {
			text += ", " + list.name + " " + strings.Join(list.patterns, " ")
		}
	}
	if t.Repository != "" {
		text += ", in " + t.Repository
	}
	return fmt.Sprintf("%s: %s, %s:%d", text, config.FromPersonal, t.File, t.Line)
}

func newConfigCheckCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the files of settings for mistakes",
		Long: `Checks the files of settings and of environments, and the setup script. For each mistake it
prints the file, the line, the key, and what was probably meant. Then the exit code is 1.`,
		Example: `  cove config check`,
		Args:    exactArgs(),
		RunE:    verb(func(ctx context.Context, _ []string) error { return checkConfig(ctx, inv) }),
	}
}

func checkConfig(ctx context.Context, inv *invocation) error {
	p, err := findPlaces(ctx)
	if err != nil {
		return err
	}
	doc := struct {
		OK       bool            `json:"ok"`
		Problems config.Problems `json:"problems"`
	}{Problems: config.Problems{}}
	add := func(err error) error {
		if problems, ok := errors.AsType[config.Problems](err); ok {
			doc.Problems = append(doc.Problems, problems...)
			return nil
		}
		return err
	}
	s, err := config.Load(p)
	if err := add(err); err != nil {
		return err
	}
	if s != nil {
		_, err := p.Script(s.Value(config.SetupScript))
		if err := add(err); err != nil {
			return err
		}
	}
	doc.Problems = append(doc.Problems, p.CheckEnvFiles()...)
	doc.OK = len(doc.Problems) == 0
	err = inv.show(doc, func(w io.Writer) {
		for _, problem := range doc.Problems {
			fmt.Fprintln(w, printable.Line(problem.Error()))
			if problem.Hint != "" {
				inv.tell(w, "  hint: %s", printable.Line(problem.Hint))
			}
		}
		if doc.OK && !inv.global.quiet {
			fmt.Fprintln(w, "Nothing is wrong.")
		}
	})
	if err == nil && !doc.OK {
		return reportedError{exitFailed}
	}
	return err
}
