package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/sprites"
)

// Streams runs a program, and returns its two streams and its code.
func (h *Host) Streams(args ...string) (stdout, stderr string, code int) {
	h.T.Helper()
	var out, errs bytes.Buffer
	cmd := h.Command("", "cove", args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		h.T.Fatalf("cove %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Sh runs a script in a sprite, and returns its standard output.
func (h *Host) Sh(sprite, script string) string {
	h.T.Helper()
	return h.Run("", "cove", "exec", "-s", sprite, "--", "sh", "-ec", script)
}

// Info describes a sprite.
func (h *Host) Info(sprite string) sprites.Info {
	h.T.Helper()
	var info sprites.Info
	if err := json.Unmarshal([]byte(h.Run("", "cove", "info", sprite, "--json")), &info); err != nil {
		h.T.Fatal(err)
	}
	return info
}

// Sized reports whether the size of a sprite's first checkpoint (v1) is known.
func Sized(h *Host, sprite string) bool {
	h.T.Helper()
	return strings.Contains(h.Run("", "cove", "checkpoint", "show", "v1", "-s", sprite, "--json"), `"size_bytes"`)
}

// Stage waits until a sprite sleeps: paused in memory, or else with its memory on disk.
func (h *Host) Stage(sprite string, paused bool) {
	h.T.Helper()
	Await(h.T, "sleep", func() bool {
		info, err := h.Client().Get(h.T.Context(), sprite)
		return err == nil && info.Status == sprites.StatusWarm && info.Cove.Paused == paused
	})
}

// SandboxState returns the state of a host's only sandbox.
func (h *Host) SandboxState() shim.State {
	h.T.Helper()
	files, _ := filepath.Glob(filepath.Join(h.Data, "run", "*", "sandbox.json")) // the pattern is right
	if len(files) != 1 {
		h.T.Fatalf("there are %q", files)
	}
	data, err := os.ReadFile(files[0])
	var st shim.State
	if err == nil {
		err = json.Unmarshal(data, &st)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return st
}
