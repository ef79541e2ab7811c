package supervise

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-dev/cove"
)

// TestWaitInOrder: the log's states change as the agent's do, also if a message comes just when the
// agent begins to wait. The last state in the log is the agent's.
func TestWaitInOrder(t *testing.T) {
	name := filepath.Join(t.TempDir(), "events.jsonl")
	log, err := openJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	g := &guards{log: log, turned: make(chan struct{}, 1)}
	enough := func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return log.seq >= 2000
	}
	var wg sync.WaitGroup
	for _, is := range []bool{true, false} {
		wg.Go(func() {
			for !enough() {
				g.wait(is)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	last := cove.JobRunning
	for line := range bytes.Lines(text) {
		var ev cove.JobEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatal(err)
		}
		if ev.State == last {
			t.Fatalf("event %d says once more %s", ev.Seq, last)
		}
		last = ev.State
	}
	if got := last == cove.JobWaiting; got != g.waiting.Load() {
		t.Errorf("the log ends with %s, and it waits: %t", last, !got)
	}
	if err := log.close(); err != nil {
		t.Error(err)
	}
}
