package gateway

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/hostnet"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// anyIP makes addresses the host's own by local routes, which no interface shows. The
// routes are in the table that routes all packets, and in tables that rules lead to.
func anyIP(t *testing.T) (addrs []string) {
	t.Helper()
	port := uint16(7) // of any service
	network := func(s string) *net.IPNet {
		n, err := netlink.ParseIPNet(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, c := range []struct {
		prefix, addr string
		rule         func(*netlink.Rule) // nil: the main table
	}{
		{"31.0.0.0/24", "31.0.0.1", nil},
		{"31.0.1.5/32", "31.0.1.5", nil},
		{"2a0c::/64", "2a0c::1", nil},
		{"2a10::5/128", "2a10::5", nil},
		{"2a00::/20", "2a00::1", nil}, // wider than any network that the host has neighbours in
		{"31.0.2.0/24", "31.0.2.1", func(*netlink.Rule) {}},
		{"2a0d::/64", "2a0d::1", func(*netlink.Rule) {}},
		{"31.0.3.0/24", "31.0.3.1", func(r *netlink.Rule) { r.Src = network(hostIP + "/32") }},
		{"2a0e::/64", "2a0e::1", func(r *netlink.Rule) { r.Src = network(hostIP6 + "/128") }},
		{"31.0.4.0/24", "31.0.4.1", func(r *netlink.Rule) {
			r.IPProto, r.Dport = unix.IPPROTO_TCP, netlink.NewRulePortRange(port, 65534)
		}},
		{"2a0f::/64", "2a0f::1", func(r *netlink.Rule) {
			r.IPProto, r.Dport = unix.IPPROTO_TCP, netlink.NewRulePortRange(port, 65534)
		}},
	} {
		addrs = append(addrs, c.addr)
		route := &netlink.Route{LinkIndex: 1, Dst: network(c.prefix), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL}
		if route.Dst.IP.To4() == nil {
			route.Scope = unix.RT_SCOPE_UNIVERSE
		}
		if c.rule != nil {
			rule := netlink.NewRule()
			rule.Priority, rule.Table, rule.Family = 100+i, 700+i, unix.AF_INET
			if route.Dst.IP.To4() == nil {
				rule.Family = unix.AF_INET6
			}
			c.rule(rule)
			if err := netlink.RuleAdd(rule); err != nil {
				t.Fatal(c.prefix, err)
			}
			t.Cleanup(func() { _ = netlink.RuleDel(rule) })
			route.Table = rule.Table
		}
		if err := netlink.RouteAdd(route); err != nil {
			t.Fatal(c.prefix, err)
		}
		t.Cleanup(func() { _ = netlink.RouteDel(route) })
	}
	return addrs
}

// An address that a local route makes the host's own is refused as such, before the
// host's service sees a connection. A rule of that very address opens it. A wider rule
// does not.
func TestAnyIP(t *testing.T) {
	addrs := anyIP(t)
	l := listenIn(t, hostNS(t), "[::]:0")
	port := tcpPort(l.Addr())
	// Only the routes say it here.
	nothing := func() (hostnet.Net, error) { return hostnet.Net{}, nil }
	w := newWorld(t, "veth", func(g *Gateway) { g.HostNet = nothing })
	wide := newWorld(t, "veth", func(g *Gateway) {
		g.HostNet = nothing
		g.Policy = made(t, "0.0.0.0/0", "::/0", "2a0c::/64", "31.0.0.0/24", "0.0.0.0/0/udp", "::/0/udp")
	})
	for _, a := range append(addrs, "::ffff:31.0.0.1", "64:ff9b::1f00:1", "2002:1f00:1::1") {
		to := netip.AddrPortFrom(netip.MustParseAddr(a), port)
		for _, from := range []*world{w, wide} {
			if to.Addr().Is4In6() { // no guest's kernel sends to it
				if d := from.decide(to, policy.TCP); d.Allow || d.Rule != "host" {
					t.Errorf("%s: got %+v, want rule host", a, d)
				}
				continue
			}
			if _, err := from.dial("tcp", to.String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: got %v, want connection refused", a, err)
				continue
			}
			if e := from.next(t); e.Addr != to.Addr() || e.Rule != "host" {
				t.Errorf("%s: got event %+v, want rule host", a, e)
			}
			if from.mayPing(to.Addr()) && a != "31.0.4.1" && a != "2a0f::1" { // these are of TCP alone
				t.Errorf("%s may be asked for an echo", a)
			}
		}
	}
	datagram := netip.AddrPortFrom(netip.MustParseAddr("2a0c::1"), 9)
	if d := wide.decide(datagram, policy.UDP); d.Allow || d.Rule != "host" {
		t.Errorf("UDP: got %+v, want rule host", d)
	}

	named := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, "2a0c::1") })
	c, err := named.dial("tcp", bracket("2a0c::1", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, err := l.Accept() // nobody came before
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := first.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a connection that was refused has reached the host: %v", err)
	}
}

// If the kernel does not say where a route ends, an address is allowed only if a rule
// names that very address. Linux gives an error about a black hole of IPv4.
func TestNoRouteKnown(t *testing.T) {
	to, beside := netip.MustParseAddrPort("31.0.9.1:80"), netip.MustParseAddrPort("31.0.9.2:80")
	for _, a := range []netip.AddrPort{to, beside} {
		blackhole := &netlink.Route{Dst: &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
		if err := netlink.RouteAdd(blackhole); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netlink.RouteDel(blackhole) })
	}
	for _, rules := range [][]string{nil, {"*"}, {"0.0.0.0/0", "31.0.9.0/24", beside.Addr().String()}} {
		w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, rules...) })
		if d := w.decide(to, policy.TCP); d.Allow || d.Rule != "host" && rules != nil && rules[0] != "*" {
			t.Errorf("%v: got %+v, want rule host", rules, d)
		}
		if d := w.decide(beside, policy.TCP); d.Allow != (len(rules) == 3) {
			t.Errorf("%v: %v: got %+v", rules, beside, d)
		}
	}
}
