package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// otherNames are words that people type for commands with another name, or below another
// command. NAME and JOB stand for the word that they typed after it.
var otherNames = map[string]string{
	"logs": "cove job logs JOB; of a service: cove service logs SERVICE", "log": "cove job logs JOB",
	"ps": "cove list; in a sprite: cove exec -s NAME ps aux", "jobs": "cove job list", "services": "cove service list",
	"ssh": "cove console NAME", "shell": "cove console NAME", "attach": "cove session attach ID",
	"delete": "cove rm NAME", "destroy": "cove rm NAME", "remove": "cove rm NAME",
	"new": "cove create NAME", "start": "cove wake NAME; the server: cove server start",
	"stop":   "cove suspend NAME; a job: cove job stop JOB; the server: cove server stop",
	"up":     "cove create NAME, or cove wake NAME; the server: cove server start",
	"down":   "cove suspend NAME; the server: cove server stop",
	"kill":   "a command: cove session kill ID; a job: cove job stop JOB; all that runs in a sprite: cove restart NAME; the sprite: cove rm NAME",
	"reboot": "cove restart NAME", "status": "cove list; one sprite: cove info NAME; the server: cove server status",
	"wait": "cove job wait JOB", "diff": "cove job diff JOB", "init": "cove create NAME",
	"login": "cove token create NAME --all, on the server's machine; then COVE_URL and COVE_TOKEN here",
}

// verbs are rows of words that programs like this one use for the same action. If a command
// has subcommands for several words of a row, the first one is suggested.
var verbs = [][]string{
	{"put", "set", "create", "add", "new", "make", "save", "store"},
	{"rm", "delete", "del", "remove", "destroy", "revoke", "forget", "unset"},
	{"list", "ls", "all"},
	{"show", "info", "get", "describe", "inspect", "view"},
	{"edit", "change", "modify", "update"},
}

// sameVerb is the subcommand that does what the typed word means; empty: there is none.
func sameVerb(cmd *cobra.Command, typed string) string {
	if !cmd.HasParent() {
		return "" // otherNames has these
	}
	for _, words := range verbs {
		if !slices.Contains(words, typed) {
			continue
		}
		for _, word := range words {
			if sub := subcommand(cmd, word); sub != nil && sub.IsAvailableCommand() {
				return sub.Name()
			}
		}
	}
	return ""
}

// didYouMean adds a suggestion to an error about a command that does not exist. args are the
// word that was typed in its place, and those after it.
func didYouMean(cmd *cobra.Command, args []string, err error) error {
	typed := args[0]
	if known := otherNames[typed]; known != "" && !cmd.HasParent() {
		if len(args) > 1 && jobPattern().MatchString(args[1]) {
			known = strings.ReplaceAll(known, "JOB", args[1])
		} else if len(args) > 1 && checkName(args[1]) == nil && typed != "login" {
			known = strings.ReplaceAll(known, "NAME", args[1])
		}
		return hinted(err, known)
	}
	if same := sameVerb(cmd, typed); same != "" {
		return hinted(err, "did you mean "+cmd.CommandPath()+" "+same+"?")
	}
	cmd.SuggestionsMinimumDistance = 1 // letters that differ
	if len(typed) > 3 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if near := cmd.SuggestionsFor(typed); len(near) > 0 {
		return hinted(err, "did you mean "+cmd.CommandPath()+" "+strings.Join(near, ", or "+cmd.CommandPath()+" ")+"?")
	}
	return err
}

// nearFlags are a command's flags whose names are like the typed one, with their dashes.
func nearFlags(cmd *cobra.Command, typed string) (near []string) {
	if len(typed) < 2 {
		return nil
	}
	names := &cobra.Command{SuggestionsMinimumDistance: 1}
	if len(typed) > 3 {
		names.SuggestionsMinimumDistance = 2
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	for _, name := range names.SuggestionsFor(typed) {
		near = append(near, dashed(name))
	}
	return near
}

// meantSprite is the exec command that takes the first word for the sprite's name; empty:
// there is no sprite of that name.
func meantSprite(ctx context.Context, c *cove.Client, args []string) string {
	if checkName(args[0]) != nil {
		return ""
	}
	list, err := c.List(ctx, sprites.ListOptions{Prefix: args[0], MaxResults: sprites.MaxPage})
	if err != nil || !slices.ContainsFunc(list.Sprites, func(i sprites.Info) bool { return i.Name == args[0] }) {
		return ""
	}
	rest := args[1:]
	if len(rest) == 0 {
		rest = []string{"CMD"}
	}
	return "cove exec -s " + args[0] + " " + quotedAll(rest)
}

// quotedAll quotes words for a shell.
func quotedAll(words []string) string {
	var all []string
	for _, word := range words {
		all = append(all, printable.Word(word))
	}
	return strings.Join(all, " ")
}

// checkpointID is a checkpoint's id as the server makes it.
var checkpointID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v[0-9]+(\.[0-9]+)?$`) })

// orSprite adds a hint to an error about too many arguments: one of them may be meant as the
// sprite. It takes the first one; if that is a checkpoint's id, the last.
func orSprite(cmd *cobra.Command, args []string, err error) error {
	name, rest := args[0], args[1:]
	if last := len(args) - 1; checkpointID().MatchString(name) && !checkpointID().MatchString(args[last]) {
		name, rest = args[last], args[:last]
	}
	if use := usesSprite(cmd); use != byFlag || cmd.Flags().Changed("sprite") || checkName(name) != nil {
		return err
	}
	return hinted(err, "a sprite is named by -s: "+cmd.CommandPath()+" -s "+name+" "+quotedAll(rest))
}
