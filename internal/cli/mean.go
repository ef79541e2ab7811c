package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/gitwork"
	"github.com/cove-dev/cove/sprites"
)

// otherNames are what people type for commands that are called otherwise, or are below
// another one.
var otherNames = map[string]string{
	"logs": "cove job logs JOB; of a service: cove service logs NAME", "log": "cove job logs JOB",
	"ps": "cove list; in a sprite: cove exec -s NAME ps aux", "jobs": "cove job list", "services": "cove service list",
	"ssh": "cove console NAME", "shell": "cove console NAME", "attach": "cove session attach ID",
	"delete": "cove rm NAME", "destroy": "cove rm NAME", "remove": "cove rm NAME",
	"new": "cove create NAME", "stop": "cove suspend NAME; of a job: cove job stop JOB", "start": "cove wake NAME",
	"wait": "cove job wait JOB", "diff": "cove job diff JOB", "init": "cove create NAME", "login": "cove token create, on the server's machine; then COVE_URL and COVE_TOKEN here",
}

// didYouMean adds to an error about a command that is not there what may be meant.
func didYouMean(cmd *cobra.Command, typed string, err error) error {
	if known := otherNames[typed]; known != "" && !cmd.HasParent() {
		return hinted(err, known)
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

// meantSprite is what exec's command would be if its first word were the sprite's name;
// empty: it is none.
func meantSprite(ctx context.Context, c *sprites.Client, args []string) string {
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
	words := []string{"cove exec -s", args[0]}
	for _, word := range rest {
		words = append(words, gitwork.Quote(word))
	}
	return strings.Join(words, " ")
}

// orSprite adds to an error about an argument too many that the first one may be meant
// to be the sprite.
func orSprite(cmd *cobra.Command, args []string, err error) error {
	if use := usesSprite(cmd); use != byFlag || cmd.Flags().Changed("sprite") || checkName(args[0]) != nil {
		return err
	}
	words := []string{cmd.CommandPath(), "-s", args[0]}
	for _, word := range args[1:] {
		words = append(words, gitwork.Quote(word))
	}
	return hinted(err, "a sprite is named by -s: "+strings.Join(words, " "))
}
