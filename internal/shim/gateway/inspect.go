package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// If an address is allowed under its names, a connection to it must say one of them,
// if its protocol says a name. Many names share an address, and the server chooses by
// the name that the connection says.

const (
	maxHello     = 16 << 10 // of a TLS handshake's first message, in all its pieces
	maxFirstLine = 8 << 10  // of what may be an HTTP request
	echExtension = 0xfe0d   // of a handshake that hides its name
)

// inspect reads how a connection begins, decides on what it says, and serves it until
// its end. Nothing passes to the server before it is decided on.
func (g *Gateway) inspect(c *Conn, host *net.TCPConn, o *opened) {
	defer c.ended()
	c.closed.Store(true) // it is this function's to close
	r := c.relay(host)
	defer r.held(g)()
	in := make(chan error, 1)
	go func() { in <- r.in() }() // in some protocols the server speaks first
	s := &sniffer{c: c.TCPConn, r: r, budget: &g.parsed}
	defer s.close()
	st := s.next()
	for st.kind == stage {
		if !s.pass(st) {
			r.abort()
			r.finish(nil, in)
			return
		}
		st = s.next()
	}
	said, d := "", s.refusal
	switch {
	case d.Rule != "":
	case len(s.head) == 0: // it has ended
		r.finish(nil, in)
		return
	case st.kind == opaque && s.greeted:
		if said, d = g.watch(s, o); d.Allow {
			r.finish(s.take(), in)
			return
		}
	case st.kind == opaque:
		r.finish(s.take(), in)
		return
	case st.kind == tlsHello:
		if said, d = g.mayHello(s.head, o); d.Allow {
			r.finish(s.take(), in)
			return
		}
	case st.kind == httpRequest:
		_ = host.SetReadDeadline(time.Unix(1, 0)) // ends r.in
		err := <-in
		if errors.Is(err, os.ErrDeadlineExceeded) && r.moved.Load() == 0 && host.SetReadDeadline(time.Time{}) == nil {
			if g.web.heads.enter() {
				defer g.web.heads.leave()
				g.web.serve(&webConn{TCPConn: c.TCPConn, head: s.take(), host: host, opened: o})
				return
			}
			err, d = nil, tooMany
			in <- err
			break
		}
		in <- err
		d = policy.Decision{Rule: "out of turn", Hint: "the server answered before it was asked"}
	default:
		literal := policy.Literal(o.to, policy.TCP)
		d = policy.Decision{Rule: "unknown protocol", Hint: unknownProtocol + literal, Opens: literal}
	}
	g.refuseSaid(o.from, o.to, said, d)
	r.abort()
	r.finish(nil, in)
}

// unknownProtocol is the hint for a beginning that no grammar knows.
const unknownProtocol = "a name is allowed only for TLS, HTTP, SSH and some protocols of databases and mail; allow the address instead: cove policy allow "

// mayHello decides on a TLS handshake.
func (g *Gateway) mayHello(head []byte, o *opened) (said string, d policy.Decision) {
	hello, err := parseHello(bytes.NewReader(head))
	switch {
	case err != nil:
		return "", policy.Decision{Rule: "bad TLS handshake", Hint: err.Error()}
	case slices.Contains(hello.Extensions, echExtension):
		return hello.ServerName, policy.Decision{Rule: "hidden name", Hint: "the TLS handshake hides its server's name (ECH), or pretends to; turn that off in the client"}
	case hello.ServerName == "":
		literal := policy.Literal(o.to, policy.TCP)
		return "", policy.Decision{Rule: "no name", Hint: "the TLS handshake names no server (SNI); connect by name, or allow the address: cove policy allow " + literal, Opens: literal}
	}
	said = hello.ServerName
	if d = g.speak(said, o); d.Allow {
		if name, err := policy.CanonicalName(said); err == nil {
			o.said.Store(&name)
		}
		o.recheck() // against a policy that came before this was known
	}
	return said, d
}

// speak decides on a name that was said on an open connection.
func (g *Gateway) speak(name string, o *opened) policy.Decision {
	d := g.decide(o.to, policy.TCP)
	if !d.Allow || len(d.Names) == 0 {
		return d
	}
	return g.policy.Load().Speak(name, o.to.Port(), d.Names)
}

// errHeard ends a handshake after its first message, which is all that parseHello
// wants.
var errHeard = errors.New("heard")

// parseHello reads the first message of a TLS handshake. io.ErrUnexpectedEOF says
// that there is more of it to come.
func parseHello(r io.Reader) (*tls.ClientHelloInfo, error) {
	var hello *tls.ClientHelloInfo
	conn := tls.Server(helloConn{r: r}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello = h
			return nil, errHeard
		},
	})
	err := conn.Handshake()
	if hello != nil {
		return hello, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

// helloConn is a connection on which nothing is said.
type helloConn struct {
	net.Conn
	r io.Reader
}

func (c helloConn) Read(p []byte) (int, error)     { return c.r.Read(p) }
func (helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (helloConn) SetDeadline(time.Time) error      { return nil }
func (helloConn) SetReadDeadline(time.Time) error  { return nil }
func (helloConn) SetWriteDeadline(time.Time) error { return nil }
func (helloConn) Close() error                     { return nil }
