package job

import (
	"runtime"
	"sync"
	"testing"

	"github.com/cove-dev/cove/internal/server/store"
)

// TestJoinOrLeave: a job that joins an installation while the last other job leaves it is not told
// that no job waits for it.
func TestJoinOrLeave(t *testing.T) {
	m, _ := newManager(t)
	is, w := m.installs, &wanted{Install: store.Install{Key: "k"}}
	unlock, err := is.keys.Lock(t.Context(), w.Key) // so that no installation begins
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200_000 {
				inst, err := is.join(w)
				if err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched()
				is.mu.Lock()
				joined := is.underWay[w.Key] == inst
				is.mu.Unlock()
				is.leave(w.Key, inst)
				if !joined {
					t.Error("it waits for an installation that was given up")
					return
				}
			}
		})
	}
	wg.Wait()
}
