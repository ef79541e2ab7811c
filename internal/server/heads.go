package server

import (
	"bytes"
	"net"
	"net/http"
	"sync"
)

// Before authentication, anybody may send headers. net/http keeps all of them until they are
// complete, and short fields take much more memory than their bytes. So the memory of all
// headers together is bounded: at the bound, the connection with the longest one ends.
const (
	maxHeads  = 64 << 20
	fieldCost = 160 // bytes that a field takes besides its own
	maxFields = 1000
)

// heads counts the headers on their way. Set max before use.
type heads struct {
	max int

	mu    sync.Mutex
	sum   int                    // guarded by mu
	most  int                    // of sum, ever; guarded by mu
	conns map[*headConn]struct{} // that have a part of a header; guarded by mu
}

// headListener accepts connections whose headers are counted.
type headListener struct {
	net.Listener
	heads *heads
}

// Accept is net.Listener's.
func (l headListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headConn{Conn: c, heads: l.heads, reading: true}, nil
}

// headConn is a connection whose headers are counted.
type headConn struct {
	net.Conn
	heads *heads

	reading bool // a header, which may not have begun; guarded by heads.mu
	held    int  // of it; guarded by heads.mu
}

// Read is net.Conn's.
func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heads.add(c, n+fieldCost*bytes.Count(p[:n], []byte("\n")))
	}
	return n, err
}

// CloseWrite is *net.TCPConn's.
func (c *headConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// add counts a part of a header, and ends the longest while all are too long.
func (h *heads) add(c *headConn, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !c.reading {
		return
	}
	if h.conns == nil {
		h.conns = make(map[*headConn]struct{})
	}
	h.conns[c] = struct{}{}
	c.held += n
	h.sum += n
	for h.sum > h.max {
		longest := c
		for other := range h.conns {
			if other.held > longest.held {
				longest = other
			}
		}
		h.drop(longest)
		_ = longest.Close()
	}
	h.most = max(h.most, h.sum)
}

// drop takes a connection's header out of the count. h.mu is held.
func (h *heads) drop(c *headConn) {
	h.sum -= c.held
	c.held, c.reading = 0, false
	delete(h.conns, c)
}

// state is http.Server's ConnState.
func (h *heads) state(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*headConn)
	if !ok { // of the server's own
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s {
	case http.StateActive, http.StateHijacked, http.StateClosed: // its header is there, or never will be
		h.drop(c)
	case http.StateIdle:
		c.reading = true
	}
}

// fields counts those of a header.
func fields(header http.Header) (n int) {
	for _, values := range header {
		n += len(values)
	}
	return n
}
