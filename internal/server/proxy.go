package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// A proxied connection's times.
const (
	proxyInitLimit = 10 * time.Second
	proxyDialLimit = 9 * time.Second // clients wait ten
)

// aliases are the names by which the sprite itself is meant.
var aliases = []string{"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "10.0.0.1", "fdf::1"}

// proxySprite joins a WebSocket with a TCP connection to wherever the sprite can
// reach (protocol sections 6.1 and 17.9). What listens in the sprite at its
// network is reached without the guest, which would have to copy each byte twice
// more, in the sandbox; what listens at loopback alone, and what is elsewhere, is
// reached through the guest.
func (s *Server) proxySprite(w http.ResponseWriter, r *http.Request) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	holder := principalOf(r).name
	if err := s.relays.add(holder); err != nil {
		return err
	}
	defer s.relays.done(holder)
	lease, err := s.Host.Use(r.Context(), r.PathValue("name"), "proxy")
	if err != nil {
		return err
	}
	defer lease.Release()
	p := &proxied{guest: s.guests.get(lease.Sandbox()), taken: &taking{done: make(chan struct{})}, ended: make(chan struct{})}
	p.client.conn, err = websocket.Accept(w, r, &websocket.AcceptOptions{OnPingReceived: p.client.answerPing})
	if err != nil { // Accept has answered
		s.Logger.Debug("accepting a WebSocket", "err", err)
		return nil
	}
	p.client.conn.SetReadLimit(-1)
	p.run(s.ctx)
	return nil
}

// proxied is one proxied connection.
type proxied struct {
	client side
	guest  *guest
	tcp    net.Conn
	half   bool // a text message ends one direction
	taken  *taking
	ended  chan struct{} // closed when the client has ended its direction
}

// run serves the connection until both directions, either side, or ctx has ended.
func (p *proxied) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		closeWithin(closeGrace, p.client.conn, websocket.StatusGoingAway, "the server is shutting down")
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
		_ = p.tcp.Close() // which ends send
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

// takenLimit is for clients that don't answer pings.
const takenLimit = 250 * time.Millisecond

// taking waits for a client to have taken an answer: some lose what comes in one
// piece with it (protocol section 17.9). A pong says that it has, or its next
// message.
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
	ctx, cancel := context.WithTimeout(ctx, proxyInitLimit)
	defer cancel()
	typ, msg, err := p.client.conn.Reader(ctx) // which ends the connection with ctx
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
	target := init.Host
	if target == "" {
		target = "localhost"
	}
	status := sprites.ProxyStatus{Status: "connected", Target: net.JoinHostPort(target, strconv.Itoa(init.Port)), HalfClose: init.HalfClose}
	p.half = init.HalfClose
	dialing, stop := context.WithTimeout(ctx, proxyDialLimit)
	defer stop()
	p.tcp, err = p.guest.dialPort(dialing, init.Host, init.Port)
	if err != nil {
		status.Status, status.Error, status.HalfClose = "error", clean(refusal(err), maxGuestText), false
		_ = p.text(status) // it has gone itself
		closeWithin(closeGrace, p.client.conn, websocket.StatusInternalError, clean(status.Error, maxReason))
		return false
	}
	if p.text(status) != nil {
		_ = p.tcp.Close()
		return false
	}
	return true
}

// parseInit reads the client's first message.
func parseInit(text []byte) (init sprites.ProxyInit, ok bool) {
	ok = json.Unmarshal(text, &init) == nil && init.Port >= 1 && init.Port <= 65535
	return init, ok
}

// refusal is why a connection was not made: the last link of an error, which is
// the guest's own word.
func refusal(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// dialPort connects to a port as seen from inside the sprite.
func (g *guest) dialPort(ctx context.Context, host string, port int) (net.Conn, error) {
	if slices.Contains(aliases, host) {
		if conn, err := g.sandbox.Dial(ctx, port); err == nil {
			return conn, nil
		}
	}
	inside := &sprites.Client{URL: "http://guest", Token: g.sandbox.Status().Token, HTTPClient: &http.Client{Transport: g.transport}}
	return inside.Self().Dial(ctx, host, port)
}

func (p *proxied) text(v any) error { return p.client.write(websocket.MessageText, encode(v)) }

// send moves the remote's bytes to the client until its end.
func (p *proxied) send() error {
	buf := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(buf)
	for {
		n, err := p.tcp.Read(*buf)
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
				if w, ok := p.tcp.(interface{ CloseWrite() error }); ok {
					_ = w.CloseWrite() // it has gone: send says so
				}
			}
			continue
		}
		if gone {
			_, err = io.Copy(io.Discard, msg)
		} else if _, err = io.CopyBuffer(struct{ io.Writer }{p.tcp}, struct{ io.Reader }{msg}, *buf); err != nil {
			// The remote takes no more, but what it has said may be on its way.
			gone = true
			_, err = io.Copy(io.Discard, msg)
		}
		if err != nil {
			return
		}
	}
}
