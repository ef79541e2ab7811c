package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/hostnet"
)

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// roundTrip sends data, ends its direction, and wants it all back and then an end.
func roundTrip(c net.Conn, data []byte) error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil {
			err = c.(halfCloser).CloseWrite()
		}
		sent <- err
	}()
	_ = c.SetReadDeadline(time.Now().Add(lastResort))
	got, err := io.ReadAll(c)
	if serr := <-sent; serr != nil {
		return fmt.Errorf("send: %w", serr)
	}
	if err != nil {
		return fmt.Errorf("receive: %w after %d bytes", err, len(got))
	}
	if !bytes.Equal(got, data) {
		return fmt.Errorf("got %d bytes back that differ from the %d sent", len(got), len(data))
	}
	return nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestDial(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, nil)
		l := listenIn(t, w.ns, guestIP+":0")
		serveTCP(t, l, echo)
		port := int(tcpPort(l.Addr()))
		for _, size := range []int{0, 1, 8 << 20} {
			c, err := w.Dial(t.Context(), port)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != gwIP {
				t.Errorf("local address: got %s, want %s", got, gwIP)
			}
			if err := roundTrip(c, randomBytes(size)); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read after close: got %v, want net.ErrClosed", err)
			}
		}

		_ = l.Close()
		if _, err := w.Dial(t.Context(), port); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial a closed port: got %v, want connection refused", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Dial(ctx, port); !errors.Is(err, context.Canceled) {
			t.Errorf("dial with an ended context: got %v", err)
		}
		if _, err := w.Dial(t.Context(), 0); err == nil {
			t.Error("dial port 0: no error")
		}
	})
}

// A reader that waits must learn of Close by its own side, and of a reset by the
// other.
func TestDialEnds(t *testing.T) {
	w := newWorld(t, "veth", nil)
	l := listenIn(t, w.ns, guestIP+":0")
	accepted := make(chan *net.TCPConn, 1)
	hold := make(chan struct{})
	defer close(hold)
	serveTCP(t, l, func(c *net.TCPConn) { accepted <- c; <-hold })
	for name, end := range map[string]struct {
		do   func(mine net.Conn, other *net.TCPConn)
		want error
	}{
		"close": {func(mine net.Conn, _ *net.TCPConn) { _ = mine.Close() }, net.ErrClosed},
		"reset": {func(_ net.Conn, other *net.TCPConn) { _ = other.SetLinger(0); _ = other.Close() }, syscall.ECONNRESET},
		"deadline": {func(mine net.Conn, _ *net.TCPConn) {
			_ = mine.SetReadDeadline(time.Now().Add(time.Millisecond))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := w.Dial(t.Context(), int(tcpPort(l.Addr())))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			other := <-accepted
			if name == "deadline" {
				end.do(c, other)
			}
			got := make(chan error, 1)
			go func() { _, err := c.Read(make([]byte, 1)); got <- err }()
			if name != "deadline" {
				end.do(c, other)
			}
			select {
			case err := <-got:
				var nerr net.Error
				if end.want == nil && (!errors.As(err, &nerr) || !nerr.Timeout()) {
					t.Errorf("got %v, want a timeout", err)
				}
				if end.want != nil && !errors.Is(err, end.want) {
					t.Errorf("got %v, want %v", err, end.want)
				}
			case <-time.After(lastResort):
				t.Fatal("the reader still waits")
			}
		})
	}
}

func TestForward(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		public := listenIn(t, internetNS, publicIP+":0")
		serveTCP(t, public, echo)
		w := newWorld(t, link, nil)
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := roundTrip(c, randomBytes(8<<20)); err != nil {
			t.Error(err)
		}
		_ = c.Close()

		// A port on which nobody listens.
		_ = public.Close()
		if _, err := w.dial("tcp", public.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial a closed port: got %v, want connection refused", err)
		}
		select {
		case e := <-w.events:
			t.Errorf("unexpected refusal: %+v", e)
		default:
		}
	})
}

