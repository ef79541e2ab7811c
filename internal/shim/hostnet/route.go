package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// Policy is p for one destination, with the machine's network added. If EndsHere says so,
// the destination is one of the machine's own addresses. The policy is usable with an
// error, too, but then the destination may be the machine's own.
func (n Net) Policy(p policy.Policy, to netip.AddrPort, proto policy.Proto) (policy.Policy, error) {
	p.Own, p.Near = slices.Concat(n.Own, p.Own), slices.Concat(n.Near, p.Near)
	own, err := EndsHere(to, netip.AddrPort{}, proto)
	if a := policy.Canonical(to.Addr()); own {
		p.Own = append(p.Own, netip.PrefixFrom(a, a.BitLen()))
	}
	return p, err
}

// EndsHere reports whether a connection to an address would end at this machine. The
// kernel decides, as for a socket of this process: a local route can make addresses the
// machine's own that no interface has. EndsHere asks about the address as it is dialled.
// It also asks about an IPv4 address inside it, because this machine may translate the
// one to the other. from is the near end of an open connection, or the zero AddrPort. A
// connection to an address without a route does not end here. A proto other than TCP and
// UDP, and port 0, mean any.
//
// The kernel's answer is about a plain packet. EndsHere does not see what a packet filter
// redirects, or marks to be routed otherwise.
func EndsHere(to, from netip.AddrPort, proto policy.Proto) (bool, error) {
	dialled := to.Addr().Unmap()
	for _, a := range slices.Compact([]netip.Addr{dialled, policy.Canonical(dialled)}) {
		q := query{to: netip.AddrPortFrom(a, to.Port()), proto: proto}
		if src := from.Addr().Unmap(); src.BitLen() == a.BitLen() {
			q.from = netip.AddrPortFrom(src, from.Port())
		}
		if own, err := q.endsHere(); own || err != nil {
			return own, err
		}
	}
	return false, nil
}

// query is what the kernel is asked about a route. The zero from: not known.
type query struct {
	to, from netip.AddrPort
	proto    policy.Proto
}

// endsHere asks twice if from is not known, as the kernel does when it connects. Rules
// may choose another route for the source address that the first route has.
func (q query) endsHere() (bool, error) {
	own, src, err := q.ask()
	if err != nil || own || q.from.Addr().IsValid() || !src.IsValid() {
		return own, err
	}
	q.from = netip.AddrPortFrom(src, 0)
	own, _, err = q.ask()
	return own, err
}

// ask reports whether a route ends here, and its preferred source address.
func (q query) ask() (own bool, src netip.Addr, err error) {
	const loopback = 1 // the interface lo, in each network namespace
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(q.to.Addr().BitLen())}}
	if q.to.Addr().Is6() {
		msg.Family = unix.AF_INET6
	}
	req.AddData(msg)
	add := func(kind int, value []byte) { req.AddData(nl.NewRtAttr(kind, value)) }
	add(unix.RTA_DST, q.to.Addr().AsSlice())
	if a := q.from.Addr(); a.IsValid() {
		msg.Src_len = uint8(a.BitLen())
		add(unix.RTA_SRC, a.WithZone("").AsSlice())
	}
	if number := map[policy.Proto]byte{policy.TCP: unix.IPPROTO_TCP, policy.UDP: unix.IPPROTO_UDP}[q.proto]; number != 0 && q.to.Port() != 0 {
		add(unix.RTA_IP_PROTO, []byte{number})
		add(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, q.to.Port()))
		if q.from.Port() != 0 {
			add(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, q.from.Port()))
		}
	}
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	switch {
	case errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES):
		return false, src, nil
	case err != nil:
		return false, src, fmt.Errorf("look up the route to %v: %w", q.to.Addr(), err)
	case len(replies) != 1 || len(replies[0]) < unix.SizeofRtMsg:
		return false, src, fmt.Errorf("look up the route to %v: the kernel gave %d answers", q.to.Addr(), len(replies))
	}
	attrs, err := nl.ParseRouteAttr(replies[0][unix.SizeofRtMsg:])
	if err != nil {
		return false, src, fmt.Errorf("look up the route to %v: %w", q.to.Addr(), err)
	}
	switch nl.DeserializeRtMsg(replies[0]).Type {
	case unix.RTN_UNICAST:
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return false, src, nil
	default: // local, anycast, broadcast, multicast
		return true, src, nil
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			own = len(a.Value) == 4 && binary.NativeEndian.Uint32(a.Value) == loopback
		case unix.RTA_PREFSRC:
			src, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return own, src, nil
}
