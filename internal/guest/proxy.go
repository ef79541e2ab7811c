package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// A proxied connection's times.
const (
	proxyInitLimit = 10 * time.Second
	proxyDialLimit = 9 * time.Second       // clients wait ten
	proxyHold      = 25 * time.Millisecond // some clients lose what comes with "connected"
)

// proxyBuffer is how much is moved at once, each way: a proxied connection's speed
// depends on it, since each system call costs so much more in a sandbox.
const proxyBuffer = 64 << 10

var proxyBuffers = sync.Pool{New: func() any { return new([proxyBuffer]byte) }}

// getProxy joins a WebSocket with a TCP connection to wherever the sandbox can
// reach (protocol sections 6.1 and 17.9).
func (s *Server) getProxy(w http.ResponseWriter, r *http.Request) error {
	if !isUpgrade(r) {
		return failure(http.StatusUpgradeRequired, "upgrade_required", "A proxied connection needs a WebSocket.")
	}
	if s.proxies.Add(1) > maxProxies {
		s.proxies.Add(-1)
		return failure(http.StatusTooManyRequests, "too_many_connections", fmt.Sprintf("%d connections are proxied already.", maxProxies))
	}
	defer s.proxies.Add(-1)
	s.wg.Add(1)
	defer s.wg.Done()
	conn, raw, err := accept(w, r, proxyBuffer)
	if err != nil {
		return nil // answered
	}
	defer func() { _ = conn.CloseNow() }()
	if raw.release() != nil {
		return nil // it has gone
	}
	p := &proxy{conn: conn, raw: raw, done: make(chan struct{}), first: make(chan struct{}), ended: make(chan struct{})}
	p.run(s.closing)
	return nil
}

// proxy is one proxied connection.
type proxy struct {
	conn *websocket.Conn
	raw  *heldConn
	tcp  net.Conn
	half bool // a text message ends one direction

	done  chan struct{} // closed when run returns
	first chan struct{} // closed with the client's first message after "connected"
	ended chan struct{} // closed when the client has ended its direction
}

// proxyEnd ends one direction.
type proxyEnd struct {
	Type string `json:"type"`
}

func (p *proxy) run(closing <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(p.done)
	wg.Go(func() {
		select {
		case <-closing:
			_ = p.conn.CloseNow()
		case <-p.done:
		}
	})
	if !p.connect() {
		return
	}
	defer func() { _ = p.tcp.Close() }()
	wg.Go(func() { keepAlive(p.conn, p.raw, p.done) })
	received := make(chan struct{})
	wg.Go(func() {
		defer close(received)
		p.receive()
		_ = p.tcp.Close() // which ends send
	})
	if err := p.send(); err != nil {
		_ = p.conn.Close(websocket.StatusInternalError, closeReason(err))
		return
	}
	if p.half {
		if p.text(proxyEnd{"eof"}) != nil {
			return
		}
		select {
		case <-p.ended:
		case <-received:
		}
	}
	_ = p.conn.Close(websocket.StatusNormalClosure, "") // it may have gone
}

// connect reads where to, dials and answers.
func (p *proxy) connect() bool {
	// The library ends the connection with the context, which is what is wanted.
	ctx, cancel := context.WithTimeout(context.Background(), proxyInitLimit)
	defer cancel()
	var init sprites.ProxyInit
	typ, msg, err := p.conn.Reader(ctx)
	if err != nil {
		return false
	}
	ok, err := readText(msg, &init)
	if err != nil {
		return false
	}
	if typ != websocket.MessageText || !ok || init.Port <= 0 || init.Port > 65535 {
		_ = p.conn.Close(websocket.StatusUnsupportedData, "the first message must be {\"host\":…,\"port\":…}")
		return false
	}
	if init.Host == "" {
		init.Host = "localhost"
	}
	status := sprites.ProxyStatus{Status: "connected", Target: net.JoinHostPort(init.Host, strconv.Itoa(init.Port)), HalfClose: init.HalfClose}
	p.half = init.HalfClose
	p.tcp, err = dial(init.Host, init.Port)
	if err != nil {
		status.Status, status.Error, status.HalfClose = "error", dialReason(err), false
		_ = p.text(status) // it has gone itself
		_ = p.conn.Close(websocket.StatusInternalError, closeReason(errors.New(status.Error)))
		return false
	}
	if p.text(status) != nil {
		_ = p.tcp.Close()
		return false
	}
	return true
}

// dial connects to a port. The sprite itself has many names, and a program may
// listen on either loopback address.
func dial(host string, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: proxyDialLimit}
	text := strconv.Itoa(port)
	switch host {
	case "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "10.0.0.1", "fdf::1":
	default:
		return d.Dial("tcp", net.JoinHostPort(host, text))
	}
	first, second := "127.0.0.1", "::1"
	if host == "::1" {
		first, second = second, first
	}
	conn, err := d.Dial("tcp", net.JoinHostPort(first, text))
	if err == nil {
		return conn, nil
	}
	if conn, err2 := d.Dial("tcp", net.JoinHostPort(second, text)); err2 == nil {
		return conn, nil
	}
	return nil, err
}

// dialReason is why a connection was not made, for people.
func dialReason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return "look up " + e.Name + ": " + e.Err
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "no answer"
	}
	return err.Error()
}

// closeReason fits an error into a close frame.
func closeReason(err error) string {
	text := dialReason(err)
	if len(text) > 120 {
		text = text[:120]
	}
	return text
}

func (p *proxy) text(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.conn.Write(context.Background(), websocket.MessageText, data)
}

// send moves the remote's bytes to the client until its end.
func (p *proxy) send() error {
	hold := time.NewTimer(proxyHold)
	select {
	case <-hold.C:
	case <-p.first:
		hold.Stop()
	}
	bufp := proxyBuffers.Get().(*[proxyBuffer]byte)
	defer proxyBuffers.Put(bufp)
	for {
		n, err := p.tcp.Read(bufp[:])
		if n > 0 {
			if err := p.conn.Write(context.Background(), websocket.MessageBinary, bufp[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// receive moves the client's bytes to the remote until the connection ends.
func (p *proxy) receive() {
	bufp := proxyBuffers.Get().(*[proxyBuffer]byte)
	defer proxyBuffers.Put(bufp)
	for first, ended := true, false; ; first = false {
		typ, msg, err := p.conn.Reader(context.Background())
		if err != nil {
			return
		}
		if first {
			close(p.first)
		}
		if typ == websocket.MessageText {
			var end proxyEnd
			ok, err := readText(msg, &end)
			if err != nil {
				return
			}
			if ok && end.Type == "eof" && p.half && !ended {
				ended = true
				close(p.ended)
				if tcp, ok := p.tcp.(*net.TCPConn); ok {
					_ = tcp.CloseWrite() // it has gone: send says so
				}
			}
			continue
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{p.tcp}, struct{ io.Reader }{msg}, bufp[:]); err != nil {
			return
		}
	}
}
