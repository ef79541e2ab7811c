package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli"
	"github.com/cove-dev/cove/internal/server/store"
)

// newCheckStoreCommand tells doctor why no server would start on a data folder because of
// its store.
func newCheckStoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:    cli.CheckStore + " DIR",
		Short:  "Say whether a server can start on a data folder's store (asked by cove doctor)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return store.Check(cmd.Context(), filepath.Join(args[0], "cove.db"))
		},
	}
}
