package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/cli"
	"github.com/cove-dev/cove/internal/userns"
)

const holdVerb = "hold"

// newHoldCommand is the process that keeps an ordinary user's namespace while a
// server or one of its sandboxes needs it.
func newHoldCommand() *cobra.Command {
	return &cobra.Command{
		Use:    holdVerb,
		Short:  "Hold the server's user namespace (started by the server)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := cmd.Flags().GetString("data")
			if err != nil {
				return err
			}
			userns.Hold(func() bool { return inUse(dir) })
			return nil
		},
	}
}

// inUse reports whether a server or a shim of a data folder runs.
func inUse(data string) bool {
	if cli.Locked(filepath.Join(data, "lock")) {
		return true
	}
	runs, err := os.ReadDir(filepath.Join(data, "run"))
	if err != nil {
		return !os.IsNotExist(err) // not known: wait
	}
	for _, run := range runs {
		if cli.Locked(filepath.Join(data, "run", run.Name(), "shim.lock")) {
			return true
		}
	}
	return false
}
