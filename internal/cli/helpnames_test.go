package cli

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelpNamesCommands: a command that a help text or a topic names in parentheses is there.
func TestHelpNamesCommands(t *testing.T) {
	root := newRootCommand(newInvocation(Streams{}))
	named, checked := regexp.MustCompile(`\((?:see )?cove\s+([a-z]+)(?:\s+([a-z-]+))?`), 0
	check := func(where, text string) {
		for _, words := range named.FindAllStringSubmatch(text, -1) {
			checked++
			cmd := subcommand(root, words[1])
			if cmd == nil && words[1] != "help" && words[1] != "serve" { // which cmd/cove adds
				t.Errorf("%s names cove %s, which is no command", where, words[1])
			} else if cmd != nil && cmd.HasSubCommands() && words[2] != "" && words[2][0] != '-' && subcommand(cmd, words[2]) == nil {
				t.Errorf("%s names cove %s %s, which is no command", where, words[1], words[2])
			}
		}
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		check(cmd.CommandPath(), cmd.Long)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	for _, topic := range topics {
		check("the topic "+topic.Name, topic.Long)
	}
	if checked < 20 {
		t.Errorf("only %d were found", checked)
	}
}
