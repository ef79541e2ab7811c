package gateway

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"
)

// conn is a connection of the stack that fails with the net package's errors.
type conn struct {
	*gonet.TCPConn
	g       *Gateway
	release func() // called once, at Close; may be nil
	closed  atomic.Bool
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err == io.EOF && c.closed.Load() { // the stack makes no difference
		err = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	}
	return n, c.clean(err, syscall.ECONNRESET)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, c.clean(err, syscall.EPIPE)
}

func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.TCPConn.Close()
	if c.release != nil {
		c.release()
	}
	return err
}

// clean replaces the stack's error, which has only a text: by net.ErrClosed when
// this side has closed, else by what the other side must have done.
func (c *conn) clean(err error, other syscall.Errno) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Timeout() {
		return err
	}
	switch {
	case c.closed.Load() || c.g.isClosed():
		op.Err = net.ErrClosed
	default:
		op.Err = other
	}
	return op
}

// buffers hold what is on its way through a forwarded connection. A connection
// that waits holds none, so that thousands of idle ones cost little.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// relay copies between a connection of the stack and one of the host, half-close
// by half-close, until both directions have ended or one has failed; then both
// connections are closed.
func relay(ep tcpip.Endpoint, wq *waiter.Queue, host *net.TCPConn) {
	var once sync.Once
	abort := func() {
		once.Do(func() {
			_ = host.SetLinger(0) // the other end must not take this for an orderly end
			_ = host.Close()
			ep.Abort()
		})
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		if copyOut(host, ep, wq) != nil {
			abort()
		}
	}()
	if copyIn(ep, wq, host) != nil {
		abort()
	}
	<-out
	_ = host.Close()
	ep.Close()
}

// copyOut copies from the sandbox to the host's connection.
func copyOut(host *net.TCPConn, ep tcpip.Endpoint, wq *waiter.Queue) error {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	for {
		buf := buffers.Get().(*[]byte)
		w := tcpip.SliceWriter(*buf)
		res, terr := ep.Read(&w, tcpip.ReadOptions{})
		var err error
		if terr == nil {
			_, err = host.Write((*buf)[:res.Count])
		}
		buffers.Put(buf)
		if err != nil {
			return err
		}
		switch terr.(type) {
		case nil:
			ep.ModerateRecvBuf(res.Count)
		case *tcpip.ErrWouldBlock:
			<-ready
		case *tcpip.ErrClosedForReceive:
			return host.CloseWrite()
		default:
			return plain(terr)
		}
	}
}

// copyIn copies from the host's connection to the sandbox.
func copyIn(ep tcpip.Endpoint, wq *waiter.Queue, host *net.TCPConn) error {
	raw, err := host.SyscallConn()
	if err != nil {
		return err
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	var (
		buf *[]byte
		n   int
		rd  error
	)
	// A read through net.TCPConn would hold the buffer while it waits.
	read := func(fd uintptr) bool {
		buf = buffers.Get().(*[]byte)
		for {
			n, rd = unix.Read(int(fd), *buf)
			if rd != unix.EINTR {
				break
			}
		}
		if rd == unix.EAGAIN {
			buffers.Put(buf)
			return false
		}
		return true
	}
	for {
		if err := raw.Read(read); err != nil {
			return err
		}
		if rd == nil && n > 0 {
			rd = writeAll(ep, (*buf)[:n], ready)
		} else if rd == nil {
			rd = io.EOF
		}
		buffers.Put(buf)
		if rd == io.EOF {
			if terr := ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
				return plain(terr)
			}
			return nil
		}
		if rd != nil {
			return rd
		}
	}
}

func writeAll(ep tcpip.Endpoint, b []byte, ready <-chan struct{}) error {
	r := bytes.NewReader(b)
	for r.Len() > 0 {
		_, terr := ep.Write(r, tcpip.WriteOptions{})
		switch terr.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-ready
		default:
			return plain(terr)
		}
	}
	return nil
}
