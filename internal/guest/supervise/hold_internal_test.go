package supervise

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// TestHold: A7: while a job works, its sprite has a task that is refreshed. The task is
// deleted while the agent waits for a person, and at the end of the job. It expires by itself.
func TestHold(t *testing.T) {
	g := &guest.Server{Dir: t.TempDir()}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- g.ServeLocal(ctx) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := guestAt(filepath.Join(g.Dir, boot.Socket))
	tasks := func() []sprites.Task {
		resp, err := client.Get("http://sprite/v1/tasks")
		if err != nil {
			return nil // it does not listen yet
		}
		defer resp.Body.Close()
		var list sprites.TaskList
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d, %v", resp.StatusCode, err)
		}
		return list.Tasks
	}
	until := func(what string, is func([]sprites.Task) bool) {
		t.Helper()
		for t.Context().Err() == nil {
			if is(tasks()) {
				return
			}
			runtime.Gosched()
		}
		t.Fatalf("not %s", what)
	}
	var waiting atomic.Bool
	changed := make(chan struct{}, 1)
	turn := func(is bool) { waiting.Store(is); changed <- struct{}{} }
	h := &hold{guest: client, task: "cove-job-abc123", refresh: 50 * time.Millisecond, changed: changed, working: func() bool { return !waiting.Load() }}
	h.start()
	var first sprites.Task
	there := func(all []sprites.Task) bool {
		if len(all) == 1 {
			first = all[0]
		}
		return len(all) == 1 && all[0].Name == "cove-job-abc123"
	}
	gone := func(all []sprites.Task) bool { return len(all) == 0 }
	until("held", there)
	if left := first.ExpiresAt.Sub(first.StartedAt); left > time.Hour/2 {
		t.Errorf("the hold of a supervisor that dies is there for %v", left)
	}
	until("refreshed", func(all []sprites.Task) bool { return len(all) == 1 && all[0].ExpiresAt.After(first.ExpiresAt) })
	turn(true)
	until("let go while a person is waited for", gone)
	turn(false)
	until("held again", there)
	h.close()
	if left := tasks(); len(left) != 0 {
		t.Errorf("after the job there is %+v", left)
	}
}
