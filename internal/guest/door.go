package guest

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// maxCallers is how many connections may be in the middle of their handshake. If there are
// more, the oldest is closed. So programs in the sandbox can't keep the shim out with silent
// connections.
const maxCallers = 256

// Door returns a listener whose connections come from ln and have passed the handshake of
// package boot. The handshake uses the guest's token of that moment. Closing it closes ln and
// ends the handshakes under way.
func (s *Server) Door(ln net.Listener) net.Listener {
	d := &door{Listener: ln, srv: s, admitted: make(chan net.Conn), closed: make(chan struct{}), waiting: list.New()}
	d.accepting.Go(d.accept)
	return d
}

type door struct {
	net.Listener
	srv       *Server
	admitted  chan net.Conn
	closed    chan struct{}
	accepting sync.WaitGroup
	once      sync.Once
	err       error // of the listener; written before closed is closed, unless Close was called

	mu      sync.Mutex
	waiting *list.List // of net.Conn, in their handshakes; the oldest first; guarded by mu
}

// Accept returns the next connection that has proved itself.
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.admitted:
		return conn, nil
	case <-d.closed:
		return nil, d.err
	}
}

// Close ends the listener, and the handshakes under way.
func (d *door) Close() error {
	err := d.Listener.Close()
	d.end(net.ErrClosed)
	d.accepting.Wait()
	return err
}

func (d *door) end(err error) {
	d.once.Do(func() {
		d.err = err
		close(d.closed)
		d.mu.Lock()
		defer d.mu.Unlock()
		for e := d.waiting.Front(); e != nil; e = e.Next() {
			_ = e.Value.(net.Conn).Close() // its handshake reports it
		}
	})
}

func (d *door) accept() {
	for pause := time.Duration(0); ; {
		conn, err := d.Listener.Accept()
		if err == nil {
			pause = 0
			d.accepting.Go(func() { d.admit(conn) })
			continue
		}
		if ne, ok := err.(interface{ Temporary() bool }); !ok || !ne.Temporary() {
			d.end(err)
			return
		}
		// Too many files are open, which passes: wait, as net/http's server does.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-d.closed:
			return
		}
	}
}

// admit hands a connection on that has passed the handshake, and closes any other.
func (d *door) admit(conn net.Conn) {
	place := d.enter(conn)
	err := conn.SetDeadline(time.Now().Add(boot.HandshakeLimit))
	if err == nil {
		err = boot.Admit(conn, d.srv.who().token)
	}
	d.leave(place)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		d.srv.Logger.Debug("refuse a connection", "from", conn.RemoteAddr(), "err", err)
		_ = conn.Close()
		return
	}
	select {
	case d.admitted <- conn:
	case <-d.closed:
		_ = conn.Close()
	}
}

// enter counts a connection, and closes the oldest if there are too many.
func (d *door) enter(conn net.Conn) *list.Element {
	d.mu.Lock()
	defer d.mu.Unlock()
	place := d.waiting.PushBack(conn)
	select {
	case <-d.closed:
		_ = conn.Close()
	default:
	}
	if d.waiting.Len() > maxCallers {
		oldest := d.waiting.Front()
		_ = oldest.Value.(net.Conn).Close() // its handshake reports it
		d.waiting.Remove(oldest)
	}
	return place
}

func (d *door) leave(place *list.Element) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting.Remove(place) // no error if it is not there any more
}

// listen waits for the address: the sandbox's interface may not be up yet. Nobody else can
// listen at the port. It turns off SO_REUSEADDR, which Go sets by default, so the wildcard
// address takes the port at every present and future address.
func listen(addr string) (net.Listener, error) {
	alone := func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctrlErr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		}); ctrlErr != nil {
			return ctrlErr
		}
		return err
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		// The other end is on this machine: it needs no keeping alive.
		ln, err := (&net.ListenConfig{KeepAlive: -1, Control: alone}).Listen(context.Background(), "tcp", addr)
		if err == nil || !errors.Is(err, syscall.EADDRNOTAVAIL) || time.Now().After(deadline) {
			return ln, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}
