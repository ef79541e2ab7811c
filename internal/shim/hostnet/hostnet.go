// Package hostnet says which addresses are this machine's own, and which are beside it.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Net is the network of the machine that the caller runs on.
type Net struct {
	Own  []netip.Prefix // the machine's addresses, each with its network
	Near []netip.Prefix // networks that it reaches without a gateway or takes for itself, and its gateways, each as a prefix of one address
}

// Read asks the kernel, which is quick. Near does not have the default route, even if
// that has no gateway. If an interface has one other end, such as a VPN's, Near has only
// the address of that end, and no routes into the interface. The pieces of a default
// route may be such routes, too.
func Read() (Net, error) {
	var n Net
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return n, fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			n.Own = append(n.Own, p)
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return n, fmt.Errorf("list the interfaces: %w", err)
	}
	oneEnd := map[int]bool{}
	for _, l := range links {
		oneEnd[l.Index] = l.Flags&(net.FlagPointToPoint|net.FlagLoopback) != 0
	}
	err = netlink.RouteListFilteredIter(unix.AF_UNSPEC, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		n.Near = append(n.Near, near(r, oneEnd)...)
		return true
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // the table changes just now, and is read again soon
		return n, fmt.Errorf("list the routes: %w", err)
	}
	return n, nil
}

// near is what one route says.
func near(r netlink.Route, oneEnd map[int]bool) (out []netip.Prefix) {
	switch r.Type {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST: // also of a table that only some packets are routed by
		return network(r.Dst)
	case unix.RTN_UNICAST:
	default:
		return nil
	}
	gateway := func(gw net.IP, via netlink.Destination) bool {
		if v, ok := via.(*netlink.Via); ok {
			gw = v.Addr
		}
		a, ok := netip.AddrFromSlice(gw)
		if a = a.Unmap(); ok && !a.IsUnspecified() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
		return ok && !a.IsUnspecified()
	}
	direct := false
	for _, hop := range r.MultiPath {
		direct = !gateway(hop.Gw, hop.Via) && !oneEnd[hop.LinkIndex] || direct
	}
	if len(r.MultiPath) == 0 {
		otherEnd := r.Protocol == unix.RTPROT_KERNEL && oneLong(r.Dst)
		direct = !gateway(r.Gw, r.Via) && (!oneEnd[r.LinkIndex] || otherEnd)
	}
	if direct {
		out = append(out, network(r.Dst)...)
	}
	return out
}

// network is a route's destination, unless it is the default route's.
func network(dst *net.IPNet) []netip.Prefix {
	if dst == nil {
		return nil
	}
	a, ok := netip.AddrFromSlice(dst.IP)
	bits, _ := dst.Mask.Size()
	if !ok || bits == 0 {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(a, bits).Masked()}
}

// oneLong reports whether a network is a single address.
func oneLong(n *net.IPNet) bool {
	if n == nil {
		return false
	}
	bits, all := n.Mask.Size()
	return bits == all
}
