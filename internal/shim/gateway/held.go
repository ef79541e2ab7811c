package gateway

import (
	"cmp"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// The buffers of connections fill when nobody reads. They are those of the stack, those
// of the host's kernel, and those of copying. The kernel's grow by themselves to several
// MiB each. share bounds one buffer, and holders watches how much all of them hold.
const (
	maxHeld  = 128 << 20              // bytes in all; above it, the connections that hold the most are ended
	lookHeld = 250 * time.Millisecond // between looks, while there is a crowd
)

// holder is a connection that holds bytes.
type holder struct {
	ep    tcpip.Endpoint // nil: none
	host  syscall.Conn
	abort func()
}

// bytes is how much it holds now.
func (h *holder) bytes() (n int) {
	if h.ep != nil {
		in, _ := h.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption) // no error, but of one that has ended
		out, _ := h.ep.GetSockOptInt(tcpip.SendQueueSizeOption)
		n = in + out
	}
	if raw, err := h.host.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n += kernelBytes(int(fd)) })
	}
	return n
}

// kernelBytes is the memory that a socket of the host holds in the kernel (SO_MEMINFO).
// It has bytes not read yet, bytes not sent yet, and memory reserved for later ones.
func kernelBytes(fd int) int {
	const received, ahead, queued, values = 0, 4, 5, 9
	var info [values]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // x/sys has no call for it
	if errno != 0 {
		return 0
	}
	return int(info[received]) + int(info[ahead]) + int(info[queued])
}

// holders are all connections that hold bytes. Set max before use.
type holders struct {
	max int // bytes

	mu   sync.Mutex
	all  map[*holder]struct{} // guarded by mu
	most int                  // that a look has seen; guarded by mu
	wake chan struct{}        // guarded by mu; nil: nobody looks
}

func (h *holders) add(one *holder) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[*holder]struct{})
	}
	h.all[one] = struct{}{}
	if len(h.all) == crowd && h.wake != nil {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, one)
	}
}

// watchHeld looks what connections hold, until the gateway closes.
func (g *Gateway) watchHeld() {
	g.holders.mu.Lock()
	wake := make(chan struct{}, 1)
	g.holders.wake = wake
	g.holders.mu.Unlock()
	for {
		g.holders.mu.Lock()
		few := len(g.holders.all) < crowd
		g.holders.mu.Unlock()
		var next <-chan time.Time
		if !few {
			next = time.After(lookHeld)
		}
		select {
		case <-g.ctx.Done():
			return
		case <-wake:
		case <-next:
		}
		g.shed()
	}
}

// shed ends those that hold the most, while all hold too much, and returns how much the
// others hold.
func (g *Gateway) shed() (sum int) {
	type held struct {
		*holder
		n int
	}
	g.holders.mu.Lock()
	all := make([]held, 0, len(g.holders.all))
	for one := range g.holders.all {
		all = append(all, held{one, 0})
	}
	g.holders.mu.Unlock()
	for i := range all {
		all[i].n = all[i].bytes()
		sum += all[i].n
	}
	g.holders.mu.Lock()
	g.holders.most = max(g.holders.most, sum)
	g.holders.mu.Unlock()
	if sum <= g.holders.max {
		return sum
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Compare(b.n, a.n) })
	for _, one := range all {
		if sum <= g.holders.max/4*3 {
			break
		}
		one.abort()
		sum -= one.n
		g.report(Event{Proto: string(policy.TCP), Rule: "memory limit", Hint: "the connections of this sandbox hold too much data that nobody reads; read it, or open fewer connections"})
	}
	return sum
}

// heldConn is a connection of the host's that is looked at until it is closed.
type heldConn struct {
	*net.TCPConn
	remove func()
}

// Close is net.Conn's.
func (c *heldConn) Close() error {
	c.remove()
	return c.TCPConn.Close()
}

// hold has a connection of the host's looked at.
func (g *Gateway) hold(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	return &heldConn{tcp, g.holders.add(&holder{host: tcp, abort: func() {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}})}
}
