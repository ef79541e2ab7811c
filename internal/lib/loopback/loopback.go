// Package loopback listens at both of this machine's loopback addresses.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Browsers look for NAME.localhost at ::1 before 127.0.0.1, and any user of this machine may
// listen at a port of ::1 that nobody has. Browsers would then send that user the code of a
// link, and cookies, which are for the server. So the server listens on both.

// portTries is how many ports of the kernel's choice may be taken on the other address.
const portTries = 32

// Listen listens at addr as a server does. If addr is 127.0.0.1 or ::1, it also listens at the
// same port of the other one, if the machine has that address. For port 0 it picks a port that
// is free on both. Close closes both.
func Listen(addr string) (net.Listener, error) {
	var tried []net.Listener // held, so that the kernel picks another port
	defer func() {
		for _, ln := range tried {
			_ = ln.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(addr)
	for {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, err
		}
		other := otherLoopback(ln.Addr())
		if other == "" {
			return ln, nil
		}
		second, err := net.Listen("tcp", other)
		switch {
		case err == nil:
			return newPair(ln, second), nil
		case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
			return ln, nil // nobody can listen there
		}
		tried = append(tried, ln)
		if port != "0" || !errors.Is(err, syscall.EADDRINUSE) || len(tried) == portTries {
			return nil, fmt.Errorf("%w (browsers look for sprites' URLs there, too)", err)
		}
	}
}

// otherLoopback is the same port of ::1 for 127.0.0.1, and the reverse; else empty.
func otherLoopback(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	switch host {
	case "127.0.0.1":
		return net.JoinHostPort("::1", port)
	case "::1":
		return net.JoinHostPort("127.0.0.1", port)
	}
	return ""
}

// pair accepts the connections of two listeners. Its address is the first one's.
type pair struct {
	net.Listener
	second   net.Listener
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once
	wg       sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

func newPair(first, second net.Listener) *pair {
	p := &pair{Listener: first, second: second, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, ln := range []net.Listener{first, second} {
		p.wg.Go(func() { p.acceptFrom(ln) })
	}
	return p
}

// acceptFrom hands on what one listener accepts, until the pair is closed.
func (p *pair) acceptFrom(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		select {
		case p.accepted <- accepted{conn, err}:
		case <-p.closed:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// Accept is net.Listener's.
func (p *pair) Accept() (net.Conn, error) {
	select {
	case a := <-p.accepted:
		return a.conn, a.err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (p *pair) Close() error {
	err := net.ErrClosed
	p.once.Do(func() {
		close(p.closed)
		err = errors.Join(p.Listener.Close(), p.second.Close())
	})
	p.wg.Wait()
	return err
}

// Free reports whether a server may listen at addr.
func Free(addr string) bool {
	l, err := Listen(addr)
	if err == nil {
		_ = l.Close()
	}
	return err == nil
}
