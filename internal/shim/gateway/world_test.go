package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// The tests run in a network namespace of their own, the "host", from which
// nothing leaves the machine. Another one, the "internet", is its only neighbour;
// private and metadata addresses are real machines in it, which the host can reach.
// The guest of each test is a third namespace, whose kernel plays the guest.
const (
	testEnv  = "COVE_GATEWAY_TEST_NAMESPACE"
	hostIP   = "192.31.196.1"
	nearIP   = "192.31.196.2" // a neighbour of the host's, and its router
	publicIP = "192.52.193.2"
	privIP   = "10.1.2.3"
	metaIP   = "169.254.169.254"
	gwIP     = "10.88.0.1"
	guestIP  = "10.88.0.2"

	hostIP6   = "2620:4f:8000::1"
	nearIP6   = "2620:4f:8000::2" // a neighbour of the host's, and its router
	publicIP6 = "2620:4f:8000:1::2"
	privIP6   = "fd12::9"
	metaIP6   = "fd00:ec2::254"
	gwIP6     = "fdc0:7e00::1"
	guestIP6  = "fdc0:7e00::2"
)

var internetNS = -1

func TestMain(m *testing.M) {
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz=") }) {
		os.Exit(m.Run()) // without a network; its workers talk to it by descriptors
	}
	if os.Getenv(testEnv) == "" {
		os.Exit(again())
	}
	if err := makeInternet(); err != nil {
		fmt.Fprintln(os.Stderr, "make the test's networks:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// again runs this test binary in a new network namespace. For an ordinary user, that
// is in a new user namespace, too, which allows it.
func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), testEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		return 1
	}
	return 0
}

func makeInternet() error {
	var err error
	if internetNS, err = NewNetNS(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "net0"}, PeerName: "inet0", PeerNamespace: netlink.NsFd(internetNS)}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if err := setAddrs("net0", hostIP+"/24", hostIP6+"/64"); err != nil {
		return err
	}
	err = InNetNS(internetNS, func() error {
		return setAddrs("inet0", nearIP+"/24", publicIP+"/32", privIP+"/32", metaIP+"/32",
			nearIP6+"/64", publicIP6+"/128", privIP6+"/128", metaIP6+"/128", "64:ff9b::a01:203/128", "2002:a01:203::1/128")
	})
	if err != nil {
		return err
	}
	return errors.Join(netlink.RouteAdd(route(nearIP)), netlink.RouteAdd(route(nearIP6)))
}

// route is the default route by a neighbour.
func route(by string) *netlink.Route { return &netlink.Route{Gw: net.ParseIP(by)} }

func setAddrs(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, s := range addrs {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// world is one gateway and its guest.
type world struct {
	*Gateway
	ns     int
	link   string // "tap" or "veth"
	events chan Event
}

// eachLink runs a test over each kind of link. An ordinary user can't open the
// tap device on most machines.
func eachLink(t *testing.T, run func(t *testing.T, link string)) {
	kinds := []string{"tap", "veth"}
	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err == nil {
		_ = f.Close()
	} else if os.Getenv("SUDO_UID") == "" && !rootOutside() {
		kinds = kinds[1:]
	}
	for _, k := range kinds {
		t.Run(k, func(t *testing.T) { run(t, k) })
	}
}

// rootOutside reports whether this is real root, not that of a user namespace.
func rootOutside() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Contains(string(b), "4294967295")
}

func openEither(kind string) (Link, error) {
	if kind == "tap" {
		return OpenTap("eth0", true)
	}
	return OpenVeth("eth0", "gateway0")
}

func openTestLink(ns int, kind string) (l Link, err error) {
	err = InNetNS(ns, func() error {
		if l, err = openEither(kind); err != nil {
			return err
		}
		if err := ConfigureGuestLink("eth0", netip.MustParsePrefix(guestIP+"/24"), netip.MustParseAddr(gwIP)); err != nil {
			return err
		}
		if err := ConfigureGuestLink6("eth0", netip.MustParseAddr(guestIP6), netip.MustParseAddr(gwIP6)); err != nil {
			return err
		}
		// This guest's kernel takes nothing for the address until a worker of its own
		// has been there. gVisor has no such time.
		for end := time.Now().Add(lastResort); ; {
			routes, err := netlink.RouteGet(net.ParseIP(guestIP6))
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s is no address of the guest's yet: %v, %w", guestIP6, routes, err)
			}
		}
	})
	return l, err
}

func newWorld(t testing.TB, kind string, set func(*Gateway)) *world {
	t.Helper()
	ns, err := NewNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(ns) })
	return newWorldIn(t, ns, kind, set)
}

func newWorldIn(t testing.TB, ns int, kind string, set func(*Gateway)) *world {
	t.Helper()
	link, err := openTestLink(ns, kind)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{ns: ns, link: kind, events: make(chan Event, 1000)}
	w.Gateway = &Gateway{
		Link:  link,
		Addr:  netip.MustParsePrefix(gwIP + "/24"),
		Guest: netip.MustParseAddr(guestIP),

		Addr6: netip.MustParseAddr(gwIP6), Guest6: netip.MustParseAddr(guestIP6),

		OnEvent: func(e Event) {
			if !e.Allowed {
				w.events <- e
			}
		},
	}
	if set != nil {
		set(w.Gateway)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close the gateway: %v", err)
		}
	})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// dial connects from inside the guest. The address must be a literal: then Go
// makes the socket in the calling goroutine.
func (w *world) dial(network, addr string) (c net.Conn, err error) {
	nerr := InNetNS(w.ns, func() error {
		d := net.Dialer{Timeout: lastResort}
		c, err = d.Dial(network, addr)
		return nil
	})
	return c, errors.Join(nerr, err)
}

func listenIn(t testing.TB, ns int, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	err := InNetNS(ns, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// client is an HTTP client inside the guest.
func (w *world) client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			return w.dial("tcp", net.JoinHostPort(gwIP, port))
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       lastResort,
	}
}

// next waits for the next refusal.
func (w *world) next(t *testing.T) Event {
	t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(lastResort):
		t.Fatal("no event")
		return Event{}
	}
}

// serveTCP serves each connection of l by f until the test ends.
func serveTCP(t testing.TB, l net.Listener, f func(*net.TCPConn)) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

// echo sends back what comes, and ends when the other side does.
func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	_ = c.CloseWrite()
}

func tcpPort(a net.Addr) uint16 { return a.(*net.TCPAddr).AddrPort().Port() }

// named is a policy with rules for these listeners.
func named(t testing.TB, ls ...net.Listener) policy.Policy {
	t.Helper()
	var rules []policy.Rule
	for _, l := range ls {
		r, err := policy.ParseRule(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return policy.New(rules...)
}

// startResolver runs a DNS server in the internet and returns its address.
func startResolver(t testing.TB, handle dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	l := listenIn(t, internetNS, nearIP+":0")
	var pc net.PacketConn
	err := InNetNS(internetNS, func() (err error) {
		pc, err = net.ListenPacket("udp4", l.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{Listener: l, Handler: handle}, {PacketConn: pc, Handler: handle}} {
		var wg sync.WaitGroup
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		wg.Go(func() { _ = s.ActivateAndServe() })
		<-up
		t.Cleanup(func() { _ = s.Shutdown(); wg.Wait() })
	}
	return netip.MustParseAddrPort(l.Addr().String())
}
