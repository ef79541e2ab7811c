package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// A proxied connection's times.
const (
	proxyInitLimit = 30 * time.Second
	proxyDialLimit = 9 * time.Second // clients wait ten
)

// aliases are the names that mean the sprite itself.
var aliases = []string{"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "10.0.0.1", "fdf::1"}

// proxy joins a WebSocket with a TCP connection to wherever the sprite can
// reach (protocol sections 6.1 and 17.9), or to a Unix socket in it. A program that listens at
// the sprite's network is reached without the guest, which would copy each byte twice more, in
// the sandbox. All else is reached through the guest.
func (g *guestRoutes) proxy(w http.ResponseWriter, r *http.Request) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	done, err := g.relays.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	lease, err := g.host.Use(r.Context(), r.PathValue("name"), "proxy")
	if err != nil {
		return err
	}
	defer lease.Release()
	p := &proxied{guest: g.guests.get(lease.Sandbox()), taken: &taking{done: make(chan struct{})}, ended: make(chan struct{})}
	if err := acceptSocket(w, r, &p.client); err != nil { // which has answered
		g.log.Debug("accepting a WebSocket", "err", err)
		return nil
	}
	p.client.conn.SetReadLimit(-1)
	p.run(r.Context())
	return nil
}

// proxied is one proxied connection.
type proxied struct {
	client side
	guest  *guest
	remote net.Conn
	half   bool // a text message ends one direction
	taken  *taking
	ended  chan struct{} // closed when the client has ended its direction
}

// run serves the connection until both directions, either side, or ctx has ended.
func (p *proxied) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		closeFor(ctx, p.client.conn)
		_ = p.client.conn.CloseNow()
	})
	defer stop()
	defer func() { _ = p.client.conn.CloseNow() }()
	if !p.connect(ctx) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.taken.pings.Wait()
	received := make(chan struct{})
	wg.Go(func() {
		defer close(received)
		p.receive()
		_ = p.remote.Close() // which ends send
	})
	defer func() { _ = p.client.conn.CloseNow() }()
	p.taken.wait(p.client.conn)
	if err := p.send(); err != nil {
		if _, ok := errors.AsType[*writeError](err); !ok {
			closeWithin(2*closeGrace, p.client.conn, websocket.StatusInternalError, clean(err.Error(), maxReason))
		}
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
	closeWithin(2*closeGrace, p.client.conn, websocket.StatusNormalClosure, "")
}

// takenLimit is for clients that don't answer pings. A busy machine may take a second for a pong.
const takenLimit = 10 * time.Second

// taking waits until a client has taken an answer: some clients lose data that comes in one
// piece with it (protocol section 17.9). A pong, or the client's next message, says that it
// has.
type taking struct {
	messages int           // so far; of one goroutine
	done     chan struct{} // closed with the second
	pings    sync.WaitGroup
}

// message counts the client's messages.
func (t *taking) message() {
	if t.messages++; t.messages == 2 {
		close(t.done)
	}
}

func (t *taking) wait(conn *websocket.Conn) {
	pong := make(chan struct{})
	t.pings.Go(func() {
		defer close(pong)
		_ = conn.Ping(context.Background()) // ends with the connection at the latest
	})
	limit := time.NewTimer(takenLimit)
	defer limit.Stop()
	select {
	case <-pong:
	case <-t.done:
	case <-limit.C:
	}
}

// proxyEnd ends one direction.
type proxyEnd struct {
	Type string `json:"type"`
}

