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

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/cove-dev/cove/internal/policy"
)

// A connection to an address that is allowed under its names must say one of them,
// wherever its protocol says a name: many names share an address, and which of them
// is meant is decided there.

// kind is what a connection begins with.
type kind int

const (
	unknown kind = iota // so far
	opaque              // neither of these
	tlsHello
	httpRequest
)

const (
	maxHello     = 64 << 10 // of a TLS handshake's first message, in all its pieces
	maxFirstLine = 8 << 10  // of what may be an HTTP request
	echExtension = 0xfe0d   // of a handshake that hides its name
)

// patience is how long a beginning that may become a request or a handshake is held
// back. Then it is passed on, and must become neither.
const patience = time.Second

// inspect reads how a connection begins, sees that what it says is allowed, and
// serves it until its end.
func (g *Gateway) inspect(c *Conn, host *net.TCPConn, o *opened) {
	defer c.ended()
	c.closed.Store(true) // it is this function's to close
	r := c.relay(host)
	in := make(chan error, 1)
	go func() { in <- r.in() }() // in some protocols the server speaks first
	head, sent, kind := sniff(c.TCPConn, host)
	var said string
	var d policy.Decision
	switch {
	case kind == opaque || kind == unknown: // the latter has ended
		r.finish(head[sent:], in)
		return
	case sent > 0:
		d = policy.Decision{Rule: "in pieces", Hint: "the beginning of a request or of a TLS handshake must come within " + patience.String()}
	case kind == tlsHello:
		if said, d = g.mayHello(head, o); d.Allow {
			r.finish(head, in)
			return
		}
	default:
		_ = host.SetReadDeadline(time.Unix(1, 0)) // ends r.in
		err := <-in
		if errors.Is(err, os.ErrDeadlineExceeded) && r.moved.Load() == 0 && host.SetReadDeadline(time.Time{}) == nil {
			g.web.serve(&webConn{TCPConn: c.TCPConn, head: head, host: host, opened: o})
			return
		}
		in <- err
		d = policy.Decision{Rule: "out of turn", Hint: "the server answered before it was asked"}
	}
	g.refuseSaid(o.from, o.to, said, d)
	r.abort()
	r.finish(nil, in)
}

// mayHello decides on a TLS handshake.
func (g *Gateway) mayHello(head []byte, o *opened) (said string, d policy.Decision) {
	hello, err := parseHello(bytes.NewReader(head))
	switch {
	case err != nil:
		return "", policy.Decision{Rule: "bad TLS handshake", Hint: err.Error()}
	case slices.Contains(hello.Extensions, echExtension):
		return hello.ServerName, policy.Decision{Rule: "hidden name", Hint: "the TLS handshake hides its server's name (ECH), or pretends to; turn that off in the client"}
	case hello.ServerName == "":
		return "", policy.Decision{Rule: "no name", Hint: "the TLS handshake names no server (SNI); connect by name, or allow the address: cove policy allow " + o.to.String()}
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

// sniff reads from a connection until it is known what it begins with, and returns
// what it has read, and how much of that was passed on because it came slowly.
func sniff(c *gonet.TCPConn, host io.Writer) (head []byte, sent int, k kind) {
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, 4<<10)
	for {
		if len(head) > sent {
			_ = c.SetReadDeadline(time.Now().Add(patience))
		}
		n, err := c.Read(buf)
		head = append(head, buf[:n]...)
		if n > 0 {
			if k = classify(head); k != unknown {
				return head, sent, k
			}
		}
		if sent == 0 && (err == nil || !timedOut(err)) {
			if err != nil { // which who reads on will see
				return head, sent, unknown
			}
			continue
		}
		if err != nil && !timedOut(err) {
			return head, sent, unknown
		}
		_ = c.SetReadDeadline(time.Time{})
		if _, err := host.Write(head[sent:]); err != nil {
			return nil, 0, unknown
		}
		sent = len(head)
	}
}

func timedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// classify tells what a connection begins with.
func classify(head []byte) kind {
	text := bytes.TrimLeft(head, "\r\n") // which servers skip before a request
	switch {
	case len(text) == 0:
		return unknown
	case len(text) == len(head) && isHandshake(head):
		if len(head) > maxHello || isWhole(head) {
			return tlsHello
		}
		return unknown
	}
	line, _, ended := bytes.Cut(text, []byte("\n"))
	method, rest, _ := bytes.Cut(line, []byte(" "))
	switch {
	case len(method) == 0 || bytes.ContainsFunc(method, notToken) || bytes.ContainsFunc(line, notText):
		return opaque
	case !ended && len(line) > maxFirstLine:
		return httpRequest // which is refused as such
	case !ended:
		return unknown
	case bytes.Contains(rest, []byte("HTTP/")) || len(rest) > 0 && slices.Contains(methods, string(method)):
		return httpRequest
	}
	return opaque
}

// isHandshake reports whether the bytes begin a TLS record of a handshake, or may.
func isHandshake(head []byte) bool {
	const handshake, major = 22, 3
	return head[0] == handshake && (len(head) == 1 || head[1] == major)
}

// isWhole reports whether a handshake's first message is there, in whatever records
// it comes; or that it can't be one.
func isWhole(head []byte) bool {
	const recordHeader, messageHeader = 5, 4
	var message []byte
	for len(head) >= recordHeader {
		if !isHandshake(head) {
			return true
		}
		n := int(head[3])<<8 | int(head[4])
		piece := head[recordHeader:]
		message = append(message, piece[:min(n, len(piece))]...)
		if len(message) >= messageHeader && len(message)-messageHeader >= int(message[1])<<16|int(message[2])<<8|int(message[3]) {
			return true
		}
		if n == 0 || n > len(piece) {
			return n == 0
		}
		head = piece[n:]
	}
	return false
}

// methods are those by which an HTTP request is known that does not name its
// version.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI"}

// notToken is for what no method has in it, notText for what no request line has.
func notToken(c rune) bool {
	return c <= ' ' || c >= 0x7f || bytes.ContainsRune([]byte(`"(),/:;<=>?@[\]{}`), c)
}

func notText(c rune) bool { return c < ' ' && c != '\t' && c != '\r' }

// errHeard ends a handshake of which the first message is all that is wanted.
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
