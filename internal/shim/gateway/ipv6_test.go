package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/cove-dev/cove/internal/test/need"
)

func bracket(addr string, port uint16) string { return net.JoinHostPort(addr, fmt.Sprint(port)) }

// IPv6 can do what IPv4 can: connections, datagrams under a rule, and a gateway
// that takes over.
func TestIPv6(t *testing.T) {
	public := listenIn(t, internetNS, bracket(publicIP6, 0))
	serveTCP(t, public, echo)
	pc := datagramsIn(t, internetNS, bracket(publicIP6, 0))
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, func(g *Gateway) {
			g.Policy = made(t, public.Addr().String(), pc.LocalAddr().String()+"/udp")
		})
		try := func(w *world) {
			t.Helper()
			c, err := w.dial("tcp", public.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != guestIP6 {
				t.Errorf("the guest's address: got %s, want %s", got, guestIP6)
			}
			if err := roundTrip(c, randomBytes(8<<20)); err != nil {
				t.Error(err)
			}
			u, err := w.dial("udp", pc.LocalAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			_ = u.SetDeadline(time.Now().Add(lastResort))
			want := randomBytes(1000)
			if _, err := u.Write(want); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 2000)
			if n, err := u.Read(got); err != nil || !slices.Equal(got[:n], want) {
				t.Errorf("%d bytes of a datagram came back, %v", n, err)
			}
		}
		try(w)
		// A guest that has forgotten its neighbour asks for it.
		err := InNetNS(w.ns, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: netlink.FAMILY_V6, IP: net.ParseIP(gwIP6)})
		})
		if err != nil {
			t.Fatal(err)
		}
		try(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		try(newWorldIn(t, w.ns, link, func(g *Gateway) { g.Policy = w.Policy }))
	})
}

// datagramsIn answers each datagram by itself.
func datagramsIn(t testing.TB, ns int, addr string) net.PacketConn {
	t.Helper()
	var pc net.PacketConn
	err := InNetNS(ns, func() (err error) {
		pc, err = net.ListenPacket("udp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() { _ = pc.Close(); <-done })
	return pc
}

// As TestRefused: everybody is there, and the host reaches them.
func TestRefused6(t *testing.T) {
	var reached atomic.Int32
	count := func(*net.TCPConn) { reached.Add(1) }
	targets := []struct{ addr, rule string }{
		{privIP6, "unique-local"}, {metaIP6, "metadata"}, {"64:ff9b::a01:203", "private"}, {"2002:a01:203::1", "private"}, {nearIP6, "local network"},
		{hostIP6, "host"},
	}
	const port = 8099
	for _, to := range targets {
		ns := internetNS
		if to.rule == "host" {
			ns = hostNS(t)
		}
		l := listenIn(t, ns, bracket(to.addr, port))
		serveTCP(t, l, count)
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatalf("the host itself can't reach %v: %v", l.Addr(), err)
		}
		_, _ = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if n := reached.Swap(0); int(n) != len(targets) {
		t.Fatalf("the host reached %d of %d", n, len(targets))
	}
	targets = append(targets, []struct{ addr, rule string }{
		{"fe80::1%eth0", "link-local"}, {"2620:4f:8000::", "local network"}, {"2001::1", "translated"}, {gwIP6, "gateway"},
		{"64:ff9b::c01f:c401", "host"}, {"::a01:203", "private"}, {"::ffff:0:a01:203", "private"},
	}...)
	for what, rules := range map[string][]string{"no rules": nil, "everything": {"::/0", "0.0.0.0/0", "*"}} {
		w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, rules...) })
		for _, to := range targets {
			addr, _ := netip.ParseAddr(to.addr)
			_, err := w.dial("tcp", bracket(to.addr, port))
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %s: got %v, want connection refused", what, to.addr, err)
				continue
			}
			if e := w.next(t); e.Addr != addr.WithZone("") || e.Rule != to.rule || e.Hint == "" {
				t.Errorf("%s: %s: got event %+v, want rule %s", what, to.addr, e, to.rule)
			}
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d connections got through", n)
	}
	// A rule that names an address opens it, and nothing else.
	w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, privIP6) })
	c, err := w.dial("tcp", bracket(privIP6, port))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Read(make([]byte, 1))
	_ = c.Close()
	if _, err := w.dial("tcp", bracket(metaIP6, port)); !errors.Is(err, syscall.ECONNREFUSED) || reached.Load() != 1 {
		t.Errorf("another address: %v; %d reached", err, reached.Load())
	}
}

