package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/userns"
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
	if datafolder.Locked(filepath.Join(data, "lock")) {
		return true
	}
	runs, err := os.ReadDir(filepath.Join(data, "run"))
	if err != nil {
		return !os.IsNotExist(err) // not known: wait
	}
	for _, run := range runs {
		if datafolder.Locked(filepath.Join(data, "run", run.Name(), "shim.lock")) {
			return true
		}
	}
	return false
}

// leftIn lists the server, shims and sandboxes that a data folder has recorded as its own.
// Some may have ended. Those that a copied folder has recorded are the original's.
func leftIn(data string) (left []userns.Process) {
	if datafolder.Locked(filepath.Join(data, "lock")) {
		var server struct {
			PID     int
			Started uint64 `json:",string"`
		}
		text, err := os.ReadFile(filepath.Join(data, "server.json"))
		if err == nil && json.Unmarshal(text, &server) == nil {
			left = append(left, userns.Process{PID: server.PID, Start: server.Started})
		}
	}
	runs, err := os.ReadDir(filepath.Join(data, "run"))
	if err != nil {
		return left // there are none, or this user may not enter them
	}
	for _, run := range runs {
		dir := filepath.Join(data, "run", run.Name())
		if datafolder.Locked(filepath.Join(dir, "shim.lock")) {
			if pid, start, err := shim.Keeper(dir); err == nil {
				left = append(left, userns.Process{PID: pid, Start: start})
			}
		}
		if st, err := shim.ReadState(dir); err == nil && st.PID != 0 && !st.Elsewhere(dir) {
			left = append(left, userns.Process{PID: st.PID, Start: st.StartTime})
		}
	}
	return left
}
