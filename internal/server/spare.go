package server

import (
	"context"
	"net"
	"sync"
	"time"
)

// How long a connection is kept ready: shorter than a guest waits for the first
// request on one.
const spareLife = 5 * time.Second

const spareDial = 10 * time.Second // limit of dialling ahead

// spare keeps one connection to a guest ready while the guest is in use: a
// command needs one of its own, and need not wait for the handshake.
type spare struct {
	dial func(context.Context) (net.Conn, error)

	mu      sync.Mutex
	wg      sync.WaitGroup
	conn    net.Conn
	timer   *time.Timer
	dialing bool
	closed  bool
}

// take returns the connection that is ready, or a new one, and sees to the next.
func (s *spare) take(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	conn := s.conn
	if conn != nil && s.timer.Stop() {
		s.conn = nil
	} else {
		conn = nil // there is none, or its time has just come
	}
	s.ahead()
	s.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return s.dial(ctx)
}

// ahead dials the next connection, unless there is one. s.mu is held.
func (s *spare) ahead() {
	if s.closed || s.dialing || s.conn != nil {
		return
	}
	s.dialing = true
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), spareDial)
		defer cancel()
		conn, err := s.dial(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dialing = false
		if err != nil {
			return // who needs one dials, and is told
		}
		if s.closed {
			_ = conn.Close()
			return
		}
		s.conn = conn
		s.timer = time.AfterFunc(spareLife, func() { s.expire(conn) })
	})
}

func (s *spare) expire(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn {
		s.conn = nil
		_ = conn.Close()
	}
}

// close closes the connection that is ready, and waits for one on its way.
func (s *spare) close() {
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		s.timer.Stop()
		_ = s.conn.Close()
		s.conn = nil
	}
	s.mu.Unlock()
	s.wg.Wait()
}
