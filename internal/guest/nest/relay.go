package nest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// relay carries connections out of a nest on, with sockets of the sprite.
type relay struct {
	streams net.Listener     // in the nest
	names   []net.PacketConn // in the nest
	netns   *os.File         // the nest's
	carried *carried
}

const (
	dialTimeout = 2 * time.Minute
	nameTimeout = 15 * time.Second // longer than a resolver waits
	maxNames    = 256              // requests to a name server at once
)

// serveStreams carries TCP connections until the listener is closed.
func (r *relay) serveStreams() { r.carried.serve(r.streams, r.carry) }

// carry joins a connection to one with the address that it was meant for.
func (r *relay) carry(in *net.TCPConn) {
	to, err := meant(in)
	if err != nil {
		return
	}
	var out net.Conn
	switch local := in.LocalAddr().(*net.TCPAddr).AddrPort(); {
	case to == local:
		return // nobody but the relay listens there
	case to.Addr().String() == Host:
		out, err = net.DialTimeout("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()).String(), dialTimeout)
	case r.isOwn(to.Addr()):
		out, err = dialIn(r.netns, to)
	default:
		out, err = net.DialTimeout("tcp", to.String(), dialTimeout)
	}
	if err != nil {
		reset(in)
		return
	}
	pipe(in, out.(*net.TCPConn))
}

var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// pipe carries both directions until both have ended.
func pipe(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	way := func(to, from *net.TCPConn) {
		// This hides their own methods, which would use splice. That is slow in gVisor.
		buf := buffers.Get().(*[64 << 10]byte)
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
		buffers.Put(buf)
		if err != nil {
			reset(to)
			from.Close()
			return
		}
		_ = to.CloseWrite()
	}
	wg.Go(func() { way(a, b) })
	way(b, a)
	wg.Wait()
}

// meant is the address that a connection had before a rule led it to the relay.
func meant(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	var sub error
	err = raw.Control(func(fd uintptr) {
		const originalDst = 80 // SO_ORIGINAL_DST
		// The value is a sockaddr_in; of the types that x/sys can read, this one is as long.
		mreq, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst)
		if sub = err; err != nil {
			return
		}
		b := mreq.Multiaddr
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4]))
	})
	return to, errors.Join(err, sub)
}

// isOwn reports whether an address is one of the nest's: only such an address can be bound to.
func (r *relay) isOwn(a netip.Addr) bool {
	own := false
	_ = within(r.netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		own = unix.Bind(fd, &unix.SockaddrInet4{Addr: a.As4()}) == nil
		return nil
	})
	return own
}

// within calls f in a network namespace.
func within(netns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with this function
		}
		done <- err
	}()
	return <-done
}

// dialIn connects to an address in a network namespace.
func dialIn(netns *os.File, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := within(netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "connection")
		defer file.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
			return err
		}
		conn, err = net.FileConn(file)
		return err
	})
	return conn, err
}

// serveNames carries requests to the sprite's name server, whatever server they were meant for,
// until the socket is closed.
func (r *relay) serveNames(names net.PacketConn) {
	slots := make(chan struct{}, maxNames)
	buf := make([]byte, 64<<10)
	for {
		n, from, err := names.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case slots <- struct{}{}:
			request := append([]byte(nil), buf[:n]...)
			r.carried.wg.Go(func() {
				defer func() { <-slots }()
				if answer, err := resolve(request); err == nil {
					_, _ = names.WriteTo(answer, from)
				}
			})
		default: // the program asks again
		}
	}
}

// resolve asks the sprite's name server.
func resolve(request []byte) ([]byte, error) {
	server, err := nameServer()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(server, "53"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	answer := make([]byte, 64<<10)
	n, err := conn.Read(answer)
	return answer[:n], err
}

// nameServer is the first one of /etc/resolv.conf.
func nameServer() (string, error) {
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" {
			return fields[1], nil
		}
	}
	return "", errors.New("/etc/resolv.conf names no server")
}
