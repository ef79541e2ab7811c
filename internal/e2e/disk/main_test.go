// Package disk tests how sprites share a disk that is full, limited or broken.
package disk

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
