package gateway

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Conn is a connection of the stack that fails with the net package's errors.
type Conn struct {
	*gonet.TCPConn
	g       *Gateway
	ep      tcpip.Endpoint
	wq      *waiter.Queue
	window  int    // of each buffer
	paced   bool   // the limits are for it
	release func() // called once, at the end; may be nil
	closed  atomic.Bool
}

// Read is net.Conn's.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err == io.EOF && c.closed.Load() { // the stack makes no difference
		err = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	}
	return n, c.clean(err, syscall.ECONNRESET)
}

// Write is net.Conn's.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, c.clean(err, syscall.EPIPE)
}

// Close is net.Conn's.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	defer c.ended()
	return c.TCPConn.Close()
}

func (c *Conn) ended() {
	if c.release != nil {
		c.release()
	}
}

// Stream is a connection of the host's, such as a *net.TCPConn or *net.UnixConn.
type Stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// Join copies between the connection and another one, half-close by half-close,
// until both directions have ended or one has failed, and closes both. Nobody else
// may use either meanwhile.
func (c *Conn) Join(host Stream) {
	if c.closed.Swap(true) {
		_ = host.Close()
		return
	}
	defer c.ended()
	r := c.relay(host)
	defer r.held(c.g)()
	in := make(chan error, 1)
	go func() { in <- r.in() }()
	r.finish(nil, in)
}

func (c *Conn) relay(host Stream) *relay {
	r := &relay{ep: c.ep, wq: c.wq, host: host, buffers: small, pace: func(bool, int) error { return nil }}
	if c.paced {
		r.pace = c.g.pace
	}
	if c.window >= largeWindow {
		r.buffers = large
	}
	return r
}

// clean replaces the stack's error, which has only a text. The new error is
// net.ErrClosed if this side has closed, else the errno that fits the other side's
// end.
func (c *Conn) clean(err error, other syscall.Errno) error {
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

// Buffers hold the data on its way through a connection. A connection that waits for
// data holds no buffer, so that thousands of idle ones cost little. A connection
// whose reader does not read holds one.
var (
	large = &sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }} // larger ones are not faster
	small = &sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}
)

// relay copies between a connection of the stack and one of the host, half-close
// by half-close.
type relay struct {
	ep      tcpip.Endpoint
	wq      *waiter.Queue
	host    Stream
	buffers *sync.Pool
	pace    func(out bool, n int) error // waits until so much more may pass
	moved   atomic.Int64                // bytes to the sandbox
	spoke   atomic.Pointer[[]byte]      // the first bytes of the host's end; nil: none yet
	once    sync.Once
}

// held adds the relay to the connections that g watches for the bytes that they
// hold. remove ends that.
func (r *relay) held(g *Gateway) (remove func()) {
	return g.holders.add(&holder{ep: r.ep, host: r.host, abort: r.abort})
}

// greeting is how many of a server's first bytes are looked at: a header of HTTP/2.
const greeting = 9

// abort ends both connections so that neither end takes it for an orderly end.
func (r *relay) abort() {
	r.once.Do(func() {
		if tcp, ok := r.host.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = r.host.Close()
		r.ep.Abort()
	})
}

// in copies to the sandbox until that direction has ended. An error other than the
// passing of the host's read deadline has aborted the connection.
func (r *relay) in() error {
	err := r.copyIn()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		r.abort()
	}
	return err
}

// finish sends the bytes that were read already, and copies from the sandbox until
// both directions have ended or one has failed. in gives the end of the other
// direction. Then both connections are closed.
func (r *relay) finish(head []byte, in <-chan error) {
	var err error
	if len(head) > 0 {
		_, err = r.host.Write(head)
	}
	if err == nil {
		err = r.copyOut()
	}
	if err != nil {
		r.abort()
	}
	if <-in != nil {
		r.abort()
	}
	_ = r.host.Close()
	r.ep.Close()
}

// copyOut copies from the sandbox to the host's connection.
func (r *relay) copyOut() error {
	ep, wq, host := r.ep, r.wq, r.host
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	for {
		buf := r.buffers.Get().(*[]byte)
		w := tcpip.SliceWriter(*buf)
		res, terr := ep.Read(&w, tcpip.ReadOptions{})
		var err error
		if terr == nil {
			if err = r.pace(true, res.Count); err == nil {
				_, err = host.Write((*buf)[:res.Count])
			}
		}
		r.buffers.Put(buf)
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
func (r *relay) copyIn() error {
	ep, wq, host := r.ep, r.wq, r.host
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
		buf = r.buffers.Get().(*[]byte)
		for {
			n, rd = unix.Read(int(fd), *buf)
			if rd != unix.EINTR {
				break
			}
		}
		if rd == unix.EAGAIN {
			r.buffers.Put(buf)
			return false
		}
		return true
	}
	for {
		if err := raw.Read(read); err != nil {
			return err
		}
		if rd == nil && n > 0 {
			if r.moved.Add(int64(n)) == int64(n) {
				first := bytes.Clone((*buf)[:min(n, greeting)])
				r.spoke.Store(&first)
			}
			rd = r.pace(false, n)
		}
		if rd == nil && n > 0 {
			rd = writeAll(ep, (*buf)[:n], ready)
		} else if rd == nil {
			rd = io.EOF
		}
		r.buffers.Put(buf)
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
