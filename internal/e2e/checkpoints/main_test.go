// Package checkpoints shows what a sprite keeps: over checkpoints, forks, pauses, sleep,
// and on the way to another server.
package checkpoints

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
