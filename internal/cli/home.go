package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// absoluteHome makes a relative HOME absolute, for this process and those that it starts. The
// server has another working directory, and finds its data and settings by HOME, too.
func absoluteHome() error {
	home := os.Getenv("HOME")
	if home == "" || filepath.IsAbs(home) {
		return nil
	}
	abs, err := filepath.Abs(home)
	if err != nil {
		return fmt.Errorf("find the home directory %s: %w", home, err)
	}
	return os.Setenv("HOME", abs)
}
