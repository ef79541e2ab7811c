package gateway

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Link is the gateway's end of the sandbox's only link: OpenTap and OpenVeth
// make it.
type Link struct {
	File     *os.File         // reads and writes Ethernet frames; in non-blocking mode
	MTU      uint32           // without the Ethernet header
	GuestMAC net.HardwareAddr // of the guest's end
}

// gatewayMAC is the same in every sandbox, so that a gateway that takes over
// from one that died is not a stranger to its guest.
const gatewayMAC = tcpip.LinkAddress("\x02\xc0\x7e\x00\x00\x01")

// endpoint attaches a Link to the stack. It differs from gVisor's own fdbased in
// what it lets in (see accept), and in that no frame, and no interface going down
// for a moment, ends it.
type endpoint struct {
	file  *os.File
	mtu   uint32
	guest [4]byte
	own   [4]byte
	bcast [4]byte
	ping  func(netip.Addr) bool // whether it may be asked for an echo
	log   *slog.Logger
	done  chan struct{} // closed when the reader has ended; nil if it never began

	mu     sync.RWMutex
	fd     int                     // guarded by mu; -1 once closed
	stackd stack.NetworkDispatcher // guarded by mu
}

func newEndpoint(l Link, guest netip.Addr, own netip.Prefix, ping func(netip.Addr) bool, log *slog.Logger) *endpoint {
	e := &endpoint{file: l.File, mtu: l.MTU, guest: guest.As4(), own: own.Addr().As4(), ping: ping, log: log, fd: -1}
	host := ^uint32(0) >> own.Bits()
	binary.BigEndian.PutUint32(e.bcast[:], binary.BigEndian.Uint32(e.own[:])|host)
	// File.Fd would do, were it not that some versions make the file blocking.
	if raw, err := l.File.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { e.fd = int(fd) })
	}
	return e
}

// stop ends the reader, closes the link and waits. Later writes go nowhere.
func (e *endpoint) stop() {
	e.mu.Lock()
	open := e.fd >= 0
	e.fd = -1
	done := e.done
	e.mu.Unlock()
	if open {
		_ = e.file.Close()
	}
	if done != nil {
		<-done
	}
}

// read hands frames to the stack until the link is closed.
func (e *endpoint) read(to stack.NetworkDispatcher) {
	defer close(e.done)
	frame := make([]byte, header.EthernetMinimumSize+1<<16)
	for {
		n, err := e.file.Read(frame)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS):
			continue // the kernel reports these once each
		case errors.Is(err, os.ErrClosed):
			return
		default:
			e.log.Error("the sandbox's link is gone; it has no network", "error", err)
			return
		}
		if !e.accept(frame[:n]) {
			e.echo(frame[:n])
			continue
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
			Payload: buffer.MakeWithView(buffer.NewViewWithData(frame[:n])),
		})
		if e.ParseHeader(pkt) {
			to.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
		}
		pkt.DecRef()
	}
}

// accept lets in, of what a hostile guest may put on the link, only: ARP by the
// guest's address about the gateway's; and IPv4 from the guest's address, TCP and
// UDP to one other machine, ICMP to the gateway.
func (e *endpoint) accept(frame []byte) bool {
	if len(frame) < header.EthernetMinimumSize {
		return false
	}
	eth, body := header.Ethernet(frame), frame[header.EthernetMinimumSize:]
	if to := eth.DestinationAddress(); to != gatewayMAC && to != header.EthernetBroadcastAddress {
		return false
	}
	switch eth.Type() {
	case header.ARPProtocolNumber:
		arp := header.ARP(body)
		return arp.IsValid() && [4]byte(arp.ProtocolAddressSender()) == e.guest && [4]byte(arp.ProtocolAddressTarget()) == e.own
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(body)
		if !ip.IsValid(len(body)) {
			return false
		}
		to := ip.DestinationAddress().As4()
		if ip.SourceAddress().As4() != e.guest || to[0] >= 224 || to == e.bcast {
			return false
		}
		switch ip.TransportProtocol() {
		case header.TCPProtocolNumber, header.UDPProtocolNumber:
			return true
		case header.ICMPv4ProtocolNumber:
			return to == e.own
		}
	}
	return false
}

// echo answers an echo request to an address that may be asked for it, which the
// stack would for its own address alone. The frame becomes the answer.
func (e *endpoint) echo(frame []byte) {
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	eth, ip := header.Ethernet(frame), header.IPv4(frame[header.EthernetMinimumSize:])
	if eth.Type() != header.IPv4ProtocolNumber || eth.DestinationAddress() != gatewayMAC || !ip.IsValid(len(ip)) ||
		ip.SourceAddress().As4() != e.guest || ip.TransportProtocol() != header.ICMPv4ProtocolNumber || ip.More() || ip.FragmentOffset() != 0 {
		return
	}
	message := header.ICMPv4(ip.Payload())
	if len(message) < header.ICMPv4MinimumSize || message.Type() != header.ICMPv4Echo || !e.ping(netip.AddrFrom4(ip.DestinationAddress().As4())) {
		return
	}
	message.SetType(header.ICMPv4EchoReply)
	message.SetChecksum(0)
	message.SetChecksum(header.ICMPv4Checksum(message, 0))
	from, to := ip.SourceAddress(), ip.DestinationAddress()
	ip.SetSourceAddress(to) // their sum, and so the header's, stays
	ip.SetDestinationAddress(from)
	eth.Encode(&header.EthernetFields{SrcAddr: gatewayMAC, DstAddr: eth.SourceAddress(), Type: header.IPv4ProtocolNumber})
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.fd >= 0 {
		_, _ = unix.Write(e.fd, frame[:header.EthernetMinimumSize+int(ip.TotalLength())]) // what the link can't take is lost
	}
}

// WritePackets implements stack.LinkWriter. A frame that the link can't take is
// lost, as on any link.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	e.mu.RLock() // the descriptor must not be closed, and its number used again, meanwhile
	defer e.mu.RUnlock()
	if e.fd < 0 {
		return 0, &tcpip.ErrClosedForSend{}
	}
	for i, pkt := range pkts.AsSlice() {
		if _, err := unix.Writev(e.fd, pkt.AsSlices()); err != nil {
			if errno, ok := err.(unix.Errno); ok {
				return i, tcpip.TranslateErrno(errno)
			}
			return i, &tcpip.ErrInvalidEndpointState{}
		}
	}
	return pkts.Len(), nil
}

// Attach implements stack.LinkEndpoint: it starts the reader.
func (e *endpoint) Attach(to stack.NetworkDispatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	start := to != nil && e.done == nil
	e.stackd = to
	if start {
		e.done = make(chan struct{})
		go e.read(to)
	}
}

// IsAttached implements stack.LinkEndpoint.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.stackd != nil
}

// AddHeader implements stack.LinkEndpoint.
func (e *endpoint) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.LinkEndpoint.
func (e *endpoint) ParseHeader(pkt *stack.PacketBuffer) bool {
	h, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(h).Type()
	}
	return ok
}

// Capabilities implements stack.LinkEndpoint. What comes from the guest has not
// been on any wire, and over a veth its checksums have not been filled in.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityResolutionRequired
}

// The rest of stack.LinkEndpoint.

func (e *endpoint) MTU() uint32                             { return e.mtu }
func (e *endpoint) SetMTU(uint32)                           {}
func (e *endpoint) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (e *endpoint) LinkAddress() tcpip.LinkAddress          { return gatewayMAC }
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (e *endpoint) Wait()                                   {}
func (e *endpoint) Close()                                  {}
func (e *endpoint) SetOnCloseAction(func())                 {}
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
