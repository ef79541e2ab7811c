package cli

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// untested are the flags that no test needs to cover, and why.
var untested = map[string]string{}

// sameFlags are commands that share their flags with another command, by the same code.
var sameFlags = map[string]string{"run": "push", "job rebase": "job merge", "job cherry-pick": "job merge", "service start": "service put", "service restart": "service put"}

// TestEveryFlagIsTested checks that tests call each command with each of its flags. Both
// must be in one line of a script, or in one function of a Go test. A reader must see
// whether that test then checks what the flag does.
func TestEveryFlagIsTested(t *testing.T) {
	inv := newInvocation(Streams{})
	var known tests
	known.lines, known.functions = callsInTests(t)
	root := newRootCommand(inv)
	names := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		flags := c.LocalNonPersistentFlags()
		if c == root {
			flags = c.PersistentFlags()
		}
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			name := strings.TrimPrefix(c.CommandPath(), "cove ") + " --" + f.Name
			names[name] = true
			_, excused := untested[name]
			tested := known.have(strings.TrimPrefix(c.CommandPath(), "cove"), f)
			if other, ok := sameFlags[strings.TrimPrefix(c.CommandPath(), "cove ")]; ok {
				tested = tested || known.have(" "+other, f)
			}
			if !tested && !excused {
				t.Errorf("no test has cove %s", name)
			}
			if tested && excused {
				t.Errorf("%s is tested: take it from the list", name)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	for name := range untested {
		if !names[name] {
			t.Errorf("%s is no flag", name)
		}
	}
	if len(names) < 100 {
		t.Errorf("there are only %d flags", len(names))
	}
}

// callsInTests returns the words of all tests that run commands. An item is a line of a
// script, or a function in Go. A space is before and after each word.
func callsInTests(t *testing.T) (lines, functions []string) {
	t.Helper()
	for _, pattern := range []string{"*_test.go", "../test/e2e/*.go", "../e2e/*/*_test.go", "../e2e/scripts/testdata/*.txtar", "../../scripts/demo.sh"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			if file == "flags_test.go" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, ".go") {
				for line := range strings.Lines(string(text)) {
					lines = append(lines, asWords(line))
				}
				continue
			}
			for function := range strings.SplitSeq(string(text), "\nfunc ") {
				functions = append(functions, asWords(goMarks.ReplaceAllString(function, " ")))
			}
		}
	}
	return lines, functions
}

var goMarks = regexp.MustCompile("[\"`.,(){}\\[\\]]+")

func asWords(text string) string {
	return " " + strings.Join(strings.Fields(strings.NewReplacer("=", " = ", "|", " ").Replace(text)), " ") + " "
}

// tests are what callsInTests returns.
type tests struct{ lines, functions []string }

// have reports whether a line of a script has the command and then the flag, or a
// function has both in any order.
func (k tests) have(command string, f *pflag.Flag) bool {
	flags := []string{" --" + f.Name + " "}
	if f.Shorthand != "" {
		flags = append(flags, " -"+f.Shorthand+" ")
	}
	for _, flag := range flags {
		for _, line := range k.lines {
			if _, after, ok := strings.Cut(line, command+" "); ok && strings.Contains(" "+after, flag) {
				return true
			}
		}
		for _, function := range k.functions {
			if strings.Contains(function, flag) && (strings.Contains(function, command+" ") || strings.Contains(function, " "+path.Base(strings.ReplaceAll(command, " ", "/"))+" ")) {
				return true
			}
		}
	}
	return false
}
