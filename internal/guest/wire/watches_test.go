package wire_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// If the limit of watches is reached, the next one is refused, and the answer says the limit.
func TestWatchesFull(t *testing.T) {
	watches := wire.NewWatches(2, 1<<10)
	server := httptest.NewServer(wire.Handler(func(w http.ResponseWriter, r *http.Request) error {
		return watches.Serve(w, r, func(_ *wire.Conn, closing <-chan struct{}) { <-closing })
	}))
	defer server.Close()
	defer watches.Close()
	for range 2 {
		conn, _, err := websocket.Dial(t.Context(), server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseNow() }()
	}
	_, resp, err := websocket.Dial(t.Context(), server.URL, nil)
	if err == nil || resp == nil {
		t.Fatalf("the third watch: %v, %v", resp, err)
	}
	text, err := io.ReadAll(resp.Body)
	var e sprites.ErrorBody
	if err != nil || json.Unmarshal(text, &e) != nil || resp.StatusCode != http.StatusTooManyRequests || e.Code != "too_many_watches" || e.Limit != 2 || e.CurrentCount != 2 {
		t.Errorf("got %d %s, %v", resp.StatusCode, text, err)
	}
}
