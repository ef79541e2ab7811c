package gateway

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// syn is a frame that asks for a TCP connection.
func syn(mac tcpip.LinkAddress, from, to netip.AddrPort) []byte {
	b := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.TCPMinimumSize)
	header.Ethernet(b).Encode(&header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x99", DstAddr: mac, Type: header.IPv4ProtocolNumber})
	ip := header.IPv4(b[header.EthernetMinimumSize:])
	src, dst := tcpip.AddrFrom4(from.Addr().As4()), tcpip.AddrFrom4(to.Addr().As4())
	ip.Encode(&header.IPv4Fields{
		TotalLength: header.IPv4MinimumSize + header.TCPMinimumSize, TTL: 64,
		Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	tcp := header.TCP(ip[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{
		SrcPort: from.Port(), DstPort: to.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagSyn, WindowSize: 65535,
	})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, dst, header.TCPMinimumSize)
	tcp.SetChecksum(^checksum.Combine(tcp.CalculateChecksum(sum), 0))
	return b
}

// Root in a sandbox may put hostile frames on its link: from others' addresses,
// to others, of other protocols, cut short, to the host's loopback. None of them
// gets anywhere, and none ends the sandbox's network.
func TestHostileFrames(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		var reached atomic.Int32
		target := listenIn(t, internetNS, publicIP+":0")
		loop := listenIn(t, hostNS(t), "127.0.0.1:0")
		target6 := listenIn(t, internetNS, bracket(publicIP6, 0))
		for _, l := range []net.Listener{target, target6, loop} {
			serveTCP(t, l, func(c *net.TCPConn) { reached.Add(1); echo(c) })
		}
		w := newWorld(t, link, nil)
		var raw int
		err := InNetNS(w.ns, func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err == nil {
				raw, err = openPacket(eth0.Attrs().Index)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(raw), "raw")
		defer f.Close()

		public := netip.MustParseAddrPort(target.Addr().String())
		me := netip.MustParseAddrPort(guestIP + ":1000")
		good := syn(gatewayMAC, me, public)
		edit := func(at int, bytes ...byte) []byte {
			b := append([]byte(nil), good...)
			copy(b[at:], bytes)
			return b
		}
		public6 := netip.MustParseAddrPort(target6.Addr().String())
		me6, own6 := netip.MustParseAddr(guestIP6), netip.MustParseAddr(gwIP6)
		from6 := func(from string) []byte {
			return syn6(gatewayMAC, netip.AddrPortFrom(netip.MustParseAddr(from), 1000), public6)
		}
		good6 := from6(guestIP6)
		frames := map[string][]byte{
			"to another machine":       syn("\x02\x00\x00\x00\x00\x77", me, public),
			"from another address":     syn(gatewayMAC, netip.MustParseAddrPort("10.88.0.3:1000"), public),
			"from the gateway":         syn(gatewayMAC, netip.MustParseAddrPort(gwIP+":1000"), public),
			"from the public":          syn(gatewayMAC, netip.MustParseAddrPort("8.8.8.8:1000"), public),
			"from loopback":            syn(gatewayMAC, netip.MustParseAddrPort("127.0.0.1:1000"), public),
			"to the host's loopback":   syn(gatewayMAC, me, netip.MustParseAddrPort(loop.Addr().String())),
			"to multicast":             syn(gatewayMAC, me, netip.MustParseAddrPort("224.0.0.1:80")),
			"to broadcast":             syn(gatewayMAC, me, netip.MustParseAddrPort("255.255.255.255:80")),
			"to the subnet's":          syn(gatewayMAC, me, netip.MustParseAddrPort("10.88.0.255:80")),
			"SCTP":                     edit(23, 132),
			"ICMP to the public":       edit(23, 1),
			"IPv6":                     edit(12, 0x86, 0xdd),
			"IP version 5":             edit(14, 0x55),
			"header longer than frame": edit(14, 0x4f),
			"length beyond the frame":  edit(16, 0xff, 0xff),
			"length below the header":  edit(16, 0, 1),
			"half":                     good[:30],
			"an Ethernet header":       good[:14],
			"ARP cut short":            edit(12, 0x08, 0x06)[:20],

			"from another of IPv6":       from6("fdc0:7e00::3"),
			"from the gateway, of IPv6":  from6(gwIP6),
			"from the public, of IPv6":   from6("2620:4f:8000:1::99"),
			"from link-local":            from6("fe80::99"),
			"to another, of IPv6":        syn6("\x02\x00\x00\x00\x00\x77", netip.AddrPortFrom(me6, 1000), public6),
			"to IPv4, mapped":            syn6(gatewayMAC, netip.AddrPortFrom(me6, 1000), netip.MustParseAddrPort("[::ffff:"+publicIP+"]:80")),
			"to multicast, of IPv6":      syn6(gatewayMAC, netip.AddrPortFrom(me6, 1000), netip.MustParseAddrPort("[ff02::1]:80")),
			"claim the gateway's":        message6("\x33\x33\x00\x00\x00\x01", own6, netip.MustParseAddr("ff02::1"), header.ICMPv6NeighborAdvert, own6),
			"claim one's own, elsewhere": message6(gatewayMAC, me6, own6, header.ICMPv6NeighborAdvert, me6),
			"be the router":              message6(gatewayMAC, netip.MustParseAddr("fe80::99"), own6, header.ICMPv6RouterAdvert, own6),
			"redirect":                   message6(gatewayMAC, me6, own6, header.ICMPv6RedirectMsg, public6.Addr()),
		}
		for name, b := range frames {
			if _, err := f.Write(b); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// Frames arrive in order: when this connection works, the gateway has
		// dealt with the frames before.
		c, err := w.dial("tcp", target.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := roundTrip(c, randomBytes(100)); err != nil {
			t.Error(err)
		}
		if got := reached.Load(); got != 1 {
			t.Errorf("%d connections got out, want only the honest one", got)
		}
		if c, err = w.dial("tcp", target6.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := roundTrip(c, randomBytes(100)); err != nil {
			t.Error(err)
		}
		if got := reached.Load(); got != 2 {
			t.Errorf("%d connections got out, want only the two honest ones", got)
		}
		// Send frames like these that have nothing wrong. They get out, which
		// shows that the test can fail.
		for i, b := range [][]byte{good, good6} {
			before := countSyn(w)
			if _, err := f.Write(b); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the good frame", func() bool { return int(reached.Load()) == 3+i || countSyn(w) > before })
		}
	})
}

func countSyn(w *world) uint64 { return w.stack.Stats().TCP.FailedConnectionAttempts.Value() }

// Ping is answered for the gateway's address.
func TestPing(t *testing.T) {
	w := newWorld(t, "veth", nil)
	var fd int
	err := InNetNS(w.ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(int64(lastResort))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		t.Fatal(err)
	}
	echo := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize+4))
	echo.SetType(header.ICMPv4Echo)
	echo.SetIdent(7)
	echo.SetChecksum(^checksum.Checksum(echo, 0))
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(gwIP).As4()}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	ip := header.IPv4(buf[:n])
	if got := header.ICMPv4(ip[ip.HeaderLength():]); got.Type() != header.ICMPv4EchoReply || got.Ident() != 7 || ip.SourceAddress().String() != gwIP {
		t.Errorf("got type %d, id %d from %v", got.Type(), got.Ident(), ip.SourceAddress())
	}
}

func FuzzAccept(f *testing.F) {
	me, to := netip.MustParseAddrPort(guestIP+":1"), netip.MustParseAddrPort(publicIP+":2")
	me6, own6, to6 := netip.MustParseAddr(guestIP6), netip.MustParseAddr(gwIP6), netip.MustParseAddr(publicIP6)
	f.Add(syn(gatewayMAC, me, to))
	f.Add(syn6(gatewayMAC, netip.AddrPortFrom(me6, 1), netip.AddrPortFrom(to6, 2)))
	f.Add(message6(gatewayMAC, me6, own6, header.ICMPv6NeighborSolicit, own6))
	f.Add(message6("\x33\x33\xff\x00\x00\x01", me6, netip.MustParseAddr("ff02::1:ff00:1"), header.ICMPv6NeighborSolicit, own6))
	f.Add(message6(gatewayMAC, me6, to6, header.ICMPv6EchoRequest, own6))
	f.Add([]byte{})
	e := newFilter()
	e.ping = func(netip.Addr) bool { return true }
	f.Fuzz(func(t *testing.T, frame []byte) {
		if !e.accept(frame) {
			e.echo(frame)
			return
		}
		if len(frame) < 34 { // every accepted frame has an IP or ARP header
			t.Errorf("accepted %x", frame)
		}
		switch typ := header.Ethernet(frame).Type(); typ {
		case header.IPv4ProtocolNumber:
			if [4]byte(frame[26:30]) != e.guest {
				t.Errorf("accepted a frame from %v", frame[26:30])
			}
		case header.IPv6ProtocolNumber:
			ip := header.IPv6(frame[header.EthernetMinimumSize:])
			from, to, next := hostAddr(ip.SourceAddress()), hostAddr(ip.DestinationAddress()), tcpip.TransportProtocolNumber(ip.NextHeader())
			switch {
			case from != me6:
				t.Errorf("accepted a frame from %v", from)
			case next == header.ICMPv6ProtocolNumber:
				if to != own6 && to.String() != "ff02::1:ff00:1" {
					t.Errorf("accepted ICMPv6 to %v", to)
				}
				if typ := header.ICMPv6(ip.Payload()).Type(); typ != header.ICMPv6EchoRequest && typ != header.ICMPv6NeighborSolicit {
					t.Errorf("accepted ICMPv6 of type %d", typ)
				}
			case next != header.TCPProtocolNumber && next != header.UDPProtocolNumber:
				t.Errorf("accepted protocol %d", next)
			case to.IsMulticast() || to.Is4In6():
				t.Errorf("accepted a frame to %v", to)
			}
		case header.ARPProtocolNumber:
		default:
			t.Errorf("accepted a frame of type %#x", typ)
		}
	})
}
