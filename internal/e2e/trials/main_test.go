// Package trials shows by long trials that what was acknowledged is there after each kill.
package trials

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
