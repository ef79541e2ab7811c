// Command cove-runsc is gVisor's runsc, pinned by this module's go.mod, so that
// a cove installation needs no other sandbox runtime on the machine.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
