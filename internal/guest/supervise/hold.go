package supervise

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// How a job at work keeps its sprite awake.
const (
	holdRefresh = time.Minute
	holdExpiry  = "5m" // after the death of a supervisor, the hold ends by itself
)

// hold keeps the sprite awake while a job works, by a task of the sprite. A service does not
// keep it awake, and there may be no other client. While the agent waits for a person, the
// sprite may sleep. If the sprite has no task API, it may sleep at any time.
type hold struct {
	guest   *http.Client
	task    string
	refresh time.Duration
	changed <-chan struct{} // has an element when working may say something else
	working func() bool

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (h *hold) start() {
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.wg.Go(func() { h.keep(ctx) })
}

// close lets the sprite go, and waits for that.
func (h *hold) close() {
	h.cancel()
	h.wg.Wait()
}

func (h *hold) keep(ctx context.Context) {
	tick := time.NewTicker(h.refresh)
	defer tick.Stop()
	held := false
	for {
		if h.working() {
			h.call(ctx, http.MethodPut, `{"expire":"`+holdExpiry+`"}`)
			held = true // it may have come, whatever the answer is
		} else if held {
			h.call(ctx, http.MethodDelete, "")
			held = false
		}
		select {
		case <-tick.C:
		case <-h.changed:
		case <-ctx.Done():
			if held {
				h.call(context.WithoutCancel(ctx), http.MethodDelete, "")
			}
			return
		}
	}
}

// call makes a call about the task. If it fails, it is retried at the next tick, or the task
// expires.
func (h *hold) call(ctx context.Context, method, body string) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://sprite/v1/tasks/"+url.PathEscape(h.task), strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := h.guest.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}
