package gateway

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/hostnet"
)

// The host's neighbours and its gateways have public addresses here. No sandbox
// reaches them without a rule that names them. That also holds for a network that
// the host joins later, as long as the host is in it.
func TestNeighbours(t *testing.T) {
	const (
		later   = "192.26.92.7"  // on a link that a route says is there
		gateway = "192.12.94.30" // another network is reached through it
		beyond  = "192.33.14.30" // in that network
	)
	lo, err := netlink.LinkByName("net0")
	if err != nil {
		t.Fatal(err)
	}
	err = InNetNS(internetNS, func() error { return setAddrs("inet0", later+"/32", gateway+"/32", beyond+"/32") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = InNetNS(internetNS, func() error {
			l, err := netlink.LinkByName("inet0")
			for _, a := range []string{later, gateway, beyond} {
				if addr, _ := netlink.ParseAddr(a + "/32"); err == nil {
					err = netlink.AddrDel(l, addr)
				}
			}
			return err
		})
	})
	network := func(s string) *net.IPNet {
		_, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	port := uint16(0)
	for _, a := range []string{nearIP, publicIP, later, gateway, beyond} {
		l := listenIn(t, internetNS, bracket(a, port))
		serveTCP(t, l, echo)
		port = tcpPort(l.Addr())
	}
	tries := func(w *world, addr, rule string) {
		t.Helper()
		c, err := w.dial("tcp", bracket(addr, port))
		switch {
		case rule == "" && err != nil:
			t.Errorf("%s: %v", addr, err)
		case rule == "":
			_ = c.Close()
		case !errors.Is(err, syscall.ECONNREFUSED):
			t.Errorf("%s: got %v, want connection refused", addr, err)
		default:
			if e := w.next(t); e.Addr.String() != addr || e.Rule != rule || e.Hint == "" {
				t.Errorf("%s: got event %+v, want rule %s", addr, e, rule)
			}
		}
	}
	w, open := newWorld(t, "veth", nil), newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, "0.0.0.0/0", nearIP) })
	tries(w, nearIP, "local network")
	tries(w, "192.31.196.77", "local network") // nobody is there
	tries(open, nearIP, "")                    // a rule names it
	tries(open, "192.31.196.77", "local network")
	for _, a := range []string{publicIP, later, gateway, beyond} {
		tries(w, a, "")
		tries(open, a, "")
	}

	routes := []*netlink.Route{
		{LinkIndex: lo.Attrs().Index, Dst: network("192.26.92.0/24"), Scope: unix.RT_SCOPE_LINK, Table: 99},
		{LinkIndex: lo.Attrs().Index, Dst: network("192.33.14.0/24"), Gw: net.ParseIP(gateway), Flags: unix.RTNH_F_ONLINK},
		{LinkIndex: lo.Attrs().Index, Dst: network("0.0.0.0/0"), Scope: unix.RT_SCOPE_LINK, Priority: 4000},
		{LinkIndex: lo.Attrs().Index, Dst: network("0.0.0.0/1"), Scope: unix.RT_SCOPE_LINK, Table: 99},
	}
	for _, r := range routes {
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	here, err := hostnet.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{nearIP + "/32", nearIP6 + "/128", "192.31.196.0/24", "192.26.92.0/24", gateway + "/32"} {
		if !slices.Contains(here.Near, netip.MustParsePrefix(p)) {
			t.Errorf("%s is not near: %v", p, here.Near)
		}
	}
	if slices.ContainsFunc(here.Near, func(p netip.Prefix) bool { return p.Bits() == 0 || p.Contains(netip.MustParseAddr(beyond)) }) {
		t.Errorf("the default route, or what lies behind a gateway, is near: %v", here.Near)
	}
	awaitFresh(t, w, later)
	tries(w, later, "local network")
	tries(w, gateway, "local network")
	tries(w, beyond, "")
	tries(w, publicIP, "")
	for _, r := range routes {
		if err := netlink.RouteDel(r); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitFresh waits until a gateway knows that an address is near.
func awaitFresh(t *testing.T, w *world, addr string) {
	t.Helper()
	a := netip.MustParseAddr(addr)
	for end := time.Now().Add(lastResort); ; <-time.After(50 * time.Millisecond) {
		if here, err := w.host.net(); err == nil && slices.ContainsFunc(here.Near, func(p netip.Prefix) bool { return p.Bits() > 8 && p.Contains(a) }) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not near", addr)
		}
	}
}
