package wire

import (
	"net/http"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// Watches counts and ends the calls of one kind that watch something on a WebSocket. Close
// them when done.
type Watches struct {
	most    int
	frame   int
	closing chan struct{}
	wg      sync.WaitGroup

	mu   sync.Mutex
	open int // guarded by mu
}

// NewWatches allows so many watches at once, whose messages are of frame bytes at most.
func NewWatches(most, frame int) *Watches {
	return &Watches{most: most, frame: frame, closing: make(chan struct{})}
}

// Serve serves a call that watches, unless the limit is reached. serve must return soon after
// closing is closed; then the connection ends.
func (ws *Watches) Serve(w http.ResponseWriter, r *http.Request, serve func(conn *Conn, closing <-chan struct{})) error {
	if !IsUpgrade(r) {
		return fail.New("upgrade_required", "A watch needs a WebSocket.", "")
	}
	if !ws.enter() {
		return Full("too_many_watches", ws.most, "%d connections watch already.", ws.most)
	}
	defer ws.leave()
	conn, err := Accept(w, r, ws.frame)
	if err != nil {
		return nil // answered
	}
	defer func() { _ = conn.CloseNow() }()
	if conn.Release() == nil { // otherwise it has gone
		serve(conn, ws.closing)
	}
	return nil
}

func (ws *Watches) enter() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open >= ws.most {
		return false
	}
	ws.open++
	ws.wg.Add(1)
	return true
}

func (ws *Watches) leave() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.open--
	ws.wg.Done()
}

// Close ends the watches, and waits for them. There must be no more calls.
func (ws *Watches) Close() {
	close(ws.closing)
	ws.wg.Wait()
}
