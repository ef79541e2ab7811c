// Package scripts shows the commands of cove by scripts, in testdata.
package scripts

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
