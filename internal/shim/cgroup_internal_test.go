package shim

import (
	"slices"
	"testing"
)

// TestUnlimited: without cgroups of the host a sandbox still has its limit of processes,
// which is gVisor's own.
func TestUnlimited(t *testing.T) {
	if got, want := unlimited("no"), []string{"memory: no", "cpu: no"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
