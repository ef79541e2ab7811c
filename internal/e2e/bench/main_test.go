// Package bench measures cove. Most benchmarks stand beside a floor: what the same takes
// without cove.
package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestMain also runs the floor, which is a process of its own.
func TestMain(m *testing.M) {
	dir := os.Getenv(floorEnv)
	if dir == "" {
		os.Exit(e2e.Main(m))
	}
	e2e.BinDir = os.Getenv("COVE_BIN")
	if err := floorMain(dir); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
