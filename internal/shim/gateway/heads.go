package gateway

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// If a request's header has many short fields, the server needs some 25 times the
// header's bytes. So only a few headers may be on their way at once, and a header may
// have only a few fields.
const (
	maxHeader    = 32 << 10 // bytes
	maxFields    = 200
	maxHeads     = 64  // of one server, on their way at once; others wait
	maxWebConns  = 512 // HTTP to named hosts, open at once
	maxHTTPConns = 256 // to connectors, open at once

	// maxHeaderBytes is the limit for net/http, which reads 4 KiB more.
	maxHeaderBytes = maxHeader - 4<<10
)

// heads bounds the connections of one server, and the headers on their way to it. Set
// max before use.
type heads struct {
	max int
	g   *Gateway

	mu     sync.Mutex
	open   int           // guarded by mu
	most   int           // of open, ever; guarded by mu
	places chan struct{} // nil: no headers are read
}

// enter counts a connection, if there may be one more.
func (h *heads) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= h.max {
		return false
	}
	h.open++
	h.most = max(h.most, h.open)
	return true
}

func (h *heads) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// headOf is a connection whose headers are counted.
type headOf struct {
	net.Conn
	heads *heads

	mu      sync.Mutex
	reading bool // a header, which may not have begun; guarded by mu
	placed  bool // it has begun; guarded by mu
	counted int  // of the budget, until the request is over; guarded by mu
	ended   bool // guarded by mu
}

// wrap is a connection as the server gets it.
func (h *heads) wrap(c net.Conn) net.Conn {
	return &headOf{Conn: c, heads: h, reading: true}
}

var errNoRoom = errors.New("no room for a request's header")

// Read is net.Conn's.
func (c *headOf) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	reading, placed := c.reading, c.placed
	c.mu.Unlock()
	if n == 0 || !reading {
		return n, err
	}
	if !placed && !c.heads.place() {
		return 0, c.heads.refuse()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !placed {
		c.placed = true
	}
	if c.ended {
		c.free()
		return 0, net.ErrClosed
	}
	if !c.heads.g.parsed.take(n) {
		return 0, c.heads.refuse()
	}
	c.counted += n
	return n, err
}

// refuse tells of a connection that is ended for want of room.
func (h *heads) refuse() error {
	h.g.report(Event{Proto: string(policy.TCP), Rule: outOfRoom.Rule, Hint: outOfRoom.Hint})
	return errNoRoom
}

// CloseWrite is *net.TCPConn's.
func (c *headOf) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// place waits for a place for a header.
func (h *heads) place() bool {
	select {
	case h.places <- struct{}{}:
		return true
	default:
	}
	late := time.NewTimer(headerTimeout)
	defer late.Stop()
	select {
	case h.places <- struct{}{}:
		return true
	case <-late.C:
	case <-h.g.ctx.Done():
	}
	return false
}

// free gives the place back. c.mu is held.
func (c *headOf) free() {
	if c.placed {
		c.placed = false
		<-c.heads.places
	}
}

// state is http.Server's ConnState.
func (c *headOf) state(s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateActive: // its header is there
		c.free()
		c.reading = false
		return
	case http.StateIdle:
		c.free()
		c.reading = true
	case http.StateHijacked:
		c.free()
		c.reading = false
	case http.StateClosed:
		c.free()
		c.reading, c.ended = false, true
	default:
		return
	}
	c.heads.g.parsed.give(c.counted)
	c.counted = 0
}

// tooManyFields answers a request whose header has more fields than may be.
func tooManyFields(w http.ResponseWriter, r *http.Request) bool {
	n := 0
	for _, values := range r.Header {
		n += len(values)
	}
	if n <= maxFields {
		return false
	}
	w.Header().Set("Connection", "close")
	refusal(w, http.StatusRequestHeaderFieldsTooLarge, "header_fields", "the request has too many header fields", "send fewer")
	return true
}
