// Package server shows the server's life: as a service, in containers, of an ordinary user,
// and over the end of any process at any moment.
package server

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