func hostNS(t testing.TB) int {
	t.Helper()
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// The addresses are real: the policy refuses the connections, and not a missing machine.
func TestRefused(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		var reached atomic.Int32
		count := func(*net.TCPConn) { reached.Add(1) }
		private := listenIn(t, internetNS, privIP+":0")
		serveTCP(t, private, count)
		meta := listenIn(t, internetNS, metaIP+":80")
		serveTCP(t, meta, count)
		own := listenIn(t, hostNS(t), hostIP+":0")
		serveTCP(t, own, count)
		for _, l := range []net.Listener{private, meta, own} {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatalf("the host itself can't reach %v: %v", l.Addr(), err)
			}
			_, _ = c.Read(make([]byte, 1)) // until it has been counted and closed
			_ = c.Close()
		}
		if got := reached.Swap(0); got != 3 {
			t.Fatalf("the host reached %d of 3", got)
		}

		w := newWorld(t, link, nil)
		for _, test := range []struct{ addr, rule string }{
			{private.Addr().String(), "private"},
			{fmt.Sprintf("[::ffff:%s]:%d", privIP, tcpPort(private.Addr())), "private"},
			{meta.Addr().String(), "metadata"},
			{own.Addr().String(), "host"},
			{"100.100.100.200:80", "metadata"},
			{"100.64.0.1:80", "carrier-grade NAT"},
			{"192.168.1.1:80", "private"},
			{gwIP + ":7070", "gateway"},
		} {
			c, err := w.dial("tcp", test.addr)
			if err == nil {
				_ = c.Close()
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: got %v, want connection refused", test.addr, err)
			}
			want, _ := netip.ParseAddrPort(test.addr)
			e := w.next(t)
			if e.Proto != "tcp" || e.Addr != want.Addr().Unmap() || e.Port != want.Port() || e.Rule != test.rule || e.Hint == "" || e.Time.IsZero() {
				t.Errorf("%s: got event %+v, want rule %s and a hint", test.addr, e, test.rule)
			}
		}
		if got := reached.Load(); got != 0 {
			t.Errorf("%d connections got through", got)
		}

		// UDP: an ICMP error, at once.
		c, err := w.dial("udp", publicIP+":53")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lastResort))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("UDP: got %v, want connection refused", err)
		}
		if e := w.next(t); e.Proto != "udp" || e.Addr.String() != publicIP || e.Port != 53 {
			t.Errorf("UDP: got event %+v", e)
		}
	})
}

// A rule opens what it names and nothing beside it.
func TestNamedByRule(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		loop := listenIn(t, hostNS(t), hostIP+":0")
		serveTCP(t, loop, echo)
		other := listenIn(t, hostNS(t), hostIP+":0")
		serveTCP(t, other, echo)
		private := listenIn(t, internetNS, privIP+":0")
		serveTCP(t, private, echo)
		w := newWorld(t, link, func(g *Gateway) { g.Policy = named(t, loop, private) })
		for _, l := range []net.Listener{loop, private} {
			c, err := w.dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatalf("%v: %v", l.Addr(), err)
			}
			if err := roundTrip(c, randomBytes(1<<20)); err != nil {
				t.Errorf("%v: %v", l.Addr(), err)
			}
			_ = c.Close()
		}
		if _, err := w.dial("tcp", other.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("another port: got %v, want connection refused", err)
		}
		if e := w.next(t); e.Rule != "host" {
			t.Errorf("another port: got event %+v, want rule host", e)
		}
	})
}

