// Command cove gives coding agents computers of their own. It is the command
// line, the server (serve) and the process that looks after a sandbox (shim).
package main

import (
	"context"
	"os"

	"github.com/cove-dev/cove/internal/cli"
)

func main() {
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(cli.Main(context.Background(), os.Args[1:], streams, newServeCommand(), newShimCommand(), newHoldCommand(), newCheckStoreCommand()))
}