// A datagram to the address that all routers of a network have reaches a host that
// is one, though none of its interfaces lists it.
func TestAnycast(t *testing.T) {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
		need.Missing(t, "this host can't be made a router: "+err.Error(), "sudo make test, outside of a container")
	}
	defer func() { _ = os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("0"), 0) }()
	host, err := net.ListenPacket("udp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	to := bracket("2620:4f:8000::", host.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	for rule, want := range map[string]bool{to + "/udp": true, "::/0/udp": false} {
		w := newWorld(t, "veth", func(g *Gateway) { g.Policy = made(t, rule) })
		c, err := w.dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if !want {
			if e := w.next(t); e.Rule != "host" {
				t.Errorf("under %s: got event %+v", rule, e)
			}
		}
		_ = host.SetReadDeadline(time.Now().Add(map[bool]time.Duration{true: lastResort, false: 200 * time.Millisecond}[want]))
		if _, _, err := host.ReadFrom(make([]byte, 10)); (err == nil) != want {
			t.Errorf("under %s: got %v", rule, err)
		}
	}
}

// six is a zone of names that have addresses of IPv6, of IPv4, or of both.
func six(w dns.ResponseWriter, req *dns.Msg) {
	resp := new(dns.Msg).SetReply(req)
	q := req.Question[0]
	label, _, _ := strings.Cut(q.Name, ".")
	add := func(typ uint16, text string) {
		if rr, err := dns.NewRR(text); err == nil && q.Qtype == typ {
			resp.Answer = append(resp.Answer, rr)
		}
	}
	if label == "alias" {
		add(q.Qtype, q.Name+" 5 IN CNAME both.example.")
	}
	if label == "four" || label == "both" || label == "alias" {
		add(dns.TypeA, "both.example. 5 IN A "+publicIP)
	}
	if label == "six" || label == "both" || label == "alias" {
		add(dns.TypeAAAA, "both.example. 5 IN AAAA "+publicIP6)
	}
	if label == "inward" {
		add(dns.TypeAAAA, q.Name+" 5 IN AAAA "+privIP6)
		add(dns.TypeAAAA, q.Name+" 5 IN AAAA ::ffff:"+privIP)
		add(dns.TypeAAAA, q.Name+" 5 IN AAAA "+publicIP6)
	}
	_ = w.WriteMsg(resp)
}

// An address of IPv6 is reached under a name that was looked up here, too.
func TestNames6(t *testing.T) {
	public := listenIn(t, internetNS, bracket(publicIP6, 0))
	serveTCP(t, public, echo)
	port := tcpPort(public.Addr())
	for _, addr := range []string{privIP6, privIP} {
		serveTCP(t, listenIn(t, internetNS, bracket(addr, port)), func(*net.TCPConn) { t.Error("a connection got inward") })
	}
	resolver := startResolver(t, six)
	w := newWorld(t, "veth", func(g *Gateway) {
		g.Policy = made(t, "six.example", "inward.example")
		g.Resolvers = []netip.AddrPort{resolver}
	})
	fails := func(what, addr, rule string) {
		t.Helper()
		if _, err := w.dial("tcp", bracket(addr, port)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", what, err)
		}
		w.refused(t, what, rule, "")
	}
	fails("never looked up", publicIP6, "no rule")
	w.ask(t, "udp", question("inward.example.", dns.TypeAAAA))
	fails("a name that leads inward", privIP6, "unique-local")
	fails("a name that leads inward", privIP, "private")
	w.ask(t, "udp", question("six.example.", dns.TypeAAAA))
	c, err := w.dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := roundTrip(c, append([]byte(otherProtocol), randomBytes(1<<20)...)); err != nil {
		t.Error(err)
	}
	_ = c.Close()
}

