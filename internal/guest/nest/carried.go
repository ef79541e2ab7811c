package nest

import (
	"errors"
	"net"
	"sync"
	"time"
)

// maxCarried is how many connections a nest may have to the sprite and back. Each can hold a thread
// until it is made, and buffers of 128 KiB after that.
const maxCarried = 512

// carried are the connections that the relay and the mirror of a nest carry. The zero value has none.
type carried struct {
	wg sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[*net.TCPConn]bool
}

// serve carries the connections that a listener accepts, until it is closed. If there are too
// many, it resets the new one.
func (c *carried) serve(ln net.Listener, carry func(in *net.TCPConn)) {
	pause := time.Duration(0)
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
			continue
		}
		pause = 0
		in := conn.(*net.TCPConn)
		if !c.add(in) {
			reset(in)
			continue
		}
		c.wg.Go(func() {
			defer c.drop(in)
			carry(in)
		})
	}
}

func (c *carried) add(in *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.conns) >= maxCarried {
		return false
	}
	if c.conns == nil {
		c.conns = map[*net.TCPConn]bool{}
	}
	c.conns[in] = true
	return true
}

func (c *carried) drop(in *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, in)
	_ = in.Close() // it may be closed by now
}

// end closes all connections. Containers outlive dockerd, and their connections would, too.
func (c *carried) end() {
	c.mu.Lock()
	c.ended = true
	for in := range c.conns {
		_ = in.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// reset shows the other end that a connection did not end by itself.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
