package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// crashedDir is the folder with the logs of the last removed sprite whose shim or gVisor kernel
// had crashed. Without it, the reports would go with the sprite's own folder.
const crashedDir = "crashed"

// maxCrashed is how much of the end of each log is kept there.
const maxCrashed = 4 << 20

// keepCrash keeps the logs of a sprite that is about to be removed, if one has the report of a
// crash.
func keepCrash(data, id string, logs []string) error {
	crashed := false
	for _, name := range logs {
		text, err := endOf(name, 0)
		if err != nil {
			return fmt.Errorf("look for reports of crashes: %w", err)
		}
		own := filepath.Base(name) != "guest.log" && filepath.Base(name) != "runsc.log" // where a guest may write one
		crashed = crashed || own && kernel.Reason(string(text)) != ""
	}
	if !crashed {
		return nil
	}
	all := filepath.Join(data, crashedDir)
	dir := filepath.Join(all, id)
	if err := errors.Join(layers.Remove(all), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("keep reports of crashes: %w", err)
	}
	var errs []error
	for _, name := range logs {
		text, err := endOf(name, 0)
		if err == nil && len(text) > 0 {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("keep reports of crashes: %w", err)
	}
	return nil
}

// endOf returns what a log has after an offset, but only the last maxCrashed bytes. If
// there is no log, it returns nothing.
func endOf(name string, from int64) ([]byte, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from = max(from, info.Size()-maxCrashed)
	return io.ReadAll(io.NewSectionReader(f, from, max(info.Size()-from, 0)))
}

// shimDied is errShimDied, with the head of the report that the shim's log has after an offset.
func shimDied(log string, from int64) error {
	text, _ := endOf(log, from) // without it the log is named alone
	if report := kernel.Crash(string(text)); report != "" {
		return fmt.Errorf("%w: %s; see %s", errShimDied, report, log)
	}
	return fmt.Errorf("%w; see %s", errShimDied, log)
}
