package guest

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// connectDialLimit is shorter than the time that clients of the server wait.
const connectDialLimit = 9 * time.Second

// connectBuffer is how many bytes are moved at once, each way. A connection's speed depends on
// it, since system calls are much slower in a sandbox.
const connectBuffer = 64 << 10

var connectBuffers = sync.Pool{New: func() any { return new([connectBuffer]byte) }}

// connections are those to ports and sockets. Close them when done.
type connections struct {
	open    atomic.Int64
	closing chan struct{} // closed by close
	wg      sync.WaitGroup
}

// close ends all connections, and waits for them.
func (c *connections) close() {
	close(c.closing)
	c.wg.Wait()
}

// get joins the caller's connection with one to any address that the sandbox can reach. After
// the answer 101 it is a plain stream, and each direction ends separately. The query names a
// host and a port, or the path of a Unix socket.
func (c *connections) get(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Upgrade") != boot.ConnectProtocol {
		return fail.New("upgrade_required", "A connection needs an upgrade.", "")
	}
	query := r.URL.Query()
	port, err := strconv.ParseUint(query.Get("port"), 10, 16)
	if path := query.Get("unix"); path == "" && (err != nil || port == 0) {
		return fail.New("invalid_request", "Which port?", "")
	}
	if c.open.Add(1) > maxConnections {
		c.open.Add(-1)
		return wire.Full("too_many_connections", maxConnections, "%d connections are open already.", maxConnections)
	}
	defer c.open.Add(-1)
	c.wg.Add(1)
	defer c.wg.Done()
	target, err := dial(query.Get("host"), int(port), query.Get("unix"))
	if err != nil {
		return fail.New("not_connected", dialReason(err), "")
	}
	defer func() { _ = target.Close() }()
	caller, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer func() { _ = caller.Close() }()
	if _, err := io.WriteString(caller, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+boot.ConnectProtocol+"\r\n\r\n"); err != nil {
		return nil // it has gone
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.closing:
			_ = errors.Join(caller.Close(), target.Close())
		case <-done:
		}
	})
	var moving sync.WaitGroup
	moving.Go(func() { move(target, buffered, caller) })
	moving.Go(func() { move(caller, target, target) })
	moving.Wait()
	close(done)
	wg.Wait()
	return nil
}

// move copies what comes from a connection until its end, and ends that direction
// of to. An error ends both connections.
func move(to net.Conn, from io.Reader, conn net.Conn) {
	buf := connectBuffers.Get().(*[connectBuffer]byte)
	defer connectBuffers.Put(buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
	if err == nil {
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			err = half.CloseWrite()
		}
	}
	if err != nil {
		_ = to.Close() // they may have ended
		_ = conn.Close()
	}
}

// dial connects to a Unix socket, or to a port. The sprite itself has many names,
// and a program may listen on either loopback address.
func dial(host string, port int, unix string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectDialLimit}
	if unix != "" {
		return d.Dial("unix", unix)
	}
	text := strconv.Itoa(port)
	switch host {
	case "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "10.0.0.1", "fdf::1":
	default:
		return d.Dial("tcp", net.JoinHostPort(host, text))
	}
	first, second := "127.0.0.1", "::1"
	if host == "::1" {
		first, second = second, first
	}
	conn, err := d.Dial("tcp", net.JoinHostPort(first, text))
	if err == nil {
		return conn, nil
	}
	if conn, err2 := d.Dial("tcp", net.JoinHostPort(second, text)); err2 == nil {
		return conn, nil
	}
	return nil, err
}

// dialReason is why a connection was not made, for people.
func dialReason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return "look up " + e.Name + ": " + e.Err
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "no answer"
	}
	return err.Error()
}
