// Package checkpoints tests what a sprite keeps over checkpoints, forks, pauses and
// sleep, and when it moves to another server.
package checkpoints

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
