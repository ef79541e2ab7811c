// Package trees tests that work trees are pushed and pulled, by git and by sync.
package trees

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
