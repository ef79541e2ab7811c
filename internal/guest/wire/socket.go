package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// IsUpgrade tells a WebSocket handshake from a plain GET.
func IsUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// Conn is a WebSocket. Its messages are read as streams, of any length.
type Conn struct {
	*websocket.Conn
	raw *heldConn
}

// Accept answers a WebSocket handshake. Messages of frame bytes at most are
// written in one system call each, and the answer to the handshake travels with
// the first. If it refuses the handshake, it has answered already.
func Accept(w http.ResponseWriter, r *http.Request, frame int) (*Conn, error) {
	up := &upgrade{ResponseWriter: w, size: frame + 32}
	conn, err := websocket.Accept(up, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // of Origin: a browser has no token
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1) // text is bounded by ReadText
	return &Conn{conn, up.conn}, nil
}

// Hold delays the next n writes until the one after them.
func (c *Conn) Hold(n int) {
	c.raw.mu.Lock()
	c.raw.hold = n
	c.raw.mu.Unlock()
}

// Release sends the held writes. Call it if the other side speaks first.
func (c *Conn) Release() error {
	_, err := c.raw.Write(nil)
	return err
}

// SetWriteDeadline sets the deadline of writes; the zero time means none.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.raw.SetWriteDeadline(t) }

// pingFrame is a ping without payload.
var pingFrame = []byte{0x89, 0}

// SendPing sends a ping and waits for no answer. The library's own Ping gives up the
// connection if it can't write for a while, for example to a paused client.
func (c *Conn) SendPing() error {
	_, err := c.raw.Write(pingFrame)
	return err
}

// pingEvery is how often a connection that may be silent is pinged.
const pingEvery = 20 * time.Second

// KeepAlive pings until done is closed. It ends a connection that takes no pings.
func (c *Conn) KeepAlive(done <-chan struct{}) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
			if c.SendPing() != nil {
				_ = c.CloseNow()
				return
			}
		}
	}
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

// maxText bounds a text message.
const maxText = 64 << 10

// ReadText reads a JSON text message to its end and decodes it; ok is false if the message
// can't be decoded, or is too long.
func ReadText(r io.Reader, v any) (ok bool, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return false, err
	}
	if len(data) > maxText {
		return false, Drain(r)
	}
	return json.Unmarshal(data, v) == nil, nil
}

// Drain reads and discards the rest of a message.
func Drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
