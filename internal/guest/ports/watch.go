package ports

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// GetWatch reports the ports of the whole sandbox on a WebSocket: first a list of the open
// ones, then those that open and close (protocol section 6.4).
func (w *Watcher) GetWatch(rw http.ResponseWriter, r *http.Request) error {
	return w.watches.Serve(rw, r, func(conn *wire.Conn, closing <-chan struct{}) {
		var wg sync.WaitGroup
		defer wg.Wait()
		defer func() { _ = conn.CloseNow() }()
		f := w.Follow("")
		defer f.Leave()
		w.Look() // others' last look may be a while ago
		gone := make(chan struct{})
		wg.Go(func() {
			defer close(gone)
			for {
				_, msg, err := conn.Reader(context.Background())
				if err != nil || wire.Drain(msg) != nil {
					return
				}
			}
		})
		p := &portsClient{conn}
		p.serve(f, w.silence, gone, closing)
	})
}

// patience is how long a client may block.
const patience = 30 * time.Second

// portsClient is a client of ports/watch. If it takes nothing for longer than patience, its
// connection ends.
type portsClient struct{ conn *wire.Conn }

// serve sends the follower's news until the client has gone or the server closes.
func (c *portsClient) serve(f *Follower, silence time.Duration, gone, closing <-chan struct{}) {
	quiet := time.NewTicker(silence)
	defer quiet.Stop()
	for listed := false; ; {
		var err error
		select {
		case <-gone:
			return
		case <-closing:
			return
		case <-quiet.C:
			if listed { // the list is the first message
				err = c.text(sprites.Message{Type: "keepalive"})
			}
		case <-f.changed:
			if listed {
				err = c.events(f.News())
				break
			}
			listed = true
			err = c.text(sprites.PortList{Type: "port_list", Ports: append([]sprites.PortEvent{}, f.News()...)})
		}
		if err != nil {
			return
		}
	}
}

func (c *portsClient) events(events []sprites.PortEvent) error {
	for _, e := range events {
		if err := c.text(e); err != nil {
			return err
		}
	}
	return nil
}

func (c *portsClient) text(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience)) // a closed one fails below
	defer func() { _ = c.conn.SetWriteDeadline(time.Time{}) }()
	return c.conn.Write(context.Background(), websocket.MessageText, data)
}
