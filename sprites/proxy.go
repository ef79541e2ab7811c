package sprites

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// dialLimit bounds the wait for a proxy's answer, after the handshake.
const dialLimit = 30 * time.Second

// Dial connects to a TCP port as seen from inside the sprite; an empty host is
// the sprite itself. The connection is a *Conn. The context is for connecting
// alone.
func (s *Sprite) Dial(ctx context.Context, host string, port int) (net.Conn, error) {
	if host == "" {
		host = "localhost"
	}
	conn, err := s.connect(ctx, ProxyInit{Host: host, Port: port, HalfClose: true})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), s.describe(), err)
	}
	return conn, nil
}

// MayDial is ErrForbidden if the client's token may not connect into the sprite, as far as the
// server says so before anybody connects. Nothing is connected, and the sprite is not woken.
func MayDial(ctx context.Context, s *Sprite) error {
	err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("proxy")}, nil)
	if errors.Is(err, ErrForbidden) {
		return fmt.Errorf("connect into %s: %w", s.describe(), err)
	}
	return nil // a server refuses a call without an upgrade in its own way
}

// DialUnix connects to a Unix socket in the sprite, given its absolute path. If the
// server can't do that, the error is errors.ErrUnsupported. The connection is a *Conn.
// The context is for connecting alone.
func (s *Sprite) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	conn, err := s.connect(ctx, ProxyInit{Unix: path, HalfClose: true})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", path, s.describe(), err)
	}
	return conn, nil
}

func (s *Sprite) connect(ctx context.Context, init ProxyInit) (*Conn, error) {
	sock, err := s.client.dial(ctx, s.path("proxy"), nil)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	stop := context.AfterFunc(limited, func() { sock.giveUp(context.Cause(limited)) })
	status, err := openProxy(sock, init)
	if !stop() && err == nil {
		err = context.Cause(limited)
	}
	if err != nil {
		sock.close()
		return nil, err
	}
	c := &Conn{
		sock:   sock,
		in:     newPipe(),
		done:   make(chan struct{}),
		half:   status.HalfClose,
		remote: proxyAddr(status.Target),
	}
	if c.remote == "" {
		c.remote = proxyAddr(cmp.Or(init.Unix, net.JoinHostPort(init.Host, strconv.Itoa(init.Port))))
	}
	go c.read()
	return c, nil
}

// openProxy has the server connect.
func openProxy(sock *socket, init ProxyInit) (ProxyStatus, error) {
	var status ProxyStatus
	if err := sock.tell(init); err != nil {
		return status, err
	}
	typ, msg, err := sock.next()
	if init.Unix != "" && websocket.CloseStatus(err) == websocket.StatusUnsupportedData {
		err = errNoUnix
	}
	if err != nil {
		return status, err
	}
	if typ != websocket.MessageText {
		return status, errors.New("the server sent data before its answer")
	}
	b, err := readText(msg)
	if err != nil {
		return status, err
	}
	if err := json.Unmarshal(b, &status); err != nil {
		return status, fmt.Errorf("read the answer: %w", err)
	}
	if status.Status != "connected" {
		text := printable(status.Error)
		if text == "" {
			text = "refused"
		}
		return status, errors.New(text)
	}
	if status.Unix != init.Unix {
		return status, errNoUnix
	}
	return status, nil
}

var errNoUnix = fmt.Errorf("this server can't reach Unix sockets: %w", errors.ErrUnsupported)

// Conn is a connection into a sprite, made by Sprite.Dial. It is a net.Conn.
type Conn struct {
	sock   *socket
	in     *pipe
	half   bool
	remote proxyAddr
	done   chan struct{} // closed when the reader has ended

	writing sync.Mutex // held by Write
	ended   bool       // CloseWrite was called; guarded by writing
	closing sync.Once
}

// proxyEnd is the text message that ends one direction.
type proxyEnd struct {
	Type string `json:"type"`
}

// read moves incoming data into the pipe. The pipe's size is the backpressure.
func (c *Conn) read() {
	defer close(c.done)
	c.in.end(c.readAll())
	c.sock.close()
}

// readAll returns nil at the end of the other side's data.
func (c *Conn) readAll() error {
	buf := make([]byte, 32<<10)
	for {
		typ, msg, err := c.sock.next()
		if err != nil {
			switch websocket.CloseStatus(err) {
			case websocket.StatusNormalClosure, websocket.StatusGoingAway:
				return nil
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if typ == websocket.MessageText {
			if err := c.text(msg); err != nil {
				return err
			}
			continue
		}
		for {
			n, err := msg.Read(buf)
			if n > 0 {
				if err := c.sock.deliver(c.in, buf[:n]); err != nil {
					_, _ = io.Copy(io.Discard, msg) // nobody reads any more, but an end may follow
					break
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
	}
}

// text handles a text message: the end of the other side's data, or nothing.
func (c *Conn) text(msg io.Reader) error {
	b, err := readText(msg)
	if err != nil {
		return err
	}
	if m, ok := parseMessage(b); ok && m.Type == "eof" && c.half {
		c.in.end(nil)
	}
	return nil
}

// Read reads what the other side sent. io.EOF is its end; a connection that was
// cut is another error.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return n, err
}

// Write sends p, and waits while the other side takes nothing.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return 0, net.ErrClosed
	}
	for n := 0; n < len(p); {
		part := p[n:min(n+frameSize, len(p))]
		if err := c.sock.send(part); err != nil {
			if errors.Is(err, io.ErrClosedPipe) {
				err = net.ErrClosed
			}
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

// CloseWrite tells the other side that nothing more comes; it may go on sending. If the
// server can't do that, the error is errors.ErrUnsupported, and the call has no effect.
func (c *Conn) CloseWrite() error {
	if !c.half {
		return fmt.Errorf("half-close of a connection into a sprite: %w", errors.ErrUnsupported)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return net.ErrClosed
	}
	c.ended = true
	return c.sock.tell(proxyEnd{"eof"})
}

// Close ends the connection, both ways. Bytes that were written are still sent, unless
// the server takes more than a few seconds to accept them.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		_ = c.in.Close()
		_ = c.sock.ws.Close(websocket.StatusNormalClosure, "")
		c.sock.close()
		<-c.done
		err = nil
	})
	return err
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline makes Read fail from t on. The connection stays usable.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.in.SetReadDeadline(t) }

// SetWriteDeadline makes Write fail from t on. The connection stays usable.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.sock.out.setDeadline(t)
	return nil
}

// LocalAddr is a placeholder: this side's end is in the server.
func (c *Conn) LocalAddr() net.Addr { return proxyAddr("client") }

// RemoteAddr is the target as the server names it.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// proxyAddr is a net.Addr.
type proxyAddr string

func (proxyAddr) Network() string  { return "sprite" }
func (a proxyAddr) String() string { return string(a) }