// Addresses that the host has no route to are left out if there are others.
func TestDeadProtocol(t *testing.T) {
	resolver := startResolver(t, six)
	for _, test := range []struct {
		without string // the next hop of the route that is taken away
		want    map[string][2]int
	}{
		{"", map[string][2]int{"four": {1, 0}, "six": {0, 1}, "both": {1, 1}, "alias": {2, 2}}},
		{nearIP6, map[string][2]int{"four": {1, 0}, "six": {0, 1}, "both": {1, 0}, "alias": {2, 1}}},
		{nearIP, map[string][2]int{"four": {1, 0}, "six": {0, 1}, "both": {0, 1}, "alias": {1, 2}}},
	} {
		if test.without != "" {
			if err := netlink.RouteDel(route(test.without)); err != nil {
				t.Fatal(err)
			}
		}
		w := newWorld(t, "veth", func(g *Gateway) { g.Resolvers = []netip.AddrPort{resolver} })
		for name, want := range test.want {
			for i, typ := range []uint16{dns.TypeA, dns.TypeAAAA} {
				resp := w.ask(t, "udp", question(name+".example.", typ))
				if got := len(resp.Answer); resp.Rcode != dns.RcodeSuccess || got != want[i] {
					t.Errorf("without %q: %s %s: got %s, %v, want %d records", test.without, name, dns.TypeToString[typ], dns.RcodeToString[resp.Rcode], brief(resp), want[i])
				}
			}
		}
		if test.without != "" {
			if err := netlink.RouteAdd(route(test.without)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A kernel whose IPv6 is turned off says so, and IPv4 works.
func TestNoIPv6(t *testing.T) {
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, echo)
	eachLink(t, func(t *testing.T, link string) {
		ns, err := NewNetNS()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(ns) })
		var l Link
		err = InNetNS(ns, func() error {
			for _, which := range []string{"all", "default"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0); err != nil {
					return err
				}
			}
			var err error
			if l, err = openEither(link); err != nil {
				return err
			}
			if err := ConfigureGuestLink("eth0", netip.MustParsePrefix(guestIP+"/24"), netip.MustParseAddr(gwIP)); err != nil {
				return err
			}
			if err := ConfigureGuestLink6("eth0", netip.MustParseAddr(guestIP6), netip.MustParseAddr(gwIP6)); !errors.Is(err, ErrNoIPv6) {
				t.Errorf("got %v, want that there is none", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{ns: ns, link: link, Gateway: &Gateway{Link: l, Addr: netip.MustParsePrefix(gwIP + "/24"), Guest: netip.MustParseAddr(guestIP)}}
		defer w.Close()
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		if w.link6() {
			t.Error("the gateway speaks IPv6")
		}
		c, err := w.dial("tcp", public.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := roundTrip(c, randomBytes(100)); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) link6() bool {
	return w.Gateway.link.accept(syn6(gatewayMAC, netip.MustParseAddrPort(bracket(guestIP6, 1)), netip.MustParseAddrPort(bracket(publicIP6, 2))))
}

// packet6 is a frame with an IPv6 packet.
func packet6(mac tcpip.LinkAddress, from, to netip.Addr, next tcpip.TransportProtocolNumber, payload []byte) []byte {
	b := make([]byte, header.EthernetMinimumSize+header.IPv6MinimumSize, header.EthernetMinimumSize+header.IPv6MinimumSize+len(payload))
	header.Ethernet(b).Encode(&header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x99", DstAddr: mac, Type: header.IPv6ProtocolNumber})
	header.IPv6(b[header.EthernetMinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(payload)), TransportProtocol: next, HopLimit: header.NDPHopLimit, SrcAddr: stackAddr(from), DstAddr: stackAddr(to),
	})
	return append(b, payload...)
}

// syn6 is a frame that asks for a TCP connection.
func syn6(mac tcpip.LinkAddress, from, to netip.AddrPort) []byte {
	tcp := header.TCP(make([]byte, header.TCPMinimumSize))
	tcp.Encode(&header.TCPFields{SrcPort: from.Port(), DstPort: to.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, stackAddr(from.Addr()), stackAddr(to.Addr()), header.TCPMinimumSize)
	tcp.SetChecksum(^checksum.Combine(tcp.CalculateChecksum(sum), 0))
	return packet6(mac, from.Addr(), to.Addr(), header.TCPProtocolNumber, tcp)
}

// message6 is a frame with an ICMPv6 message about an address.
func message6(mac tcpip.LinkAddress, from, to netip.Addr, typ header.ICMPv6Type, about netip.Addr) []byte {
	m := header.ICMPv6(make([]byte, header.ICMPv6NeighborSolicitMinimumSize+8))
	m.SetType(typ)
	target := about.As16()
	copy(m[8:], target[:])
	copy(m[24:], []byte{1, 1, 2, 0, 0, 0, 0, 0x99}) // the asker's link address
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: stackAddr(from), Dst: stackAddr(to)}))
	return packet6(mac, from, to, header.ICMPv6ProtocolNumber, m)
}

func newFilter() *endpoint {
	return newEndpoint(&Gateway{
		Link: Link{File: os.NewFile(^uintptr(0), "none")}, Addr: netip.MustParsePrefix(gwIP + "/24"), Guest: netip.MustParseAddr(guestIP),
		Addr6: netip.MustParseAddr(gwIP6), Guest6: netip.MustParseAddr(guestIP6),
	})
}

// A hostile guest may put any IPv6 packet on its link. Only the good ones are let
// in.
func TestAccept6(t *testing.T) {
	me, own, public := netip.MustParseAddr(guestIP6), netip.MustParseAddr(gwIP6), netip.MustParseAddr(publicIP6)
	all, solicited := netip.MustParseAddr("ff02::1"), netip.MustParseAddr("ff02::1:ff00:1")
	local, a := netip.MustParseAddr("fe80::99"), netip.MustParseAddr
	const others = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x77")
	group := header.EthernetAddressFromMulticastIPv6Address(stackAddr(solicited))
	to := func(mac tcpip.LinkAddress, from, to netip.Addr) []byte {
		return syn6(mac, netip.AddrPortFrom(from, 1000), netip.AddrPortFrom(to, 80))
	}
	ask := func(mac tcpip.LinkAddress, from, to, about netip.Addr) []byte {
		return message6(mac, from, to, header.ICMPv6NeighborSolicit, about)
	}
	icmp := func(typ header.ICMPv6Type) []byte { return message6(gatewayMAC, me, own, typ, own) }
	edit := func(b []byte, at int, bytes ...byte) []byte {
		b = slices.Clone(b)
		copy(b[at:], bytes)
		return b
	}
	extended := func(next byte) []byte { // one extension header before the SYN
		inner := to(gatewayMAC, me, public)[header.EthernetMinimumSize+header.IPv6MinimumSize:]
		return packet6(gatewayMAC, me, public, tcpip.TransportProtocolNumber(next), append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, inner...))
	}
	const fixed, body = header.EthernetMinimumSize, header.EthernetMinimumSize + header.IPv6MinimumSize
	good := to(gatewayMAC, me, public)
	e := newFilter()
	for name, test := range map[string]struct {
		frame []byte
		want  bool
	}{
		"TCP":                     {good, true},
		"UDP":                     {edit(good, fixed+6, 17), true},
		"TCP to the gateway":      {to(gatewayMAC, me, own), true},
		"TCP to link-local":       {to(gatewayMAC, me, local), true}, // which the policy refuses, and says so
		"ask for the gateway":     {ask(group, me, solicited, own), true},
		"ask the gateway itself":  {ask(gatewayMAC, me, own, own), true},
		"echo of the gateway":     {icmp(header.ICMPv6EchoRequest), true},
		"to another machine":      {to(others, me, public), false},
		"to all machines":         {to(header.EthernetBroadcastAddress, me, public), false},
		"from another address":    {to(gatewayMAC, a("fdc0:7e00::3"), public), false},
		"from the gateway":        {to(gatewayMAC, own, public), false},
		"from the public":         {to(gatewayMAC, public, public), false},
		"from link-local":         {to(gatewayMAC, local, public), false},
		"from loopback":           {to(gatewayMAC, a("::1"), public), false},
		"from nobody":             {to(gatewayMAC, a("::"), public), false},
		"from the guest's IPv4":   {to(gatewayMAC, a("::ffff:"+guestIP), public), false},
		"to IPv4, mapped":         {to(gatewayMAC, me, a("::ffff:"+privIP)), false},
		"to multicast":            {to(gatewayMAC, me, all), false},
		"TCP to the asked":        {to(group, me, solicited), false},
		"ask at another group":    {ask(group, me, a("ff02::1:ff00:2"), own), false},
		"ask everybody":           {ask("\x33\x33\x00\x00\x00\x01", me, all, own), false},
		"ask for another":         {ask(group, me, solicited, public), false},
		"ask for itself":          {ask(gatewayMAC, me, own, me), false},
		"ask a machine beyond":    {ask(gatewayMAC, me, public, own), false},
		"ask from nobody":         {ask(group, a("::"), solicited, own), false},
		"ask from link-local":     {ask(group, local, solicited, own), false},
		"ask from far":            {edit(ask(group, me, solicited, own), fixed+7, 254), false},
		"ask with a code":         {edit(ask(group, me, solicited, own), body+1, 1), false},
		"ask, cut short":          {edit(ask(group, me, solicited, own), fixed+4, 0, 20), false},
		"advertise a neighbour":   {icmp(header.ICMPv6NeighborAdvert), false},
		"solicit routers":         {icmp(header.ICMPv6RouterSolicit), false},
		"advertise a router":      {icmp(header.ICMPv6RouterAdvert), false},
		"redirect":                {icmp(header.ICMPv6RedirectMsg), false},
		"too big":                 {icmp(header.ICMPv6PacketTooBig), false},
		"unreachable":             {icmp(header.ICMPv6DstUnreachable), false},
		"listener report":         {icmp(header.ICMPv6MulticastListenerV2Report), false},
		"an echo reply":           {icmp(header.ICMPv6EchoReply), false},
		"echo beyond":             {message6(gatewayMAC, me, public, header.ICMPv6EchoRequest, own), false}, // which echo decides on
		"SCTP":                    {edit(good, fixed+6, 132), false},
		"IPv4 inside":             {edit(good, fixed+6, 4), false},
		"IPv6 inside":             {edit(good, fixed+6, 41), false},
		"ICMPv4":                  {edit(good, fixed+6, 1), false},
		"no next header":          {edit(good, fixed+6, 59), false},
		"hop-by-hop options":      {extended(0), false},
		"a routing header":        {extended(43), false},
		"a fragment":              {extended(44), false},
		"destination options":     {extended(60), false},
		"IP version 4":            {edit(good, fixed, 0x45), false},
		"length beyond the frame": {edit(good, fixed+4, 0xff, 0xff), false},
		"half":                    {good[:40], false},
		"an Ethernet header":      {good[:fixed], false},
		"called IPv4":             {edit(good, 12, 8, 0), false},
		"IPv4, called IPv6":       {edit(syn(gatewayMAC, netip.MustParseAddrPort(guestIP+":1"), netip.MustParseAddrPort(publicIP+":2")), 12, 0x86, 0xdd), false},
	} {
		if got := e.accept(test.frame); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
	e.guest6, e.own6 = tcpip.Address{}, tcpip.Address{}
	for _, frame := range [][]byte{good, ask(gatewayMAC, me, own, own), to(gatewayMAC, a("::"), public)} {
		if e.accept(frame) {
			t.Error("a link without IPv6 takes it")
		}
	}
}

// An echo is answered for the gateway, and for whom the policy allows.
func TestPing6(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		w := newWorld(t, link, func(g *Gateway) { g.Policy = made(t, publicIP6) })
		var fd int
		err := InNetNS(w.ns, func() (err error) {
			fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for _, test := range []struct {
			to    string
			reply bool
		}{{privIP6, false}, {nearIP6, false}, {metaIP6, false}, {gwIP6, true}, {publicIP6, true}} {
			wait := unix.Timeval{Usec: 300_000}
			if test.reply {
				wait = unix.NsecToTimeval(int64(lastResort))
			}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
				t.Fatal(err)
			}
			echo := header.ICMPv6(append(make([]byte, header.ICMPv6EchoMinimumSize), "four"...))
			echo.SetType(header.ICMPv6EchoRequest)
			echo.SetIdent(7)
			if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr(test.to).As16()}); err != nil && test.reply {
				t.Fatal(err)
			}
			buf := make([]byte, 200)
			for { // the kernel's own neighbour discovery is heard here, too
				n, from, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					if test.reply {
						t.Errorf("%s: %v", test.to, err)
					}
					break
				}
				if got := header.ICMPv6(buf[:n]); got.Type() == header.ICMPv6EchoReply {
					if addr := netip.AddrFrom16(from.(*unix.SockaddrInet6).Addr).String(); addr != test.to || !test.reply || got.Ident() != 7 || string(got[8:]) != "four" {
						t.Errorf("%s: an answer by %s, id %d, %q", test.to, addr, got.Ident(), got[8:])
					}
					break
				}
			}
		}
	})
}
