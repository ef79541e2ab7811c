// Package sprite tests a sprite as its clients use it: commands, terminals, files, ports.
package sprite

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