// While the host's addresses are unknown, only what a rule names is allowed.
func TestFailClosed(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	rule := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, rule, echo)
	w := newWorld(t, "veth", func(g *Gateway) {
		g.Policy = named(t, rule)
		g.HostNet = func() (hostnet.Net, error) { return hostnet.Net{}, errors.New("no netlink today") }
	})
	if _, err := w.dial("tcp", public.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want connection refused", err)
	}
	if e := w.next(t); e.Rule != "host" || !strings.Contains(e.Hint, "addresses") {
		t.Errorf("got event %+v", e)
	}
	c, err := w.dial("tcp", rule.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// An address of the host that no interface shows is found out by connecting.
func TestHostUnlisted(t *testing.T) {
	own := listenIn(t, hostNS(t), hostIP+":0")
	serveTCP(t, own, echo)
	w := newWorld(t, "veth", func(g *Gateway) {
		g.HostNet = func() (hostnet.Net, error) { return hostnet.Net{}, nil }
	})
	if _, err := w.dial("tcp", own.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, want connection refused", err)
	}
	if e := w.next(t); e.Rule != "host" {
		t.Errorf("got event %+v, want rule host", e)
	}
}

// A reset of the upstream must reach the guest as one, not as an orderly end.
func TestForwardReset(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	w := newWorld(t, "veth", nil)
	c, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lastResort))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want connection reset", err)
	}
}

// crowd makes n round trips at once, every fourth into the sandbox.
func (w *world) crowd(t *testing.T, n int, data []byte) {
	t.Helper()
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	in := listenIn(t, w.ns, guestIP+":0")
	serveTCP(t, in, echo)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var c net.Conn
			var err error
			if i%4 == 0 {
				c, err = w.Dial(t.Context(), int(tcpPort(in.Addr())))
			} else {
				c, err = w.dial("tcp", public.Addr().String())
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := roundTrip(c, data); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestConcurrent(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) { newWorld(t, link, nil).crowd(t, 600, randomBytes(64<<10)) })
}

func TestMaxConns(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	w := newWorld(t, "veth", func(g *Gateway) { g.MaxConns = 2 })
	var open []net.Conn
	for range 2 {
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if _, err := w.dial("tcp", public.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("third connection: got %v, want connection refused", err)
	}
	if e := w.next(t); e.Rule != "connection limit" {
		t.Errorf("got event %+v", e)
	}
	if err := roundTrip(open[0], []byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = open[0].Close()
	waitFor(t, "a free slot", func() bool { w.outward.mu.Lock(); defer w.outward.mu.Unlock(); return w.outward.open < 2 })
	c, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = open[1].Close()
}

// waitFor polls until ok.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(lastResort); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", lastResort, what)
		}
	}
}

func TestClose(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		public := listenIn(t, internetNS, publicIP+":0")
		accepted := make(chan struct{}, 10)
		hold := make(chan struct{})
		serveTCP(t, public, func(*net.TCPConn) { accepted <- struct{}{}; <-hold })
		before := runtime.NumGoroutine()

		w := newWorld(t, link, nil)
		in := listenIn(t, w.ns, guestIP+":0")
		var conns []net.Conn
		for range 5 {
			c, err := w.dial("tcp", public.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			<-accepted
			conns = append(conns, c)
		}
		web, err := w.dial("tcp", gwIP+":80") // an HTTP connection that says nothing
		if err != nil {
			t.Fatal(err)
		}
		inward, err := w.Dial(t.Context(), int(tcpPort(in.Addr())))
		if err != nil {
			t.Fatal(err)
		}
		// A reader and a writer that wait.
		read := make(chan error, 1)
		go func() { _, err := inward.Read(make([]byte, 1)); read <- err }()

		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("a waiting reader got %v, want net.ErrClosed", err)
		}
		if _, err := w.Dial(t.Context(), 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial after close: got %v, want net.ErrClosed", err)
		}
		for _, c := range append(conns, web) {
			_ = c.Close()
		}
		close(hold)
		waitFor(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
		if err := w.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
}

// Another gateway takes the link of a running guest over from one that is gone.
func TestTakeOver(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		public := listenIn(t, internetNS, publicIP+":0")
		serveTCP(t, public, echo)
		first := newWorld(t, link, nil)
		in := listenIn(t, first.ns, guestIP+":0")
		serveTCP(t, in, echo)
		both := func(w *world) {
			t.Helper()
			out, err := w.dial("tcp", public.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if err := roundTrip(out, randomBytes(1<<20)); err != nil {
				t.Error(err)
			}
			into, err := w.Dial(t.Context(), int(tcpPort(in.Addr())))
			if err != nil {
				t.Fatal(err)
			}
			defer into.Close()
			if err := roundTrip(into, randomBytes(1<<20)); err != nil {
				t.Error(err)
			}
		}
		both(first)
		old, err := first.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		if link == "tap" {
			err := InNetNS(first.ns, func() error { _, err := OpenTap("eth0", true); return err })
			if !errors.Is(err, unix.EBUSY) {
				t.Errorf("take over a tap in use: got %v, want EBUSY", err)
			}
		}
		if err := first.Link.File.Close(); err != nil { // as if the process had died
			t.Fatal(err)
		}
		second := newWorldIn(t, first.ns, link, nil)
		both(second)
		// Nobody knows the connection of the first any more: it ends at its next use.
		_ = old.SetDeadline(time.Now().Add(lastResort))
		_, _ = old.Write([]byte("x"))
		if _, err := old.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of the first gateway: got %v, want connection reset", err)
		}
	})
}

