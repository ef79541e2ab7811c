// Package trials tests, in long trials, that acknowledged changes are there after each
// kill.
package trials

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
