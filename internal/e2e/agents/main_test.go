// Package agents tests agents in sprites (real ones and cove's own loop), and the tools
// that a model, an editor or an MCP client gets.
package agents

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	defer removeInstalled()
	return e2e.Main(m)
}