// connect reads where to, dials, and answers.
func (p *proxied) connect(ctx context.Context) bool {
	reading, cancel := context.WithTimeout(ctx, proxyInitLimit)
	defer cancel()
	typ, msg, err := p.client.conn.Reader(reading) // which ends the connection with its context
	if err != nil {
		return false
	}
	p.taken.message()
	text, err := io.ReadAll(io.LimitReader(msg, maxText+1))
	if err != nil {
		return false
	}
	init, ok := parseInit(text)
	if !ok || typ != websocket.MessageText || len(text) > maxText {
		closeWithin(closeGrace, p.client.conn, websocket.StatusUnsupportedData, `the first message must be {"host":…,"port":…}`)
		return false
	}
	target := cmp.Or(init.Unix, net.JoinHostPort(cmp.Or(init.Host, "localhost"), strconv.Itoa(init.Port)))
	status := sprites.ProxyStatus{Status: "connected", Target: target, Unix: init.Unix, HalfClose: init.HalfClose}
	p.half = init.HalfClose
	dialing, stop := context.WithTimeout(ctx, proxyDialLimit)
	defer stop()
	if init.Unix != "" {
		p.remote, err = p.guest.connect(dialing, url.Values{"unix": {init.Unix}})
	} else {
		p.remote, err = p.guest.dialPort(dialing, init.Host, init.Port)
	}
	if err != nil {
		status.Status, status.Error, status.HalfClose = "error", clean(err.Error(), maxGuestText), false
		_ = p.text(status) // it has gone itself
		closeWithin(closeGrace, p.client.conn, websocket.StatusInternalError, clean(status.Error, maxReason))
		return false
	}
	if p.text(status) != nil {
		_ = p.remote.Close()
		return false
	}
	return true
}

// parseInit reads the client's first message, which names a port or a socket.
func parseInit(text []byte) (init sprites.ProxyInit, ok bool) {
	if json.Unmarshal(text, &init) != nil {
		return init, false
	}
	if init.Unix != "" {
		return init, strings.HasPrefix(init.Unix, "/") && init.Host == "" && init.Port == 0
	}
	return init, init.Port >= 1 && init.Port <= 65535
}

// dialPort connects to a port as seen from inside the sprite.
func (g *guest) dialPort(ctx context.Context, host string, port int) (net.Conn, error) {
	if slices.Contains(aliases, host) {
		if conn, err := g.sandbox.Dial(ctx, port); err == nil {
			return conn, nil
		}
	}
	return g.connect(ctx, url.Values{"host": {host}, "port": {strconv.Itoa(port)}})
}

// connect has the guest connect to a port or a socket. An error that is the
// guest's own says why it could not.
func (g *guest) connect(ctx context.Context, query url.Values) (net.Conn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, guestURL("connect", query.Encode()), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", boot.ConnectProtocol)
	resp, err := g.send(req)
	if err != nil {
		return nil, err
	}
	stream, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		err := guestFailure(resp, false)
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.Code == "not_connected" {
			err = errors.New(e.Message)
		}
		return nil, err
	}
	return &guestStream{stream}, nil
}

// guestStream is a connection that the guest made. It has no deadlines.
type guestStream struct{ io.ReadWriteCloser }

// CloseWrite ends the direction to the guest.
func (s *guestStream) CloseWrite() error {
	if half, ok := s.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (*guestStream) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (*guestStream) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (*guestStream) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (*guestStream) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (*guestStream) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

func (p *proxied) text(v any) error { return p.client.write(websocket.MessageText, encode(v)) }

// send moves the remote's bytes to the client until its end.
func (p *proxied) send() error {
	buf := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(buf)
	for {
		n, err := p.remote.Read(*buf)
		if n > 0 {
			if err := p.client.write(websocket.MessageBinary, (*buf)[:n]); err != nil {
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
func (p *proxied) receive() {
	buf := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(buf)
	gone := false
	for ended := false; ; {
		typ, msg, err := p.client.conn.Reader(context.Background())
		if err != nil {
			return
		}
		p.taken.message()
		if typ == websocket.MessageText {
			text, err := io.ReadAll(io.LimitReader(msg, maxText+1))
			if err != nil || len(text) > maxText {
				return
			}
			var end proxyEnd
			if json.Unmarshal(text, &end) == nil && end.Type == "eof" && p.half && !ended {
				ended = true
				close(p.ended)
				if w, ok := p.remote.(interface{ CloseWrite() error }); ok {
					_ = w.CloseWrite() // it has gone: send says so
				}
			}
			continue
		}
		if gone {
			_, err = io.Copy(io.Discard, msg)
		} else if _, err = io.CopyBuffer(struct{ io.Writer }{p.remote}, struct{ io.Reader }{msg}, *buf); err != nil {
			// The remote takes no more, but its output may still be on its way.
			gone = true
			_, err = io.Copy(io.Discard, msg)
		}
		if err != nil {
			return
		}
	}
}
