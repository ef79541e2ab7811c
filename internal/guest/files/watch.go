package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

const (
	watchInitLimit = time.Minute
	maxWatchPaths  = 256     // of one subscription
	watchFrame     = 8 << 10 // a message, with a long path
	watchBatch     = 64      // files that are looked at at once
)

// getWatch reports changes to files over a WebSocket (protocol sections 5.9 and 17.8).
func (s *Server) getWatch(w http.ResponseWriter, r *http.Request) error {
	return s.watches.Serve(w, r, func(conn *wire.Conn, closing <-chan struct{}) {
		c := &watchConn{server: s, conn: conn, queue: newWatchQueue(), done: make(chan struct{})}
		c.run(closing)
	})
}

// watchConn is one connection that watches files. One goroutine takes the kernel's events,
// whatever the client does, and another sends them.
type watchConn struct {
	server *Server
	conn   *wire.Conn
	queue  *watchQueue
	user   users.User
	done   chan struct{} // closed when run returns
}

func (c *watchConn) run(closing <-chan struct{}) {
	var wg sync.WaitGroup
	var w *watcher
	defer func() {
		close(c.done)
		wg.Wait()
		if w != nil {
			w.free()
		}
	}()
	wg.Go(func() {
		select {
		case <-closing:
			_ = c.conn.CloseNow()
		case <-c.done:
		}
	})
	if w = c.subscribe(); w == nil {
		return
	}
	wg.Go(func() { c.conn.KeepAlive(c.done) })
	wg.Go(func() {
		defer c.queue.close()
		w.run()
	})
	wg.Go(func() {
		defer w.close()
		c.receive()
	})
	if c.send() == nil {
		_ = c.conn.Close(websocket.StatusInternalError, "the watch has ended")
	}
	_ = c.conn.CloseNow() // which ends receive
}

// subscribe starts to watch what the client asks for, and says so; nil if it
// can't.
func (c *watchConn) subscribe() *watcher {
	// The library ends the connection with the context, which is what is wanted.
	ctx, cancel := context.WithTimeout(context.Background(), watchInitLimit)
	defer cancel()
	typ, msg, err := c.conn.Reader(ctx)
	if err != nil {
		return nil
	}
	var req sprites.WatchRequest
	ok, err := wire.ReadText(msg, &req)
	if err != nil {
		return nil
	}
	var paths []string
	switch {
	case !ok || typ != websocket.MessageText || req.Type != "subscribe" || len(req.Paths) == 0:
		err = badRequestFile(`the first message must be {"type":"subscribe","paths":[…]}`)
	case len(req.Paths) > maxWatchPaths:
		err = badRequestFile(fmt.Sprintf("more than %d paths", maxWatchPaths))
	default:
		paths, err = c.resolve(req)
	}
	if err != nil {
		c.refuse(err)
		return nil
	}
	w, err := newWatcher(c.user, paths, req.Recursive, c.queue, &c.server.folders)
	if err != nil {
		c.refuse(err)
		return nil
	}
	if c.tell(sprites.WatchMessage{Type: "subscribed", Paths: paths}) != nil {
		w.close()
		w.free()
		return nil
	}
	return w
}

// resolve makes the paths absolute, and finds the user.
func (c *watchConn) resolve(req sprites.WatchRequest) ([]string, error) {
	paths := make([]string, len(req.Paths))
	for i, name := range req.Paths {
		if err := need("path", name); err != nil {
			return nil, err
		}
		f := fileCall{Path: name, WorkingDir: req.WorkingDir, AsRoot: req.AsRoot}
		if err := c.server.complete(&f); err != nil {
			return nil, err
		}
		paths[i], c.user = f.Path, f.user
	}
	return paths, nil
}

// refuse says why there is no watch, and closes the connection.
func (c *watchConn) refuse(err error) {
	m := watchError(err)
	if c.tell(m) == nil {
		_ = c.conn.Close(websocket.StatusInternalError, closeReason(err))
	}
}

// closeReason fits an error into a close frame.
func closeReason(err error) string {
	text := err.Error()
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		text = errno.Error()
	}
	if len(text) > 120 {
		text = text[:120]
	}
	return text
}

func watchError(err error) sprites.WatchMessage {
	_, code, text := fileStatus(err)
	if e, ok := err.(*fileError); ok {
		text = e.path + ": " + text
	}
	return sprites.WatchMessage{Type: "error", Code: code, Message: text}
}

func (c *watchConn) tell(m sprites.WatchMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.conn.Write(context.Background(), websocket.MessageText, data)
}

// receive reads until the client ends the connection. Any further message of the client is an
// error.
func (c *watchConn) receive() {
	for {
		_, msg, err := c.conn.Reader(context.Background())
		if err != nil {
			return
		}
		if err := wire.Drain(msg); err != nil {
			return
		}
		c.queue.complain(sprites.WatchMessage{
			Type: "error", Code: "EINVAL", Message: "a connection has only one subscription, which was made already",
		})
	}
}

// send sends events, as fast as the client takes them, until no more can come.
func (c *watchConn) send() error {
	for {
		items, more := c.queue.take()
		for len(items) > 0 {
			batch := items[:min(len(items), watchBatch)]
			items = items[len(batch):]
			if err := c.measure(batch); err != nil {
				return err
			}
			for _, m := range batch {
				if err := c.tell(m); err != nil {
					return err
				}
			}
		}
		if !more {
			return nil
		}
	}
}

// measure fills in the sizes that the user may know.
func (c *watchConn) measure(batch []sprites.WatchMessage) error {
	return c.user.Do(func() error {
		for _, m := range batch {
			if m.WatchEvent == nil || m.Event == sprites.WatchRemove || m.Event == sprites.WatchRename {
				continue
			}
			if st, err := os.Lstat(m.Path); err == nil {
				m.Size = st.Size()
			}
		}
		return nil
	})
}
