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

// What root in a sandbox may put on its link: frames of others' addresses, to
// others, of other protocols, cut short, to the host's loopback. None gets
// anywhere, and none of them ends the network of the sandbox.
func TestHostileFrames(t *testing.T) {
	eachLink(t, func(t *testing.T, link string) {
		var reached atomic.Int32
		target := listenIn(t, internetNS, publicIP+":0")
		loop := listenIn(t, hostNS(t), "127.0.0.1:0")
		for _, l := range []net.Listener{target, loop} {
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
		}
		for name, b := range frames {
			if _, err := f.Write(b); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// What is sent later arrives later: when this one works, the others have
		// been dealt with.
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
		// A frame like these of which nothing is wrong would have got out: send
		// it, so that the test is known to be able to fail.
		if _, err := f.Write(good); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the good frame", func() bool { return reached.Load() == 2 || countSyn(w) > 0 })
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
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
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
	f.Add(syn(gatewayMAC, me, to))
	f.Add([]byte{})
	e := &endpoint{guest: me.Addr().As4(), own: netip.MustParseAddr(gwIP).As4(), bcast: [4]byte{10, 88, 0, 255}}
	e.fd, e.ping = -1, func(netip.Addr) bool { return true }
	f.Fuzz(func(t *testing.T, frame []byte) {
		if !e.accept(frame) {
			e.echo(frame)
			return
		}
		if len(frame) < 34 { // every accepted frame has an IP or ARP header
			t.Errorf("accepted %x", frame)
		}
		if frame[12] == 8 && frame[13] == 0 && [4]byte(frame[26:30]) != e.guest {
			t.Errorf("accepted a frame from %v", frame[26:30])
		}
	})
}
