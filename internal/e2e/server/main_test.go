// Package server tests the server as a service, in containers and for an ordinary user, and
// when any process ends at any moment.
package server

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
