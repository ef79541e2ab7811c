package gateway

import (
	"bytes"
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// sniffer reads how a connection begins.
type sniffer struct {
	c       *gonet.TCPConn
	r       *relay
	budget  *budget
	look    grammar // nil: it has just begun
	greeted bool    // the server spoke first
	head    []byte  // read, and not passed
	counted int     // of the budget
	refusal policy.Decision
	buf     [512]byte
}

// outOfRoom is the refusal if the budget has no room for more bytes.
var outOfRoom = policy.Decision{Rule: "memory limit", Hint: "too many connections of the sandbox are in the middle of a handshake or of a request's header; open fewer at once"}

// next reads until the kind of the bytes is known. An unknown says that the connection
// has ended, or that refusal was set.
func (s *sniffer) next() step {
	defer func() { _ = s.c.SetReadDeadline(time.Time{}) }()
	waits := false
	for {
		if len(s.head) > 0 {
			if st := s.judge(); st.kind != unknown {
				return st
			}
			if !waits {
				waits = true
				_ = s.c.SetReadDeadline(time.Now().Add(headerTimeout))
			}
		}
		if !s.read() {
			return more
		}
	}
}

// judge applies the grammar to head. No bytes have passed before, so if the server has
// spoken, it did so by itself.
func (s *sniffer) judge() step {
	if s.look != nil {
		return s.look(s.head)
	}
	said := s.r.spoke.Load()
	switch {
	case said == nil:
		return begin(s.head)
	case greetsLikeWeb(*said):
		return none
	}
	s.greeted = true
	return greeted(s.head)
}

// greetsLikeWeb reports whether a server of HTTP or TLS may say this unasked, as when
// it has waited for too long.
func greetsLikeWeb(said []byte) bool {
	return bytes.HasPrefix(said, []byte("H")) || bytes.HasPrefix(said, []byte("<")) ||
		said[0] >= 20 && said[0] <= 24 && (len(said) == 1 || said[1] == 3) || isSettings(said)
}

// isSettings reports whether a server begins with the SETTINGS of HTTP/2 (RFC 9113, 3.4
// and 6.5), or may yet. That is a frame of less than 64 KiB in stream 0, with any flags.
func isSettings(said []byte) bool {
	const settings = 4
	frame := make([]byte, 9)
	frame[3] = settings
	copy(frame, said)
	return frame[0] == 0 && frame[3] == settings && binary.BigEndian.Uint32(frame[5:])<<1 == 0
}

// read adds to head. False says that the connection has ended, or that refusal was set
// for the bytes read so far.
func (s *sniffer) read() bool {
	n, err := s.c.Read(s.buf[:])
	if n > 0 {
		if !s.budget.take(n) {
			s.refusal = outOfRoom
			return false
		}
		s.counted += n
		s.head = append(s.head, s.buf[:n]...)
		return true
	}
	if err != nil && len(s.head) > 0 {
		s.refusal = policy.Decision{Rule: "in pieces", Hint: "a request line or a TLS handshake must be complete within " + headerTimeout.String()}
	}
	return err == nil
}

// pass sends a stage on.
func (s *sniffer) pass(st step) bool {
	if s.r.pace(true, st.n) != nil {
		return false
	}
	if _, err := s.r.host.Write(s.head[:st.n]); err != nil {
		return false
	}
	s.head = bytes.Clone(s.head[st.n:])
	s.recount()
	s.look, s.greeted = st.next, false
	return true
}

// take gives head to the caller, who passes it on.
func (s *sniffer) take() []byte {
	head := s.head
	s.head = nil
	s.recount()
	return head
}

func (s *sniffer) recount() {
	s.budget.give(s.counted - len(s.head))
	s.counted = len(s.head)
}

func (s *sniffer) close() {
	s.head = nil
	s.recount()
}

// watch passes the sandbox's bytes to a server that spoke first, until a TLS handshake
// begins in them. Then it decides on the handshake. If it is allowed, the bytes that may
// still pass are in head. In random bytes, 1 in 4 G looks like a handshake, and ends the
// connection.
func (g *Gateway) watch(s *sniffer, o *opened) (said string, d policy.Decision) {
	var last []byte // passed, and perhaps a handshake's beginning
	for {
		seen := append(bytes.Clone(last), s.head...)
		if at := findHello(seen); at >= 0 {
			if at > len(last) && !s.pass(step{n: at - len(last)}) {
				return "", policy.Decision{Allow: true}
			}
			return g.startTLS(s, seen[at:max(at, len(last))], o)
		}
		if !s.pass(step{n: len(s.head)}) {
			return "", policy.Decision{Allow: true} // the caller's next call fails, too
		}
		last = seen[max(0, len(seen)-helloPattern+1):]
		if !s.read() {
			return "", policy.Decision{Allow: s.refusal.Rule == "", Rule: s.refusal.Rule, Hint: s.refusal.Hint}
		}
	}
}

// startTLS decides on a handshake. passed is its beginning, which was sent to the server
// already; the rest comes in head.
func (g *Gateway) startTLS(s *sniffer, passed []byte, o *opened) (said string, d policy.Decision) {
	whole := func() []byte { return append(bytes.Clone(passed), s.head...) }
	_ = s.c.SetReadDeadline(time.Now().Add(headerTimeout))
	defer func() { _ = s.c.SetReadDeadline(time.Time{}) }()
	for hello(whole()).kind == unknown {
		if !s.read() {
			return "", policy.Decision{Rule: "in pieces", Hint: "a TLS handshake must be complete within " + headerTimeout.String()}
		}
	}
	return g.mayHello(whole(), o)
}

// helloPattern is how many bytes show that a TLS handshake begins. They are a record's
// header (5), the type of its message (1), and the first byte of the message's length.
const helloPattern = 7

// findHello returns where a TLS handshake begins, or -1.
func findHello(b []byte) int {
	for at := 0; at+helloPattern <= len(b); at++ {
		i := bytes.IndexByte(b[at:], 22)
		if i < 0 || at+i+helloPattern > len(b) {
			return -1
		}
		at += i
		if beginsHello(b[at:]) {
			return at
		}
	}
	return -1
}

// beginsHello reports whether a record of TLS begins with a ClientHello. Servers ignore
// the version's second byte (RFC 8446, 5.1). No message is longer than 256 KiB, but its
// length may come with the next record.
func beginsHello(h []byte) bool {
	length := int(h[3])<<8 | int(h[4])
	return h[0] == 22 && h[1] == 3 && length > 0 && h[3] <= 0x40 && h[5] == 1 && (length == 1 || h[6] <= 3)
}
