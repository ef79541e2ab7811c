package guest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// isUpgrade tells a WebSocket handshake from a plain GET.
func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// accept answers a WebSocket handshake. Messages of frame bytes at most are
// written in one system call each, and the answer to the handshake travels with
// the first. A refused handshake is answered already.
func accept(w http.ResponseWriter, r *http.Request, frame int) (*websocket.Conn, *heldConn, error) {
	up := &upgrade{ResponseWriter: w, size: frame + 32}
	conn, err := websocket.Accept(up, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // of Origin: a browser has no token
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, nil, err
	}
	conn.SetReadLimit(-1) // messages are read as streams; text is bounded by readText
	return conn, up.conn, nil
}

// watch serves a call that watches something on a WebSocket, unless as many do
// already as may. Messages are of frame bytes at most.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, open *atomic.Int64, most int64, frame int, serve func(*websocket.Conn, *heldConn)) error {
	if !isUpgrade(r) {
		return fail.New("upgrade_required", "A watch needs a WebSocket.", "")
	}
	defer open.Add(-1)
	if open.Add(1) > most {
		return fail.New("too_many_watches", fmt.Sprintf("%d connections watch already.", most), "")
	}
	s.wg.Add(1)
	defer s.wg.Done()
	conn, raw, err := accept(w, r, frame)
	if err != nil {
		return nil // answered
	}
	defer func() { _ = conn.CloseNow() }()
	if raw.release() == nil { // otherwise it has gone
		serve(conn, raw)
	}
	return nil
}

// upgrade hands a heldConn to the WebSocket library.
type upgrade struct {
	http.ResponseWriter
	size int
	conn *heldConn
}

func (u *upgrade) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		u.ResponseWriter.WriteHeader(status)
	}
}

func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	if err := u.Header().Write(&head); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	head.WriteString("\r\n")
	u.conn = &heldConn{Conn: conn, held: head.Bytes()}
	return u.conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.conn, u.size)), nil
}

// heldConn is a connection that can keep writes back to send them together with
// the next. Every write is a whole WebSocket frame.
type heldConn struct {
	net.Conn

	mu   sync.Mutex
	held []byte
	hold int // how many of the next writes
}

func (c *heldConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold > 0 {
		c.hold--
		c.held = append(c.held, p...)
		return len(p), nil
	}
	if len(c.held) == 0 {
		return c.Conn.Write(p)
	}
	all := slices.Concat(c.held, p)
	c.held = nil
	n, err := c.Conn.Write(all)
	return max(0, n-(len(all)-len(p))), err
}

// holdNext keeps the next n writes back until the one after them.
func (c *heldConn) holdNext(n int) {
	c.mu.Lock()
	c.hold = n
	c.mu.Unlock()
}

// release sends what is held, where the other side speaks first.
func (c *heldConn) release() error {
	_, err := c.Write(nil)
	return err
}

// pingFrame is a ping without payload. The library's own Ping gives the
// connection up when it can't write for a while, as to a client that is paused.
var pingFrame = []byte{0x89, 0}

func (c *heldConn) ping() error {
	_, err := c.Write(pingFrame)
	return err
}

// pingEvery is how often a connection that may be silent is pinged.
const pingEvery = 20 * time.Second

// keepAlive pings until done is closed, and ends a connection that takes none.
func keepAlive(conn *websocket.Conn, raw *heldConn, done <-chan struct{}) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			if raw.ping() != nil {
				_ = conn.CloseNow()
				return
			}
		}
	}
}

// maxText bounds a text message.
const maxText = 64 << 10

// readText reads a JSON text message to its end and decodes it; ok is false when
// it is none, or too long.
func readText(r io.Reader, v any) (ok bool, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return false, err
	}
	if len(data) > maxText {
		return false, drain(r)
	}
	return json.Unmarshal(data, v) == nil, nil
}
