package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim"
)

// newShimCommand is the process that looks after one sandbox. The server starts
// it, with its configuration on standard input and a pipe for its answer as file
// descriptor 3.
func newShimCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "shim",
		Short:  "Look after one sandbox (started by the server)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The sandbox must not inherit the pipe: the server waits for its
			// end.
			unix.CloseOnExec(3)
			if err := private.Process(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
			defer stop()
			return shim.Main(ctx, os.Stdin, os.NewFile(3, "ready"))
		},
	}
}
