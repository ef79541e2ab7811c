// Command cove-runsc is gVisor's runsc, pinned by this module's go.mod, so that
// a cove installation needs no other sandbox runtime on the machine. It has one
// command more, move, and saves the content of deleted files in one piece.
package main

import (
	"os"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

func main() {
	if verb() == moveVerb {
		cli.Run(nil, map[util.SubCommand]string{new(move): ""}, nil)
		return
	}
	if verb() == "boot" { // the sandbox's process
		saveDeletedWhole()
	}
	maincli.Main()
}

// verb is the first argument that is no flag: a flag's value stands behind its =.
func verb() string {
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}
