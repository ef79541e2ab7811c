package sprite

import (
	"fmt"
	"slices"
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

// TestDiskReplacedMeanwhile: a disk that is replaced between two reads, so that its layer is gone,
// is read again; a layer that is nowhere ends nothing.
func TestDiskReplacedMeanwhile(t *testing.T) {
	disks := []string{"old", "new"}
	next := func() (store.Sprite, error) {
		row := store.Sprite{Layer: disks[0]}
		disks = disks[min(1, len(disks)-1):]
		return row, nil
	}
	there := map[string][]store.Layer{"new": {{ID: "new"}}}
	read := func(layer string) ([]store.Layer, error) { return there[layer], nil }
	row, chain, err := diskOf(next, read)
	if err != nil || row.Layer != "new" || len(chain) != 1 {
		t.Errorf("got %s, %v, %v", row.Layer, chain, err)
	}
	disks = []string{"nowhere"}
	if _, chain, err := diskOf(next, read); err != nil || chain != nil {
		t.Errorf("of a layer that is nowhere: %v, %v", chain, err)
	}
}

// TestListQueue: of two callers with layers of a sprite, the later one may have looked first.
// The layers of both are listed.
func TestListQueue(t *testing.T) {
	var r reads
	r.init()
	q, mine := r.queue("paint", []string{"1", "2", "3"})
	if again, mineToo := r.queue("paint", []string{"2"}); !mine || mineToo || again != q {
		t.Errorf("there are two queues: %v, %v", mine, mineToo)
	}
	if _, mine := r.queue("other", []string{"4"}); !mine {
		t.Error("another sprite has no queue of its own")
	}
	var listed []string
	for layer := r.next("paint", q); layer != ""; layer = r.next("paint", q) {
		if listed = append(listed, layer); len(listed) == 3 {
			r.queue("paint", []string{"3", "5"}) // not listed yet, when that one looked
		}
	}
	if want := []string{"1", "2", "3", "3", "5"}; !slices.Equal(listed, want) {
		t.Errorf("got %v, want %v", listed, want)
	}
	<-q.done
	if again, mine := r.queue("paint", []string{"6"}); !mine || again == q {
		t.Error("a queue that has ended goes on")
	}
}