func TestStartErrors(t *testing.T) {
	ok := netip.MustParsePrefix(gwIP + "/24")
	for name, g := range map[string]*Gateway{
		"no addresses":  {},
		"no link":       {Addr: ok, Guest: netip.MustParseAddr(guestIP)},
		"other network": {Addr: ok, Guest: netip.MustParseAddr("10.99.0.2")},
		"same address":  {Addr: ok, Guest: ok.Addr()},
	} {
		if err := g.Start(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := g.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

// held is what is live in this process's heap, and its stacks. Each collection gives back
// half of a stack that is not in use.
func held() int64 {
	for range 5 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Strangers may open many connections that nobody reads. These share a bounded memory,
// and other connections go on meanwhile.
func TestUnreadConns(t *testing.T) {
	const n = 400
	w := newWorld(t, "veth", nil)
	in := listenIn(t, w.ns, guestIP+":0")
	var stalled atomic.Int64
	serveTCP(t, in, func(c *net.TCPConn) { // sends without end
		block := make([]byte, 64<<10)
		_ = c.SetWriteBuffer(16 << 10) // the kernel's is not what is measured
		for {
			_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
			if _, err := c.Write(block); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
				stalled.Add(1)
				_, _ = io.Copy(io.Discard, c) // until the other side ends
				return
			}
		}
	})
	before := held()
	for range n {
		c, err := w.Dial(t.Context(), int(tcpPort(in.Addr())))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	waitFor(t, "all to stall", func() bool { return stalled.Load() == n })
	if grown := held() - before; grown > 200<<20 {
		t.Errorf("%d unread connections hold %d MiB", n, grown>>20)
	}
	l := listenIn(t, w.ns, guestIP+":0")
	serveTCP(t, l, echo)
	c, err := w.Dial(t.Context(), int(tcpPort(l.Addr())))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := roundTrip(c, randomBytes(1<<20)); err != nil {
		t.Errorf("beside them: %v", err)
	}
}

// Connections that get the least memory there is work as well as others.
func TestLeastWindow(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, nil)
		for _, s := range []*share{&w.inward, &w.outward} {
			s.mu.Lock()
			s.used = sharedMemory
			s.mu.Unlock()
		}
		w.crowd(t, 500, randomBytes(64<<10))
	})
}

// TestHold: while the gateway holds, it takes in nothing from the sandbox, and does not
// forget data that is sent to the sandbox. Both arrive after the release, even in very
// many parts.
func TestHold(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, nil)
		l := listenIn(t, w.ns, guestIP+":0")
		serveTCP(t, l, echo)
		c, err := w.Dial(t.Context(), int(tcpPort(l.Addr())))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got := make([]byte, 64<<10)
		if _, err := c.Write(got[:1]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got[:1]); err != nil {
			t.Fatal(err)
		}
		w.Hold()
		sent := randomBytes(len(got))
		for part := range slices.Chunk(sent, 10) {
			if _, err := c.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := c.Read(make([]byte, 1))
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("while it holds: got %d bytes, %v", n, err)
		}
		w.Release()
		_ = c.SetReadDeadline(time.Now().Add(lastResort))
		if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("after %d of %d bytes: %v", n, len(sent), err)
		}
	})
}
