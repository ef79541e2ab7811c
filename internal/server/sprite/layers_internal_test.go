package sprite

import (
	"fmt"
	"testing"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// However many checkpoints a disk has had, it can be mounted.
func TestMergeable(t *testing.T) {
	var sealed []store.Layer
	longest := 0
	for n := range 100_000 {
		sealed = append(sealed, store.Layer{ID: fmt.Sprint(n)})
		for run := mergeable(sealed); run != nil; run = mergeable(sealed) {
			at := 0
			for sealed[at].ID != run[0] {
				at++
			}
			into := store.Layer{ID: "of " + run[0], Level: sealed[at].Level + 1}
			sealed = append(append(sealed[:at:at], into), sealed[at+len(run):]...)
		}
		longest = max(longest, len(sealed))
	}
	// Over them are the one that is written and, at a checkpoint, the next one; below
	// them the base.
	if longest+2 > layers.MaxLowers {
		t.Errorf("a disk has %d sealed layers", longest)
	}
}
