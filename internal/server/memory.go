package server

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// memoryListener is a listener that only this process can connect to. Its
// connections are socket pairs: unlike net.Pipe they have buffers, on which
// WebSockets rely when both ends close at once.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// dial waits until a server accepts.
func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = near.Close(), far.Close()
	return nil, err
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func socketPair() (near, far net.Conn, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	near, err = fdConn(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	far, err = fdConn(fds[1])
	if err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// fdConn takes the descriptor over.
func fdConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "memory")
	defer func() { _ = f.Close() }() // FileConn has a copy
	return net.FileConn(f)
}

// inMemory reports whether a request, of this context, came from this process itself.
func inMemory(ctx context.Context) bool {
	_, network := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return !network
}
