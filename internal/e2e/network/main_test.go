// Package network tests what a sprite reaches, what reaches it, its policy and its secrets.
package network

import (
	"os"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }
