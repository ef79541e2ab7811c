package sprite

import (
	"sync"
	"testing"
	"time"
)

// TestAtOnce: those that hang do not keep the others waiting, and few are at it at once.
func TestAtOnce(t *testing.T) {
	hang := make(chan struct{})
	var quick, all sync.WaitGroup
	quick.Add(3)
	all.Go(func() {
		atOnce(t.Context(), []string{"hangs", "hangs", "hangs", "quick", "hangs", "quick", "hangs", "quick"}, 2, time.Millisecond, func(what string) {
			if what == "quick" {
				quick.Done()
				return
			}
			<-hang
		})
	})
	quick.Wait() // for ever, if a place is not given on
	close(hang)
	all.Wait()

	var mu sync.Mutex
	now, most := 0, 0
	atOnce(t.Context(), make([]int, 50), 4, time.Hour, func(int) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
	})
	if most > 4 {
		t.Errorf("%d were at it at once, want 4 at most", most)
	}
}
