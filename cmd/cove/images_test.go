package main

import (
	"errors"
	"math"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// The server writes no image into the reserve of its disk.
func TestLeaves(t *testing.T) {
	dir := t.TempDir()
	if err := leaves(dir, 0)(1); err != nil {
		t.Error(err)
	}
	err := leaves(dir, math.MaxInt64/2)(1)
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "no_space" {
		t.Errorf("below the reserve: %v", err)
	}
}
